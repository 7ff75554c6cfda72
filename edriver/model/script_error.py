"""An exception of the script's, identified by its type and where it was raised. Pure."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

_TRACEBACK_HEADER: Final = "Traceback (most recent call last):"
_GROUP_HEADER: Final = "+ Exception Group Traceback (most recent call last):"
"""The same for an ExceptionGroup; the lines after it begin with a bar, those of the exceptions in it with more."""

_GROUP_PREFIX: Final = "  | "
_FRAME_PATTERN: Final = re.compile(r'  File "(?P<file>.+)", line (?P<line>\d+)(?:, in (?P<function>.+))?')
_CRASH_FRAME_PATTERN: Final = re.compile(r'  File "(?P<file>.+)", line (?P<line>\d+) in (?P<function>.+)')
_LIBRARY_PATHS: Final = ("/site-packages/", "/dist-packages/", "/lib/python3", "/edriver/worker/", "<frozen ")
"""Parts of the names of files that are not the user's own."""


class ScriptError(NamedTuple):
    """What exceptions that come from the same bug have in common. Their messages (a number, an address) may differ.

    Attributes:
        kind: the exception's type.
        file: the innermost file of the user's own in the traceback; without any, the innermost file,
        line: its line, or 0,
        function: and the function, or empty.
    """

    kind: str
    file: str
    line: int
    function: str

    def __str__(self) -> str:
        if not self.line:
            return self.kind
        raised = f"{self.kind} at " if self.kind else ""
        return f"{raised}{self.file}:{self.line}" + (f", in {self.function}" if self.function else "")


def script_place(stacks: str) -> ScriptError | None:
    """The innermost frame of user code in the first thread of these stacks; None if it has no such frame.

    Args:
        stacks: the stacks of all threads, as edriver.worker.watch.stall formats them.
    """
    first = stacks.split("\nthread ", 1)[0]
    frames = filter(None, (_FRAME_PATTERN.fullmatch(line) for line in first.splitlines()))
    own = [frame for frame in frames if not any(part in frame["file"] for part in _LIBRARY_PATHS)]
    return ScriptError("", own[-1]["file"], int(own[-1]["line"]), own[-1]["function"] or "") if own else None


def script_frames(stacks: str) -> list[str]:
    """The lines of the frames of user code in the first thread of these stacks, as they stand there, outermost first.

    Args:
        stacks: see `script_place`.
    """
    lines, own = [], False
    for line in stacks.split("\nthread ", 1)[0].splitlines():
        if frame := _FRAME_PATTERN.fullmatch(line):
            own = not any(part in frame["file"] for part in _LIBRARY_PATHS)
        elif not line.startswith("    "):
            own = False
        if own:
            lines.append(line)
    return lines


def crash_place(stacks: str) -> ScriptError | None:
    """The innermost frame of user code in the training thread when a process crashed; None if none is known.

    Args:
        stacks: the stacks of all threads as faulthandler writes them: the most recent call of each first. The training
            thread is the oldest one, which comes last.
    """
    _, _, last = stacks.rpartition("Fatal Python error")
    for thread in reversed(last.split("\n\n")):
        frames = filter(None, map(_CRASH_FRAME_PATTERN.fullmatch, thread.splitlines()))
        for frame in frames:
            if not any(part in frame["file"] for part in _LIBRARY_PATHS):
                return ScriptError("", frame["file"], int(frame["line"]), frame["function"])
    return None


def script_error(traceback: str) -> ScriptError:
    """Parse a traceback as Python formats it; in a chain of exceptions the last one counts, which was not caught.

    Text that is not a traceback is identified by its last line.
    """
    lines = traceback.strip().splitlines()
    heads = [number for number, line in enumerate(lines) if line == _TRACEBACK_HEADER or line.strip() == _GROUP_HEADER]
    if not heads:
        return ScriptError(lines[-1].strip() if lines else "", "", 0, "")
    bar = _GROUP_PREFIX if lines[heads[-1]] != _TRACEBACK_HEADER else ""
    frames, kind = [], ""
    for line in lines[heads[-1] + 1 :]:
        text = line.removeprefix(bar)
        if found := _FRAME_PATTERN.fullmatch(text):
            frames.append(found)
        elif text and not text.startswith(" "):
            kind = text.partition(":")[0]  # the message's further lines, and notes, come after it
            break
    own = [frame for frame in frames if not any(part in frame["file"] for part in _LIBRARY_PATHS)]
    if not frames:
        return ScriptError(kind, "", 0, "")
    place = (own or frames)[-1]
    return ScriptError(kind, place["file"], int(place["line"]), place["function"] or "")
