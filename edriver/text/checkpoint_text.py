"""The newest checkpoints in memory, and on disk, in words."""

from __future__ import annotations

from collections.abc import Iterable

from edriver.text.progress_text import time_text
from edriver.text.usage_text import bytes_text
from edriver.v1 import status_pb2
from edriver.wire.conversion import epoch_seconds


def checkpoints_text(checkpoints: Iterable[status_pb2.CheckpointStatus], now: float) -> str:
    """Which step they are of, how old they are, and how large.

    Args:
        checkpoints: those of a run.
        now: the time, in seconds since the epoch.
    """
    texts = []
    for checkpoint in checkpoints:
        age = time_text(max(0.0, now - epoch_seconds(checkpoint.time)))
        if checkpoint.place == status_pb2.CHECKPOINT_PLACE_MEMORY:
            texts.append(f"step {checkpoint.step:,}, {age} old, {bytes_text(checkpoint.bytes)}")
        elif checkpoint.place == status_pb2.CHECKPOINT_PLACE_COPIES:
            texts.append(f"that of step {checkpoint.step:,}, {age} old, is in the memory of other hosts, too")
        elif checkpoint.place == status_pb2.CHECKPOINT_PLACE_DISK:
            texts.append(f"that of step {checkpoint.step:,}, {age} old, is on disk")
    return "; ".join(texts)
