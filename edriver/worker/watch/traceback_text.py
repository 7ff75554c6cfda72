"""An exception as the text that is reported of it: always short enough to be sent, its type and place always in it.

It is shortened where it is too long, escaped where it is not Unicode, and keeps its innermost frames.
"""

from __future__ import annotations

import traceback
from typing import Final

from edriver.text.wire_text import MAX_TEXT_LENGTH, wire_text

MAX_FRAMES: Final = 20
"""Innermost frames of a traceback that is too long to be sent whole."""

MAX_LINE_LENGTH: Final = 1000
"""Most characters of one of their lines."""


def traceback_text(error: BaseException) -> str:
    """The exception with its traceback and what it was raised from, as Python prints it; as a message can carry it.

    Of one that is too long the beginning is kept, and after it its innermost frames, its type, and the beginning of
    its message, in the same form: what reads the last traceback of the text finds type and place.
    """
    try:
        text = "".join(traceback.format_exception(error))
    except Exception as trouble:  # noqa: BLE001  the script's own __str__, __notes__ or __cause__ may do anything
        text = f"(the traceback cannot be formatted: {type(trouble).__name__})\n{_end_of(error)}"
    if len(text) <= MAX_TEXT_LENGTH:
        return wire_text(text)
    end = wire_text(_end_of(error), MAX_TEXT_LENGTH // 2)
    left = MAX_TEXT_LENGTH - len(end) - 100
    head = wire_text(text[:left], left)
    return f"{head}\n... ({len(text) - left} characters left out; the end of it again:)\n\n{end}"


def _end_of(error: BaseException) -> str:
    """The innermost frames, and the exception's own line."""
    frames = traceback.extract_tb(error.__traceback__)[-MAX_FRAMES:]
    kind = type(error)
    name = (
        kind.__qualname__ if kind.__module__ in ("builtins", "__main__") else f"{kind.__module__}.{kind.__qualname__}"
    )
    lines = ["Traceback (most recent call last):"]
    for frame in frames:
        lines += [line[:MAX_LINE_LENGTH] for line in traceback.format_list([frame])[0].splitlines()]
    try:
        message = str(error).partition("\n")[0][:MAX_LINE_LENGTH]
    except Exception:  # noqa: BLE001  see above
        message = "<exception str() failed>"
    return "\n".join([*lines, f"{name}: {message}" if message else name]) + "\n"
