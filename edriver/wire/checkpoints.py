"""Checkpoints in memory, to and from their messages.

Workers read these. What is an order or an event of the core is in orders.py and reports.py: to make the types of all of
them takes 60 ms, which a worker has no time for while it boots.
"""

from __future__ import annotations

from typing import Final

from edriver.model.memory_checkpoint import (
    CheckpointId,
    DiskReport,
    DiskTarget,
    DiskWrite,
    MemoryCheckpoint,
    Refusal,
    Shard,
)
from edriver.v1 import checkpoints_pb2, rounds_pb2
from edriver.wire.conversion import duration, round_id_message, round_id_of, span_seconds

_REFUSALS: Final = {
    Refusal.TOO_LARGE: checkpoints_pb2.REFUSAL_TOO_LARGE,
    Refusal.BUSY: checkpoints_pb2.REFUSAL_BUSY,
    Refusal.COMMITTED: checkpoints_pb2.REFUSAL_COMMITTED,
    Refusal.OUTDATED: checkpoints_pb2.REFUSAL_OUTDATED,
}


def refusal_message(refusal: Refusal) -> checkpoints_pb2.Refusal.ValueType:
    """Why there is no memory, as it goes over the wire."""
    return _REFUSALS[refusal]


def refusal_of(message: checkpoints_pb2.Refusal.ValueType) -> Refusal | None:
    """Why there is no memory; None: there is, or a later release knows why."""
    return next((refusal for refusal, number in _REFUSALS.items() if number == message), None)


def checkpoint_id_message(checkpoint: CheckpointId) -> rounds_pb2.CheckpointId:
    """The name of a checkpoint as it goes over the wire."""
    round_id = round_id_message(checkpoint.round_id)
    return rounds_pb2.CheckpointId(round_id=round_id, step=checkpoint.step, size=checkpoint.size)


def checkpoint_id_of(message: rounds_pb2.CheckpointId) -> CheckpointId:
    """The checkpoint that a message names."""
    return CheckpointId(round_id_of(message.round_id), message.step, message.size)


def shard_message(shard: Shard) -> checkpoints_pb2.Shard:
    """A shard as it goes over the wire."""
    return checkpoints_pb2.Shard(
        checkpoint=checkpoint_id_message(shard.checkpoint),
        rank=shard.rank,
        layout=shard.layout,
        bytes=shard.nbytes,
        copy=shard.copy,
        disk=None if shard.disk is None else disk_target_message(shard.disk),
        save_time=duration(shard.save_seconds) if shard.save_seconds else None,
    )


def shard_of(message: checkpoints_pb2.Shard) -> Shard:
    """The shard that a message describes."""
    disk = disk_target_of(message.disk) if message.HasField("disk") else None
    return Shard(
        checkpoint_id_of(message.checkpoint),
        message.rank,
        message.layout,
        message.bytes,
        message.copy,
        disk,
        span_seconds(message.save_time),
    )


def disk_target_message(target: DiskTarget) -> checkpoints_pb2.DiskTarget:
    """Where on disk a checkpoint belongs, as it goes over the wire."""
    return checkpoints_pb2.DiskTarget(
        location=target.location, keep=target.keep, interpreter=target.interpreter, due=target.due
    )


def disk_target_of(message: checkpoints_pb2.DiskTarget) -> DiskTarget:
    """Where on disk a message says that a checkpoint belongs."""
    return DiskTarget(message.location, max(1, message.keep), message.interpreter, message.due)


def disk_report_message(report: DiskReport | None) -> checkpoints_pb2.DiskReport | None:
    """How far a host is with what it writes to disk, as it goes over the wire."""
    if report is None:
        return None
    return checkpoints_pb2.DiskReport(
        number=report.number,
        name=report.name,
        written=report.written,
        sealed=report.sealed,
        trouble=report.trouble,
    )


def disk_write_of(message: checkpoints_pb2.KeepCheckpoints) -> DiskWrite | None:
    """What an order says a host is to write to disk."""
    if not message.HasField("disk"):
        return None
    write = message.disk
    checkpoint, target = checkpoint_id_of(write.checkpoint), disk_target_of(write.target)
    ranks = tuple(write.ranks)
    return DiskWrite(write.number, checkpoint, write.layout, ranks, target, write.name, write.seal, write.urgent)


def memory_checkpoint_message(start: MemoryCheckpoint | None) -> rounds_pb2.MemoryCheckpoint | None:
    """The checkpoint that a round starts from, as it goes over the wire."""
    if start is None:
        return None
    return rounds_pb2.MemoryCheckpoint(
        checkpoint=checkpoint_id_message(start.checkpoint),
        layout=start.layout,
        addresses=start.addresses,
        holders=start.holders,
    )


def memory_checkpoint_of(shared: rounds_pb2.RoundAssignment) -> MemoryCheckpoint | None:
    """The checkpoint that a round starts from; None if there is none.

    Raises:
        ValueError: a holder is not among the addresses, or not each rank has one.
    """
    if not shared.HasField("memory_checkpoint"):
        return None
    message = shared.memory_checkpoint
    checkpoint, holders = checkpoint_id_of(message.checkpoint), tuple(message.holders)
    if len(holders) != checkpoint.size or max(holders, default=0) >= len(message.addresses):
        raise ValueError("a round's checkpoint does not say who has its shards")
    return MemoryCheckpoint(checkpoint, message.layout, tuple(message.addresses), holders)
