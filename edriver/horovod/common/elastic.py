"""`horovod.common.elastic`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from edriver.horovod.elastic.run import run
from edriver.horovod.elastic.state import HostUpdateResult as HostUpdateResult
from edriver.horovod.elastic.state import ObjectState as ObjectState
from edriver.horovod.elastic.state import State as State
from edriver.horovod.errors import HorovodInternalError as HorovodInternalError
from edriver.worker.errors import HostsUpdatedInterrupt as HostsUpdatedInterrupt

R = TypeVar("R")


def run_fn(func: Callable[..., R], reset: Callable[[], object]) -> Callable[..., R | None]:
    """Make a training function elastic: see `elastic.run`.

    Args:
        func: the function.
        reset: not called: what Horovod does with it (shutdown and init), a round's start does here.

    Raises:
        TypeError: the function is an async function or a generator function.
    """
    del reset
    return run(func)
