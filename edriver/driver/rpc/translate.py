"""Between the core's events and actions and the messages on the wire; no decisions."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Final

from edriver.driver.observe.cause_message import cause_with_text
from edriver.driver.worker_logs import StreamChoice, Streams, WorkerLogs
from edriver.model import actions, events
from edriver.model.cause import CauseKind
from edriver.model.mode import CheckpointWay
from edriver.model.plan import RoundPlan
from edriver.model.records import Worker
from edriver.v1 import agent_pb2, cause_pb2, notification_pb2, rounds_pb2
from edriver.wire.conversion import (
    RANK_FIELDS,
    duration,
    epoch_seconds,
    round_id_message,
    round_id_of,
    round_times_of,
    span_seconds,
    store_address_message,
    store_address_of,
    timestamp,
    version_of,
)

_CHECKPOINT_WAYS: Final = {
    notification_pb2.CHECKPOINT_WAY_SIGNAL: CheckpointWay.SIGNAL,
    notification_pb2.CHECKPOINT_WAY_CALL: CheckpointWay.CALL,
}

_STREAMS: Final = {
    Streams.NONE: agent_pb2.STREAMS_UNSPECIFIED,
    Streams.STDOUT: agent_pb2.STREAMS_STDOUT,
    Streams.STDERR: agent_pb2.STREAMS_STDERR,
    Streams.BOTH: agent_pb2.STREAMS_BOTH,
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
            )
        case "boundary_reached":
            reached = report.boundary_reached
            way = _CHECKPOINT_WAYS.get(reached.checkpoint_way, CheckpointWay.NONE)
            round_id = round_id_of(reached.round_id)
            return events.BoundaryReached(worker_id, round_id, reached.number, reached.boundaries, way)
        case "checkpoint_saved":
            return events.CheckpointSaved(worker_id, round_id_of(report.checkpoint_saved.round_id))
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
        case "worker_failed":
            return events.WorkerFailed(worker_id, report.worker_failed.traceback, report.worker_failed.rejoins)
        case _:
            return None


_EXIT_REASONS: Final = {
    cause_pb2.CAUSE_KIND_NOT_STARTED: CauseKind.NOT_STARTED,
    cause_pb2.CAUSE_KIND_OUT_OF_MEMORY: CauseKind.OUT_OF_MEMORY,
    cause_pb2.CAUSE_KIND_MAYBE_OUT_OF_MEMORY: CauseKind.MAYBE_OUT_OF_MEMORY,
}
"""What an agent can know of a worker's end."""


def exit_reason_of(exited: agent_pb2.WorkerExited) -> events.ExitReason | None:
    """What an agent knows of a worker's end beyond its exit code; None: nothing, or no such thing."""
    cause = exited.cause
    kind = _EXIT_REASONS.get(cause.kind)
    if kind is None:
        return None
    return events.ExitReason(kind, cause.detail, cause.memory_limit if cause.HasField("memory_limit") else None)


def worker_logs_message(logs: WorkerLogs) -> agent_pb2.WorkerLogs:
    """Where workers' output goes, for the agents."""
    return agent_pb2.WorkerLogs(
        folder=logs.folder,
        redirects=_stream_choice(logs.redirects),
        tee=_stream_choice(logs.tee),
        shown_local_ranks=logs.shown_local_ranks,
    )


def _stream_choice(choice: StreamChoice) -> agent_pb2.StreamChoice:
    named = {rank: _STREAMS[streams] for rank, streams in choice.by_local_rank.items()}
    return agent_pb2.StreamChoice(by_local_rank=named, others=_STREAMS[choice.others])


def recorded_error_of(exited: agent_pb2.WorkerExited) -> events.RecordedError | None:
    """What was in a worker's error file; None: there was none."""
    if not exited.HasField("recorded_error"):
        return None
    recorded = exited.recorded_error
    return events.RecordedError(recorded.traceback, epoch_seconds(recorded.record_time))


Notified = (
    actions.HostsUpdated
    | actions.StopAt
    | actions.GoOn
    | actions.Abort
    | actions.Finish
    | actions.Leave
    | actions.Skip
    | actions.FindNewestCheckpoint
)
"""What members of a round, or workers that wait for one, get as a notice."""


def orders_of(
    action: actions.Action, workers: Mapping[int, Worker], now: float, draw_secret: Callable[[], bytes]
) -> Iterator[tuple[str, agent_pb2.ConnectResponse]]:
    """The messages that an action comes to, each with the host it goes to.

    Args:
        action: the core's action; one that concerns no worker (StartAgent, Explain, ...) yields nothing.
        workers: those that have not ended, by worker_id; others get no message.
        now: the wall clock, in seconds since the epoch.
        draw_secret: draws the secret of a round, which is the same for all of its hosts and appears nowhere else.
    """
    match action:
        case actions.StartWorker(worker_id, host, slot, background):
            start = agent_pb2.StartWorker(worker_id=worker_id, slot=slot, background=background)
            yield host, agent_pb2.ConnectResponse(start_worker=start)
        case actions.StopWorker(worker_id, host, grace):
            stop = agent_pb2.StopWorker(worker_id=worker_id, grace=duration(grace))
            yield host, agent_pb2.ConnectResponse(stop_worker=stop)
        case RoundPlan():
            for host, message in assignments_by_host(action, draw_secret()):
                yield host, agent_pb2.ConnectResponse(assign_round=message)
        case _ if isinstance(action, Notified):
            addressed, notice = notice_of(action, now)
            by_host: dict[str, list[int]] = {}
            for worker_id in addressed:
                if (worker := workers.get(worker_id)) is not None:
                    by_host.setdefault(worker.host, []).append(worker_id)
            for host, on_host in by_host.items():
                deliver = agent_pb2.DeliverNotice(worker_ids=on_host, notice=notice)
                yield host, agent_pb2.ConnectResponse(deliver_notice=deliver)


def notice_of(action: Notified, now: float) -> tuple[tuple[int, ...], notification_pb2.Notice]:
    """The workers that an action addresses, and the notice that they get.

    Args:
        action: the order.
        now: the wall clock, in seconds since the epoch, for HostsUpdated.
    """
    pb = notification_pb2
    match action:
        case actions.HostsUpdated(workers, round_id, number, result):
            return workers, pb.Notice(
                hosts_updated=pb.HostsUpdated(
                    round_id=round_id_message(round_id),
                    number=number,
                    result=rounds_pb2.HostUpdateResult.ValueType(int(result)),
                    timestamp=timestamp(now),
                )
            )
        case actions.StopAt(workers, round_id, number, boundary):
            return workers, pb.Notice(
                stop_at=pb.StopAt(round_id=round_id_message(round_id), number=number, boundary=boundary)
            )
        case actions.GoOn(workers, round_id, number):
            return workers, pb.Notice(go_on=pb.GoOn(round_id=round_id_message(round_id), number=number))
        case actions.Abort(workers, round_id, cause):
            why = cause_with_text(cause)
            return workers, pb.Notice(abort=pb.Abort(round_id=round_id_message(round_id), cause=why))
        case actions.Finish(workers, round_id):
            return workers, pb.Notice(finish=pb.Finish(round_id=round_id_message(round_id)))
        case actions.Leave(worker_id):
            return (worker_id,), pb.Notice(leave=pb.Leave())
        case actions.Skip(worker_id, ordinal):
            return (worker_id,), pb.Notice(skip=pb.Skip(ordinal=ordinal))
        case actions.FindNewestCheckpoint(workers):
            return workers, pb.Notice(find_newest_checkpoint=pb.FindNewestCheckpoint())


def assignments_by_host(plan: RoundPlan, secret: bytes) -> Iterator[tuple[str, agent_pb2.AssignRound]]:
    """One message per host with that host's members.

    Args:
        plan: the round.
        secret: what members of this round prove their membership with to one another.
    """
    seats: dict[str, list[rounds_pb2.Seat]] = {}
    for seat in plan.seats:
        seats.setdefault(seat.host, []).append(
            rounds_pb2.Seat(worker_id=seat.worker_id, **{name: getattr(seat, name) for name in RANK_FIELDS})
        )
    shared = rounds_pb2.RoundAssignment(
        round_id=round_id_message(plan.round_id),
        size=len(plan.seats),
        store=store_address_message(plan.store),
        source=0,
        receivers=plan.receivers,
        secret=secret,
        failures=plan.failures,
        guarded=plan.guarded,
        checkpoint_steps=plan.checkpoint,
        fallback_size=plan.fallback_size,
    )
    for host, on_host in seats.items():
        yield (host, agent_pb2.AssignRound(round=shared, seats=on_host))
