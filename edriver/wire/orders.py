"""The core's actions as messages to agents, and what these hand on to workers; no decisions."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Final

from edriver.model import actions
from edriver.model.cause import Cause
from edriver.model.memory_checkpoint import DiskWrite
from edriver.model.plan import RoundPlan
from edriver.model.records import Worker
from edriver.model.worker_logs import StreamChoice, Streams, WorkerLogs
from edriver.v1 import agent_pb2, checkpoints_pb2, notification_pb2, rounds_pb2
from edriver.wire.assignments import assignments_by_host
from edriver.wire.causes import cause_message
from edriver.wire.checkpoints import checkpoint_id_message, disk_target_message, shard_message
from edriver.wire.conversion import duration, round_id_message, timestamp

Notified = (
    actions.HostsUpdated
    | actions.StopAt
    | actions.GoOn
    | actions.Abort
    | actions.Finish
    | actions.Leave
    | actions.Skip
    | actions.FindNewestCheckpoint
    | actions.SaveCheckpoint
)
"""What members of a round, or workers that wait for one, get as a notice."""


def orders_of(
    action: actions.Action,
    workers: Mapping[int, Worker],
    now: float,
    draw_secret: Callable[[], bytes],
    words: Callable[[Cause], str],
) -> Iterator[tuple[str, agent_pb2.ConnectResponse]]:
    """The messages that an action comes to, each with the host it goes to.

    Args:
        action: the core's action; one that concerns no worker (StartAgent, Explain, ...) yields nothing.
        workers: those that have not ended, by worker_id; others get no message.
        now: the wall clock, in seconds since the epoch.
        draw_secret: draws the secret of a round, which is the same for all of its hosts and appears nowhere else.
        words: a cause in a sentence.
    """
    match action:
        case actions.StartWorker(worker_id, host, slot, background, position, replica_size):
            start = agent_pb2.StartWorker(
                worker_id=worker_id, slot=slot, background=background, position=position, replica_size=replica_size
            )
            yield host, agent_pb2.ConnectResponse(start_worker=start)
        case actions.StopWorker(worker_id, host, grace):
            stop = agent_pb2.StopWorker(worker_id=worker_id, grace=duration(grace))
            yield host, agent_pb2.ConnectResponse(stop_worker=stop)
        case actions.KeepCheckpoints(host):
            yield host, agent_pb2.ConnectResponse(keep_checkpoints=keep_message(action))
        case RoundPlan():
            for host, message in assignments_by_host(action, draw_secret()):
                yield host, agent_pb2.ConnectResponse(assign_round=message)
        case _ if isinstance(action, Notified):
            addressed, notice = notice_of(action, now, words)
            by_host: dict[str, list[int]] = {}
            for worker_id in addressed:
                if (worker := workers.get(worker_id)) is not None:
                    by_host.setdefault(worker.host, []).append(worker_id)
            for host, on_host in by_host.items():
                deliver = agent_pb2.DeliverNotice(worker_ids=on_host, notice=notice)
                yield host, agent_pb2.ConnectResponse(deliver_notice=deliver)


def notice_of(
    action: Notified, now: float, words: Callable[[Cause], str]
) -> tuple[tuple[int, ...], notification_pb2.Notice]:
    """The workers that an action addresses, and the notice that they get.

    Args:
        action: the order.
        now: the wall clock, in seconds since the epoch, for HostsUpdated.
        words: a cause in a sentence.
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
            why = cause_message(cause, words(cause))
            return workers, pb.Notice(abort=pb.Abort(round_id=round_id_message(round_id), cause=why))
        case actions.Finish(workers, round_id):
            return workers, pb.Notice(finish=pb.Finish(round_id=round_id_message(round_id)))
        case actions.Leave(worker_id):
            return (worker_id,), pb.Notice(leave=pb.Leave())
        case actions.Skip(worker_id, ordinal):
            return (worker_id,), pb.Notice(skip=pb.Skip(ordinal=ordinal))
        case actions.FindNewestCheckpoint(workers):
            return workers, pb.Notice(find_newest_checkpoint=pb.FindNewestCheckpoint())
        case actions.SaveCheckpoint(worker_id, round_id, number):
            save = pb.SaveCheckpoint(round_id=round_id_message(round_id), number=number)
            return (worker_id,), pb.Notice(save_checkpoint=save)


_STREAMS: Final = {
    Streams.NONE: agent_pb2.STREAMS_UNSPECIFIED,
    Streams.STDOUT: agent_pb2.STREAMS_STDOUT,
    Streams.STDERR: agent_pb2.STREAMS_STDERR,
    Streams.BOTH: agent_pb2.STREAMS_BOTH,
}


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


def keep_message(order: actions.KeepCheckpoints) -> checkpoints_pb2.KeepCheckpoints:
    """What a host is to keep, as it goes over the wire."""
    return checkpoints_pb2.KeepCheckpoints(
        newest=checkpoint_id_message(order.newest),
        keep=[checkpoint_id_message(checkpoint) for checkpoint in order.keep],
        copies=[
            checkpoints_pb2.ShardCopy(shard=shard_message(copy.shard), address=copy.address) for copy in order.copies
        ],
        disk=_disk_write_message(order.disk),
    )


def _disk_write_message(write: DiskWrite | None) -> checkpoints_pb2.DiskWrite | None:
    if write is None:
        return None
    return checkpoints_pb2.DiskWrite(
        number=write.number,
        checkpoint=checkpoint_id_message(write.checkpoint),
        layout=write.layout,
        ranks=write.ranks,
        target=disk_target_message(write.target),
        name=write.name,
        seal=write.seal,
        urgent=write.urgent,
    )
