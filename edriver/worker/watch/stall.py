"""Stalls: a worker that lives and answers, and makes no progress.

Progress is a boundary, or a change of phase. A thread in a collective waits for other members, and is not to blame: so
no worker has to know of another. If all wait for one another, because they disagree on which collective comes next, the
collective's own timeout ends that (training_thread.py).

The worker looks at each sign of life that it gives: whether it has had no boundary and no change of phase for longer
than that phase may last (`--stall-timeout`). It reports where it stands, and the driver prints that.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass

from edriver.common.lease import Lease
from edriver.model.stall_limits import Phase
from edriver.text.printable import printable_line
from edriver.text.wire_text import wire_text
from edriver.worker.backend.interpreter import format_stack, frames
from edriver.worker.watch.stuck import in_collective

MAX_CHECK_INTERVAL = 3.0
"""Most seconds between two looks. A gap that is longer counts as two of these: this process itself stood still."""

MAX_STACKS_LENGTH = 64 * 1024
"""Most characters of stacks that are reported."""


@dataclass(frozen=True, slots=True)
class StallReport:
    """A worker has made no progress for too long.

    Attributes:
        phase: what it was doing,
        seconds: and for how long.
        stacks: where each of its threads stood, the training thread first.
    """

    phase: Phase
    seconds: float
    stacks: str


class StallWatch:
    """Looks at the training thread again and again, and says when it has made no progress for too long.

    Args:
        thread: the training thread.
        limits: seconds that each phase may last; a phase that is not in it, or has 0, may last for ever.
        clock: seconds, monotonic.
    """

    def __init__(
        self, thread: threading.Thread, limits: Mapping[str, float], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._thread = thread
        self._limits = limits
        self._silence = Lease(0.0, clock, MAX_CHECK_INTERVAL)
        self._progress: Hashable = None

    def look(self, progress: Hashable, phase: Phase) -> StallReport | None:
        """Look once; a stall is reported once, and again after the same time.

        Args:
            progress: changes whenever the worker has made progress.
            phase: what it is doing.
        """
        if progress != self._progress:
            self._progress = progress
            self._silence.renew()
            return None
        self._silence.tick()
        limit, seconds = self._limits.get(phase, 0.0), self._silence.silence
        if not limit or seconds < limit:
            return None
        if self._thread.ident is None or in_collective(self._thread.ident):
            return None
        self._silence.renew()
        return StallReport(phase, seconds, stacks(self._thread))


def stacks(first: threading.Thread) -> str:
    """Where each thread of this process stands, except the one that asks."""
    at = frames()
    threads = {thread.ident: thread for thread in threading.enumerate()}
    order = sorted(at, key=lambda ident: ident != first.ident)
    texts = []
    for ident in order:
        name = threads[ident].name if ident in threads else str(ident)
        texts.append(f"thread {printable_line(name)}:\n{format_stack(at[ident])}")
    return wire_text("\n".join(texts), MAX_STACKS_LENGTH)
