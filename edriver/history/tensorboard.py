"""A run's samples as TensorBoard reads them. Only here is the package `tensorboard` imported; it needs no torch."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from edriver.runview.progress_rows import ProgressRow
from edriver.system.private_files import open_private

OWN_TAGS: Final = "edriver/"
"""What the tags begin with that no script has reported."""


def write_events(path: Path, samples: Sequence[ProgressRow], about: str) -> int:
    """Write an event file, in place of one that is there; returns how many points it has.

    Steps that were made again are left out, and each step has one point. Steps of a script's later calls of `run` are
    counted on from those before. Values are single precision, as TensorBoard's are.

    Args:
        path: where.
        samples: the run's.
        about: what the run was, in Markdown.

    Raises:
        ImportError: the package tensorboard is missing.
        OSError: the file cannot be written.
    """
    from tensorboard.compat.proto import event_pb2
    from tensorboard.summary.writer.record_writer import RecordWriter

    written = 0
    unfinished = path.with_name(f".{path.name}.new")
    with os.fdopen(open_private(unfinished, os.O_TRUNC), "wb") as file:
        writer = RecordWriter(file)
        start = samples[0].time if samples else 0.0
        writer.write(event_pb2.Event(wall_time=start, file_version="brain.Event:2").SerializeToString())
        writer.write(event_pb2.Event(wall_time=start, summary=_text("edriver/run", about)).SerializeToString())
        for step, sample in _counted(samples):
            summary = _scalars(sample)
            written += len(summary.value)
            writer.write(event_pb2.Event(wall_time=sample.time, step=step, summary=summary).SerializeToString())
        writer.flush()
    unfinished.replace(path)
    return written


def _counted(samples: Sequence[ProgressRow]) -> Iterator[tuple[int, ProgressRow]]:
    """The samples whose steps count, each step once, with its number over all calls."""
    before, last, call = 0, -1, 0
    for sample in samples:
        if sample.undone:
            continue
        if sample.call != call:
            before, call = last, sample.call
        if before + sample.step > last:
            last = before + sample.step
            yield last, sample


def _scalars(sample: ProgressRow) -> Any:
    from tensorboard.compat.proto import summary_pb2

    own = {"workers": sample.workers, "steps_per_second": sample.step_rate}
    if sample.samples is not None:
        own["samples_per_second"] = sample.sample_rate
    if sample.goodput is not None:
        own["goodput"] = sample.goodput
    values = {**sample.reported, **{f"{OWN_TAGS}{name}": value for name, value in own.items()}}
    return summary_pb2.Summary(
        value=[summary_pb2.Summary.Value(tag=tag, simple_value=value) for tag, value in values.items()]
    )


def _text(tag: str, markdown: str) -> Any:
    from tensorboard.compat.proto import summary_pb2, tensor_pb2, types_pb2

    metadata = summary_pb2.SummaryMetadata(plugin_data=summary_pb2.SummaryMetadata.PluginData(plugin_name="text"))
    tensor = tensor_pb2.TensorProto(dtype=types_pb2.DT_STRING, string_val=[markdown.encode()])
    return summary_pb2.Summary(value=[summary_pb2.Summary.Value(tag=tag, metadata=metadata, tensor=tensor)])
