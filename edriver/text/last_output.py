"""The last lines that a worker wrote, beside the exception that it raised."""

from __future__ import annotations

from typing import Final

_TRACEBACK_HEADER: Final = "Traceback (most recent call last):"


def own_last_lines(tail: str, traceback: str) -> list[str]:
    """A worker's last lines of output without what the interpreter printed of the same exception: not twice.

    Args:
        tail: its last lines.
        traceback: the exception, as reported by the worker; empty without one.
    """
    lines = [line for line in tail.splitlines() if line.strip()]
    reported = traceback.strip().splitlines()
    if reported and reported[-1] in lines:
        last = len(lines) - 1 - lines[::-1].index(reported[-1])
        before = lines[:last]
        if _TRACEBACK_HEADER in before:
            lines = before[: len(before) - 1 - before[::-1].index(_TRACEBACK_HEADER)] + lines[last + 1 :]
        else:  # it begins before these lines do
            lines = lines[last + 1 :]
    seen = set(reported)
    return [line for line in lines if line not in seen]
