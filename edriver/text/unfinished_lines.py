"""Lines that are shown before they have ended: progress bars, which write a carriage return and start the line again.

A terminal shows the state of such a line below all others, and replaces it. Where nothing can be replaced, in a file
or a pipe, a state is written now and then, whole, and once more when the line has ended.
"""

from __future__ import annotations

import os
import re
import unicodedata
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final, Generic, Protocol, TypeVar

from edriver.text.printable import printable

STATE_INTERVAL: Final = 10.0
"""Seconds between two states of a line that are written where they cannot be replaced."""

STALE_AGE: Final = 30.0
"""Seconds without another state after which a line no longer stands below the others: its worker may be gone."""

MAX_STATES_SHOWN: Final = 4
"""Lines without an end that a terminal shows below the others."""

_ESCAPE_SEQUENCES: Final = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|[@-Z\\-_])")
"""Colours, and movements of the cursor, which would spoil the other lines (ECMA-48, 5.3 and 5.4)."""


class _Line(Protocol):
    """An OutputLine of agent.proto, or a WorkerLine of status.proto."""

    @property
    def worker_id(self) -> int: ...
    @property
    def stderr(self) -> bool: ...
    @property
    def text(self) -> bytes: ...
    @property
    def unfinished(self) -> bool: ...


Line = TypeVar("Line", bound=_Line)


@dataclass(slots=True)
class _State(Generic[Line]):
    """The latest state of a line, and what was written of the line last, and when."""

    line: Line
    written: bytes
    written_at: float


class StatesInFile(Generic[Line]):
    """Decides which states of unfinished lines are written where they cannot be replaced. Pure."""

    def __init__(self) -> None:
        self._states: dict[tuple[int, bool], _State[Line]] = {}

    def take(self, line: Line, now: float) -> bool:
        """Whether a line, or a state of one, is to be written now.

        Args:
            line: what a worker has written.
            now: seconds that only grow.
        """
        key = line.worker_id, line.stderr
        state = self._states.get(key)
        if not line.unfinished:
            self._states.pop(key, None)
            return state is None or state.written != line.text
        if state is not None and now - state.written_at < STATE_INTERVAL:
            state.line = line
            return False
        self._states[key] = _State(line, line.text, now)
        return True

    def rest(self) -> list[Line]:
        """The latest states, unless they were written: nothing comes any more."""
        states, self._states = self._states, {}
        return [state.line for state in states.values() if state.line.text != state.written]


class StatesOnTerminal:
    """The states of unfinished lines that a terminal shows below all others. Pure."""

    def __init__(self) -> None:
        self._states: dict[tuple[int, bool], tuple[float, bytes]] = {}  # the latest last

    def take(self, line: _Line, prefixed: bytes, now: float) -> Iterator[bytes]:
        """Take a line, or a state of one; returns the lines that are to be printed above the states.

        Args:
            line: what a worker has written.
            prefixed: how it is printed.
            now: seconds that only grow.
        """
        self._states.pop((line.worker_id, line.stderr), None)
        if not line.unfinished:
            yield prefixed
            return
        self._states[line.worker_id, line.stderr] = now, prefixed
        if len(self._states) > MAX_STATES_SHOWN:
            yield self._states.pop(next(iter(self._states)))[1]

    def stale(self, now: float) -> list[bytes]:
        """States that have not changed for long, which are lines like others from now on."""
        gone = [key for key, (at, _) in self._states.items() if now - at >= STALE_AGE]
        return [self._states.pop(key)[1] for key in gone]

    def rest(self) -> list[bytes]:
        """All states, which are lines like others now: nothing comes any more."""
        states, self._states = self._states, {}
        return [prefixed for _, prefixed in states.values()]

    def rows(self, columns: int) -> list[bytes]:
        """What is shown below the other lines: a row for each state, in the order of workers, narrower than this."""
        return [_row(self._states[key][1], columns - 1) for key in sorted(self._states)]


def can_replace(descriptor: int, environ: Mapping[str, str]) -> bool:
    """Whether what is written there can be removed again: it is a terminal, and not one of the simplest kind."""
    return os.isatty(descriptor) and environ.get("TERM", "").lower() not in ("dumb", "unknown")


def columns_of(descriptor: int) -> int:
    """How wide a terminal is."""
    try:
        return os.get_terminal_size(descriptor).columns or 80
    except OSError:
        return 80


def erased(drawn: bytes) -> bytes:
    """What removes rows that were drawn, with the cursor at the end of the last: back to where they begin."""
    rows = drawn.count(b"\n")
    return (b"\r\x1b[%dA\x1b[J" % rows if rows else b"\r\x1b[J") if drawn else b""


def _row(line: bytes, columns: int) -> bytes:
    """A line without its end and without what acts on a terminal, cut to this width."""
    text = printable(_ESCAPE_SEQUENCES.sub("", line.decode(errors="replace").rstrip("\n"))).replace("\t", " ")
    left = max(1, columns)
    shown = []
    for character in text:
        left -= 2 if unicodedata.east_asian_width(character) in "WF" else 0 if unicodedata.combining(character) else 1
        if left < 0:
            break
        shown.append(character)
    return "".join(shown).encode(errors="replace")
