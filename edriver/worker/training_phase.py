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
    """Declare the phase of the enclosed code, so that `--stall-timeout PHASE=SECONDS` applies to it.

    Args:
        name: "eval" or "save"; also "init", "step" or "commit", which edriver declares on its own.

    Raises:
        ValueError: there is no phase of this name.
    """
    try:
        chosen = Phase(name)
    except ValueError:
        raise ValueError(f"unknown phase {name!r}: choose one of {', '.join(Phase)}") from None
    current = context.current.phase
    before = current.change(chosen)
    try:
        yield
    finally:
        current.change(before)
