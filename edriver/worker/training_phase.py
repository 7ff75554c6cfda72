"""What this worker is doing between two boundaries, as far as its script and the rounds declare it.

    with edriver.phase("eval"):
        evaluate(model)

A script declares what takes longer than a step; the rest is known.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from edriver.common.stall_limits import Phase


class _Current:
    """The phase of this process's training thread. Others read it at any time.

    Attributes:
        phase: what it is doing.
        changes: how often that has changed.
        show: called with each new phase, and with None when a round is left.
    """

    def __init__(self) -> None:
        self.phase = Phase.STEP
        self.changes = 0
        self.show: Callable[[Phase | None], None] = lambda _phase: None

    def change(self, phase: Phase) -> Phase:
        """Begin a phase; returns the one before."""
        before, self.phase = self.phase, phase
        self.changes += 1
        self.show(phase)
        return before


current = _Current()


@contextmanager
def phase(name: str) -> Iterator[None]:
    """Declare what the enclosed code does, so that it may take as long as `--stall-timeout` gives that.

    Args:
        name: "eval" or "save"; also "init", "step" or "commit", which the rounds declare by themselves.

    Raises:
        ValueError: there is no such phase.
    """
    try:
        chosen = Phase(name)
    except ValueError:
        raise ValueError(f"there is no phase {name!r}: it is one of {', '.join(Phase)}") from None
    before = current.change(chosen)
    try:
        yield
    finally:
        current.change(before)
