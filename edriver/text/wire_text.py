"""Text that any message can carry: valid UTF-8 of a bounded length.

Protobuf refuses a string with a lone surrogate, and gRPC a message above its limit. What a script raises, prints or
names may have either; so may a file's name.
"""

from __future__ import annotations

from typing import Final

MAX_TEXT_LENGTH: Final = 64 * 1024
"""Most characters of one text in a message."""


def wire_text(text: str, limit: int = MAX_TEXT_LENGTH) -> str:
    """A text as a message can carry it: invalid Unicode is escaped, and the middle of a long text is left out.

    Args:
        text: any string.
        limit: most characters of the result, at least 100.
    """
    if len(text) > limit:
        half = (limit - 60) // 2
        text = f"{_escaped(text[:half])}\n... ({len(text) - 2 * half} characters left out)\n{_escaped(text[-half:])}"
    text = _escaped(text)
    if len(text) > limit:  # escapes are longer than what they stand for
        return wire_text(text, limit)
    return text


def _escaped(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode()
