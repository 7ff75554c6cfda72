"""What a training thread does, as its Python frames and the kernel tell it."""

from __future__ import annotations

from functools import cache
from types import FrameType
from typing import Final

from edriver.v1 import pace_pb2
from edriver.worker.backend.interpreter import callers
from edriver.worker.backend.torch_code import loads_data
from edriver.worker.watch.script_location import PACKAGE_ROOT
from edriver.worker.watch.stuck import file_waits_for_peers

MAX_FRAMES: Final = 60
"""Frames that are looked at, the innermost."""

_OUR_LOADERS: Final = ("/worker/sampler/", "/integrations/datasets.py")
"""Files of edriver in which data is read."""

_waits_for_peers = cache(file_waits_for_peers)


@cache
def _loads_data(filename: str) -> bool:
    return loads_data(filename) or (
        filename.startswith(PACKAGE_ROOT) and any(part in filename for part in _OUR_LOADERS)
    )


def activity_of(frame: FrameType, asleep: bool) -> pace_pb2.WorkerActivity.ValueType:
    """What a thread does.

    Args:
        frame: its innermost Python frame.
        asleep: whether the thread sleeps (proc(5): S). One that computes in a collective's function does not wait: in
            the backward pass both happen there.
    """
    if asleep and _waits_for_peers(frame.f_code.co_filename):
        return pace_pb2.WORKER_ACTIVITY_WAITING
    if any(_loads_data(at.f_code.co_filename) for at in callers(frame, MAX_FRAMES)):
        return pace_pb2.WORKER_ACTIVITY_LOADING
    return pace_pb2.WORKER_ACTIVITY_COMPUTING


def may_wait(frame: FrameType) -> bool:
    """Whether it waits for other members if it is asleep."""
    return _waits_for_peers(frame.f_code.co_filename)
