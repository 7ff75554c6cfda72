"""HOROVOD_RANK and the like in a worker's environment, as horovodrun sets them.

horovodrun knows them when it starts a process, and leaves them as they are. A worker of edriver has no rank before its
first round, and another one in another round: they are set by `init`, and kept up to date from round to round.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, MutableMapping

from edriver.horovod import basics
from edriver.worker import context


def follow_rounds(environ: Mapping[str, str]) -> None:
    """In a worker of a run, have os.environ say now, and in each later round, what rank() and the like answer."""
    if "EDRIVER_WORKER_ID" not in environ:
        return
    context.current.place.listen(_show)
    _show()


def _show() -> None:
    if basics.is_initialized():
        show(os.environ)


def show(environ: MutableMapping[str, str]) -> None:
    """Say where this worker stands in its environment."""
    place = basics.place()
    environ["HOROVOD_RANK"] = str(place.rank)
    environ["HOROVOD_SIZE"] = str(place.size)
    environ["HOROVOD_LOCAL_RANK"] = str(place.local_rank)
    environ["HOROVOD_LOCAL_SIZE"] = str(place.local_size)
    environ["HOROVOD_CROSS_RANK"] = str(place.cross_rank)
    environ["HOROVOD_CROSS_SIZE"] = str(place.cross_size)
    environ["HOROVOD_HOSTNAME"] = environ["EDRIVER_HOST"]
