"""How an invariant is checked."""

from __future__ import annotations


class Violation(AssertionError):  # noqa: N818
    """An invariant does not hold."""


def check(holds: bool, text: str) -> None:
    """Raise Violation unless it holds."""
    if not holds:
        raise Violation(text)
