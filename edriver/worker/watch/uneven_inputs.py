"""torch's Join, under which ranks have unequal numbers of batches: one that is out of data passes no boundaries."""

from __future__ import annotations

import functools
import logging
from types import TracebackType

from torch.distributed.algorithms.join import Join

from edriver.worker import context

logger = logging.getLogger("edriver.worker")

_entered: list[Join] = []


@functools.cache
def watch_joins() -> None:
    """From now on `say_joined` knows whether this process is inside a Join."""
    enter, leave = Join.__enter__, Join.__exit__

    @functools.wraps(enter)
    def entered(self: Join) -> object:
        _entered.append(self)
        return enter(self)  # type: ignore[no-untyped-call]

    @functools.wraps(leave)
    def left(
        self: Join, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> object:
        if self in _entered:
            _entered.remove(self)
        return leave(self, kind, error, traceback)

    Join.__enter__ = entered  # type: ignore[method-assign]
    Join.__exit__ = left  # type: ignore[method-assign]


def say_joined() -> None:
    """Warn, on rank 0, if a boundary is passed inside a Join."""
    if _entered and context.assignment().rank == 0:
        _warn()


@functools.cache
def _warn() -> None:
    logger.warning(
        "edriver: boundaries are passed inside torch's Join, so ranks make unequal numbers of steps: one without data "
        "passes none, and when workers come or go it takes over the state of a rank that has made more. Have all ranks "
        "make equally many steps instead: edriver.ElasticSampler gives each as many batches"
    )
