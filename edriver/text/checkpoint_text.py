"""The newest checkpoints in memory, and on disk, in words."""

from __future__ import annotations

from collections.abc import Iterable

from edriver.text.progress_text import length_text, time_text
from edriver.text.usage_text import bytes_text
from edriver.v1 import status_pb2
from edriver.wire.conversion import epoch_seconds, span_seconds


def checkpoints_text(checkpoints: Iterable[status_pb2.CheckpointStatus], now: float) -> str:
    """Which step they are of, how old and how large they are, and how long it took to save them, and to copy them.

    Args:
        checkpoints: those of a run.
        now: the time, in seconds since the epoch.
    """
    texts = []
    for checkpoint in checkpoints:
        age = time_text(max(0.0, now - epoch_seconds(checkpoint.time)))
        if checkpoint.place == status_pb2.CHECKPOINT_PLACE_MEMORY:
            saved = (
                f", saved in {length_text(span_seconds(checkpoint.save_time))}"
                if checkpoint.HasField("save_time")
                else ""
            )
            texts.append(f"step {checkpoint.step:,}, {age} old, {bytes_text(checkpoint.bytes)}{saved}")
        elif checkpoint.place == status_pb2.CHECKPOINT_PLACE_COPIES:
            texts.append(
                f"that of step {checkpoint.step:,}, {age} old, is in the memory of other hosts, too{_delay(checkpoint)}"
            )
        elif checkpoint.place == status_pb2.CHECKPOINT_PLACE_DISK:
            texts.append(f"that of step {checkpoint.step:,}, {age} old, is on disk{_delay(checkpoint)}")
        elif checkpoint.place == status_pb2.CHECKPOINT_PLACE_WRITING:
            texts.append(f"that of step {checkpoint.step:,} is being written to disk, for {age} so far")
    return "; ".join(texts)


def _delay(checkpoint: status_pb2.CheckpointStatus) -> str:
    return f", {length_text(span_seconds(checkpoint.delay))} after its save" if checkpoint.HasField("delay") else ""
