"""Values as a sentence has them."""

from __future__ import annotations

from typing import Any


def words(value: Any) -> str:
    """A value in words: a float is a time in seconds, a pair a range of times, a whole number a count."""
    match value:
        case (low, high):
            return f"{low:g} to {high:g} s"
        case float():
            return f"{value:,g} s" if value < 1e6 else f"{value:,.0f} s"
        case int():
            return f"{value:,}"
    return str(value)
