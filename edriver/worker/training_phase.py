"""What this worker is doing between two boundaries, as far as its script and the rounds declare it.

    with edriver.phase("eval"):
        evaluate(model)

A script declares what takes longer than a step; the rest is known.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from edriver.model.stall_limits import Phase
from edriver.worker import context


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
    current = context.current.phase
    before = current.change(chosen)
    try:
        yield
    finally:
        current.change(before)
