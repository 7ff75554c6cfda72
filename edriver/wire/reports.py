"""What agents and workers report, as the core's events."""

from __future__ import annotations

import signal
from typing import Final

from edriver.model import events
from edriver.model.cause import AGENT_KNOWN, CauseKind, NoBoundary, NotFinite
from edriver.model.memory_checkpoint import CheckpointId, DiskReport, Shard
from edriver.model.mode import CheckpointWay
from edriver.model.script_error import crash_place, script_place
from edriver.v1 import agent_pb2, cause_pb2, checkpoints_pb2, notification_pb2
from edriver.wire.checkpoints import shard_of
from edriver.wire.conversion import (
    epoch_seconds,
    held_shards_of,
    round_id_of,
    round_times_of,
    span_seconds,
    store_address_of,
    version_of,
)

_CHECKPOINT_WAYS: Final = {
    notification_pb2.CHECKPOINT_WAY_SIGNAL: CheckpointWay.SIGNAL,
    notification_pb2.CHECKPOINT_WAY_CALL: CheckpointWay.CALL,
}

STACKS_ON_STDERR: Final = "its standard error says where each thread stands (native code keeps the interpreter's lock)"
"""What people read in place of the stack traces of a worker that could not take them itself."""


def event_of_report(worker_id: int, report: notification_pb2.Report) -> events.Event | None:
    """The event that a worker's report stands for; None for one that does not concern the core."""
    match report.WhichOneof("kind"):
        case "worker_waiting":
            waiting = report.worker_waiting
            return events.WorkerWaiting(
                worker_id,
                waiting.ordinal,
                version_of(waiting.version),
                store_address_of(waiting.store),
                waiting.digest,
                waiting.steps_lost,
                waiting.torn,
                waiting.checkpoint_steps if waiting.HasField("checkpoint_steps") else None,
                script_place(waiting.left_at),
                version_of(waiting.sealed) if waiting.HasField("sealed") else None,
                waiting.gradient_norm if waiting.HasField("gradient_norm") else None,
                tuple(map(held_shards_of, waiting.shards)),
            )
        case "boundary_reached":
            reached = report.boundary_reached
            way = _CHECKPOINT_WAYS.get(reached.checkpoint_way, CheckpointWay.NONE)
            round_id = round_id_of(reached.round_id)
            return events.BoundaryReached(worker_id, round_id, reached.number, reached.boundaries, way)
        case "checkpoint_saved":
            return events.CheckpointSaved(worker_id, round_id_of(report.checkpoint_saved.round_id))
        case "checkpoint_written":
            return events.CheckpointWritten(worker_id, report.checkpoint_written.number)
        case "worker_done":
            return events.WorkerDone(worker_id, round_id_of(report.worker_done.round_id), report.worker_done.boundaries)
        case "collective_raised":
            raised = report.collective_raised
            return events.CollectiveRaised(worker_id, round_id_of(raised.round_id), raised.traceback)
        case "peer_unproven":
            unproven = report.peer_unproven
            return events.PeerUnproven(worker_id, round_id_of(unproven.round_id), unproven.reason)
        case "first_boundary_passed":
            passed = report.first_boundary_passed
            times = round_times_of(passed.times)
            return events.FirstBoundaryPassed(worker_id, round_id_of(passed.round_id), times, passed.digest)
        case "state_digest":
            state = report.state_digest
            return events.StateDigest(worker_id, round_id_of(state.round_id), state.boundaries, state.digest)
        case "worker_stalled":
            stall = report.worker_stalled
            round_id = round_id_of(stall.round_id)
            stacks = STACKS_ON_STDERR if stall.HasField("stacks_on_stderr") else stall.stacks
            return events.WorkerStalled(worker_id, round_id, stall.phase, span_seconds(stall.duration), stacks)
        case "worker_idle":
            idle = report.worker_idle
            return events.WorkerIdle(worker_id, round_id_of(idle.round_id), span_seconds(idle.duration))
        case "worker_blocked":
            blocked = report.worker_blocked
            round_id = round_id_of(blocked.round_id)
            return events.WorkerBlocked(worker_id, round_id, blocked.boundaries, span_seconds(blocked.duration))
        case "worker_stuck":
            return events.WorkerStuck(worker_id, round_id_of(report.worker_stuck.round_id))
        case "sources_loaded":
            files = (
                events.SourceFile(file.name, file.digest, epoch_seconds(file.modify_time))
                for file in report.sources_loaded.files
            )
            return events.SourcesLoaded(worker_id, tuple(files))
        case "script_warning":
            return _script_warned(worker_id, report.script_warning)
        case "worker_failed":
            return events.WorkerFailed(worker_id, report.worker_failed.traceback, report.worker_failed.rejoins)
        case _:
            return None


_ABORT_CODES: Final = (-signal.SIGABRT, 128 + signal.SIGABRT)

MISMATCH_MARK: Final = "op.preamble.length <= op.nbytes"
"""In Gloo's last words when more data arrives than the collective that was called takes: that of another collective
(gloo/transport/tcp/pair.cc). It is raised on a thread of Gloo's, which ends the process."""


def _script_warned(worker_id: int, message: notification_pb2.ScriptWarning) -> events.ScriptWarned | None:
    """What a worker has seen of its script; None: only later releases know it."""
    warning: NoBoundary | NotFinite | events.BatchesDrawn
    match message.WhichOneof("kind"):
        case "no_boundary":
            warning = NoBoundary(message.no_boundary.steps, message.place, message.no_boundary.returned)
        case "batches_drawn":
            drawn = message.batches_drawn
            warning = events.BatchesDrawn(drawn.source, message.place, drawn.digest)
        case "not_finite":
            warning = NotFinite(message.not_finite.name, str(message.not_finite.value), message.place)
        case _:
            return None
    return events.ScriptWarned(worker_id, round_id_of(message.round_id), message.boundaries, warning)


_EXIT_REASONS: Final = {cause_pb2.CauseKind.Value(f"CAUSE_KIND_{kind.name}"): kind for kind in AGENT_KNOWN}


def exit_of(exited: agent_pb2.WorkerExited) -> events.WorkerExited:
    """The event that an agent's report of a worker's end stands for."""
    return events.WorkerExited(
        exited.worker_id,
        exited.code,
        exited.tail,
        epoch_seconds(exited.reap_time),
        _exit_reason(exited),
        _recorded_error(exited),
        crash_place(exited.crash_stacks) if exited.crash_stacks else None,
        exited.step,
    )


def _exit_reason(exited: agent_pb2.WorkerExited) -> events.ExitReason | None:
    """What an agent knows of a worker's end beyond its exit code; None: nothing, or no such thing."""
    if exited.code in _ABORT_CODES and MISMATCH_MARK in exited.tail:
        return events.ExitReason(CauseKind.COLLECTIVES_DIFFER)
    cause = exited.cause
    kind = _EXIT_REASONS.get(cause.kind)
    if kind is None:
        return None
    return events.ExitReason(kind, cause.detail, cause.memory_limit if cause.HasField("memory_limit") else None)


def _recorded_error(exited: agent_pb2.WorkerExited) -> events.RecordedError | None:
    """What was in a worker's error file; None: there was none."""
    if not exited.HasField("recorded_error"):
        return None
    recorded = exited.recorded_error
    return events.RecordedError(recorded.traceback, epoch_seconds(recorded.record_time))


def checkpoints_held(
    host: str, agent_id: int, message: checkpoints_pb2.HostCheckpoints
) -> events.CheckpointsHeld | events.CheckpointServerEnded:
    """What a host holds, as an event. Shards that cannot be are left out."""
    if message.ended or not message.address:  # without an address: an agent of a release before `ended`
        return events.CheckpointServerEnded(host, agent_id)
    shards: dict[tuple[CheckpointId, int, bytes], Shard] = {}
    for shard in map(shard_of, message.shards):
        if shard.rank < shard.checkpoint.size:
            shards.setdefault((shard.checkpoint, shard.rank, shard.layout), shard)
    return events.CheckpointsHeld(
        host,
        agent_id,
        message.address,
        tuple(shards.values()),
        message.used,
        message.limit,
        message.trouble,
        _disk_report_of(message),
    )


def _disk_report_of(message: checkpoints_pb2.HostCheckpoints) -> DiskReport | None:
    if not message.HasField("disk"):
        return None
    report = message.disk
    return DiskReport(report.number, report.name, report.written, report.sealed, report.trouble)
