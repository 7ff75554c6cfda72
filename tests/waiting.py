"""How tests wait for what announces nothing: they look again and again, for so long at most."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Final, TypeVar

T = TypeVar("T")

BOUND: Final = 300.0
"""Seconds that a test waits for a line, an end, or anything else; only a failing test ever waits so long."""


def until(
    look: Callable[[], T | None], what: str | Callable[[], object] = "it", *, bound: float = BOUND, every: float = 0.05
) -> T:
    """Look until something is found, or true; returns it.

    Args:
        look: finds it; what is false is looked for again.
        what: what is waited for, or how things stand when it has not come: for the message of a test that fails.
        bound: seconds until then.
        every: seconds between two looks.
    """
    deadline = time.monotonic() + bound
    while not (found := look()):
        assert time.monotonic() < deadline, f"not within {bound:g} s: {what() if callable(what) else what}"
        time.sleep(every)
    return found


async def until_async(
    look: Callable[[], T | None], what: str = "it", *, bound: float = BOUND, every: float = 0.01
) -> T:
    """As `until`, while the event loop goes on."""
    deadline = time.monotonic() + bound
    while not (found := look()):  # what is waited for has no event
        assert time.monotonic() < deadline, f"not within {bound:g} s: {what}"
        await asyncio.sleep(every)
    return found
