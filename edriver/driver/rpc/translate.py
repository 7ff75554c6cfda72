"""Between the core's events and actions and the messages on the wire; no decisions."""

from __future__ import annotations

from collections.abc import Iterator

from edriver.common.wire import round_id_message, round_id_of, store_address_message, store_address_of, version_of
from edriver.driver.core import actions, events
from edriver.driver.observe.cause_message import cause_message
from edriver.v1 import agent_pb2, notification_pb2, rounds_pb2


def event_of_report(worker_id: int, report: notification_pb2.Report) -> events.Event | None:
    """The event that a worker's report stands for; None for one that is not the core's business."""
    match report.WhichOneof("kind"):
        case "waiting":
            said = report.waiting
            return events.WorkerWaiting(
                worker_id,
                said.ordinal,
                version_of(said.version),
                store_address_of(said.store),
                said.digest,
            )
        case "boundary_reached":
            reached = report.boundary_reached
            return events.BoundaryReached(worker_id, round_id_of(reached.round_id), reached.number, reached.boundaries)
        case "done":
            return events.WorkerDone(worker_id, round_id_of(report.done.round_id), report.done.boundaries)
        case "collective_raised":
            raised = report.collective_raised
            return events.CollectiveRaised(worker_id, round_id_of(raised.round_id), raised.traceback)
        case "peer_unproven":
            unproven = report.peer_unproven
            return events.PeerUnproven(worker_id, round_id_of(unproven.round_id), unproven.reason)
        case "first_boundary":
            passed = report.first_boundary
            times = {field.name: value for field, value in passed.times.ListFields()}
            return events.FirstBoundaryPassed(worker_id, round_id_of(passed.round_id), times)
        case "stalled":
            stall = report.stalled
            round_id = round_id_of(stall.round_id)
            return events.WorkerStalled(worker_id, round_id, stall.phase, stall.seconds, stall.stacks)
        case "blocked":
            blocked = report.blocked
            round_id = round_id_of(blocked.round_id)
            return events.WorkerBlocked(worker_id, round_id, blocked.boundaries, blocked.seconds)
        case "stuck":
            return events.WorkerStuck(worker_id, round_id_of(report.stuck.round_id))
        case "failed":
            return events.WorkerFailed(worker_id, report.failed.traceback)
        case _:
            return None


Notified = (
    actions.Notify | actions.StopAt | actions.GoOn | actions.Abort | actions.Finish | actions.Leave | actions.Skip
)


def notice_of(action: Notified, timestamp: float) -> tuple[tuple[int, ...], notification_pb2.Notice]:
    """The workers that an action addresses, and the notice that they get.

    Args:
        action: the order.
        timestamp: the wall clock, in seconds since the epoch, for HostsUpdated.
    """
    pb = notification_pb2
    match action:
        case actions.Notify(workers, round_id, number, result):
            return workers, pb.Notice(
                hosts_updated=pb.HostsUpdated(
                    round_id=round_id_message(round_id),
                    number=number,
                    result=rounds_pb2.HostUpdateResult.ValueType(int(result)),
                    timestamp=timestamp,
                )
            )
        case actions.StopAt(workers, round_id, number, boundary):
            return workers, pb.Notice(
                stop_at=pb.StopAt(round_id=round_id_message(round_id), number=number, boundary=boundary)
            )
        case actions.GoOn(workers, round_id, number):
            return workers, pb.Notice(go_on=pb.GoOn(round_id=round_id_message(round_id), number=number))
        case actions.Abort(workers, round_id, cause):
            said = cause_message(cause, with_text=True)
            return workers, pb.Notice(abort=pb.Abort(round_id=round_id_message(round_id), cause=said))
        case actions.Finish(workers, round_id):
            return workers, pb.Notice(finish=pb.Finish(round_id=round_id_message(round_id)))
        case actions.Leave(worker_id):
            return (worker_id,), pb.Notice(leave=pb.Leave())
        case actions.Skip(worker_id, ordinal):
            return (worker_id,), pb.Notice(skip=pb.Skip(ordinal=ordinal))


def assignments_by_host(action: actions.AssignRound, secret: bytes) -> Iterator[tuple[str, agent_pb2.AssignRound]]:
    """One message per host with that host's members.

    Args:
        action: the order.
        secret: what members of this round prove their membership with to one another.
    """
    plan = action.plan
    seats: dict[str, list[rounds_pb2.Seat]] = {}
    for seat in plan.seats:
        seats.setdefault(seat.host, []).append(
            rounds_pb2.Seat(
                worker_id=seat.worker_id,
                rank=seat.rank,
                local_rank=seat.local_rank,
                local_size=seat.local_size,
                cross_rank=seat.cross_rank,
                cross_size=seat.cross_size,
            )
        )
    shared = rounds_pb2.RoundAssignment(
        round_id=round_id_message(plan.round_id),
        size=len(plan.seats),
        store=store_address_message(plan.store),
        source=0,
        receivers=plan.receivers,
        secret=secret,
    )
    for host, on_host in seats.items():
        yield (host, agent_pb2.AssignRound(round=shared, seats=on_host))
