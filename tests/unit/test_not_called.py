"""Functions that a call does not run: refused where they are decorated, or where they have been called."""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest

import edriver
from edriver.worker import context
from edriver.worker.backend import default_group
from edriver.worker.rounds.effects import Train
from edriver.worker.rounds.script_call import ScriptCall
from edriver.worker.watch.not_called import refuse_result


async def a_coroutine(state: Any) -> None: ...


async def an_async_generator(state: Any) -> AsyncIterator[int]:
    yield 1


def a_generator(state: Any) -> Iterator[int]:
    yield 1


class Trainer:
    """Methods, and a callable object."""

    async def train(self, state: Any) -> None: ...

    async def __call__(self, state: Any) -> None: ...


def decorated(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def wrapper(*args: Any) -> Any:
        return function(*args)

    return wrapper


KNOWN: dict[str, tuple[Callable[..., Any], str]] = {
    "async": (a_coroutine, "a_coroutine: it is an async function, "),
    "async-generator": (an_async_generator, "an_async_generator: it is an async generator function, "),
    "generator": (a_generator, "a_generator: it is a generator function, "),
    "partial": (functools.partial(functools.partial(a_coroutine)), "a_coroutine: it is an async function, "),
    "method": (Trainer().train, "Trainer.train: it is an async function, "),
    "object": (Trainer(), "Trainer: it is an async function, "),
}


@pytest.mark.parametrize(("function", "said"), KNOWN.values(), ids=KNOWN)
def test_it_is_refused_where_it_is_decorated(function: Callable[..., Any], said: str) -> None:
    with pytest.raises(TypeError, match=f"edriver.run cannot run {said}which does nothing until it is "):
        edriver.run(function)
    with pytest.raises(TypeError, match=f"edriver.run cannot run {said}"):
        edriver.run(warm_up=function)(lambda state: None)


RETURNED: dict[str, tuple[Callable[..., Any], str]] = {
    "async": (a_coroutine, "a coroutine"),
    "async-generator": (an_async_generator, "an async generator"),
    "generator": (a_generator, "a generator"),
}


def script_call(function: Callable[..., Any], boundaries: int = 0) -> ScriptCall[Any]:
    return ScriptCall(context.current, function, edriver.ObjectState(), (), {}, lambda: None, lambda: boundaries)


@pytest.fixture
def alone() -> Iterator[None]:
    """The process group of a script on its own ends with the test."""
    yield
    default_group.destroy()


@pytest.mark.parametrize(("function", "said"), RETURNED.values(), ids=RETURNED)
def test_what_only_returns_one_is_refused_where_it_was_called(
    alone: None, function: Callable[..., Any], said: str
) -> None:
    message = f"edriver.run called .*, but nothing ran: it returned {said}, which does nothing until"
    for hidden in (decorated(function), lambda state: function(state)):
        with pytest.raises(TypeError, match=message):
            script_call(hidden).perform(Train())
        with pytest.raises(TypeError, match=message):
            edriver.run(hidden)(edriver.ObjectState())


def test_what_has_trained_may_return_anything() -> None:
    call = script_call(decorated(a_generator), boundaries=1)
    call.perform(Train())
    call._boundaries = lambda: 0  # in the next round
    call.perform(Train())
    assert call.result is not None
    assert list(call.result) == [1]


def test_other_results_are_left_alone() -> None:
    begun = a_generator(None)
    next(begun)
    for result in (None, 3, begun, (x for x in "a"), iter([]), a_generator, Trainer()):
        refuse_result(decorated(a_generator), result)
