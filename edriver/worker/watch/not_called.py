"""Functions that a call only makes an object of, and does not run: async functions and generators."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

from edriver.text.phrases import function_name

_ADVICE = {
    "async": "which does nothing until it is awaited. Make it a plain function, which may call asyncio.run",
    "generator": "which does nothing until it is iterated. Make it a plain function, without yield",
}


def refuse_function(function: Callable[..., Any], caller: str = "edriver.run") -> None:
    """Refuse a function that a call does not run, also behind functools.partial, as a method or a callable object.

    Raises:
        TypeError: names it, and what it is.
    """
    plain = isinstance(function, functools.partial) or inspect.isroutine(function)
    called = function if plain else type(function).__call__
    if inspect.iscoroutinefunction(called):
        kind, advice = "an async function", _ADVICE["async"]
    elif inspect.isasyncgenfunction(called):
        kind, advice = "an async generator function", _ADVICE["async"]
    elif inspect.isgeneratorfunction(called):
        kind, advice = "a generator function", _ADVICE["generator"]
    else:
        return
    raise TypeError(f"{caller} cannot run {function_name(function)}: it is {kind}, {advice}")


def refuse_result(function: Callable[..., Any], result: Any, caller: str = "edriver.run") -> None:
    """Refuse what a function has returned, if it is its work and not its result: nothing of it has been run.

    Raises:
        TypeError: names the function, and what it has returned.
    """
    if inspect.iscoroutine(result) and inspect.getcoroutinestate(result) == inspect.CORO_CREATED:
        result.close()  # else Python says that it was never awaited
        kind, advice = "a coroutine", _ADVICE["async"]
    elif inspect.isasyncgen(result):
        kind, advice = "an async generator", _ADVICE["async"]
    elif inspect.isawaitable(result):
        kind, advice = f"an awaitable {type(result).__name__}", _ADVICE["async"]
    elif inspect.isgenerator(result) and inspect.getgeneratorstate(result) == inspect.GEN_CREATED:
        if result.gi_code.co_name == "<genexpr>":
            return
        kind, advice = "a generator", _ADVICE["generator"]
    else:
        return
    raise TypeError(f"{caller} called {function_name(function)}, but nothing ran: it returned {kind}, {advice}")
