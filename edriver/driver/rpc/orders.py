"""From the core's actions to the messages that agents get; no decisions."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from edriver.driver.core import actions
from edriver.driver.rpc.translate import assignments_by_host, notice_of
from edriver.v1 import agent_pb2


def orders_of(
    action: actions.Action, host_of: Mapping[int, str], timestamp: float, draw_secret: Callable[[], bytes]
) -> Iterator[tuple[str, agent_pb2.FromDriver]]:
    """The messages that an action comes to, each with the host it goes to.

    Args:
        action: what the core ordered; what concerns no worker (StartAgent, Explain, ...) comes to nothing here.
        host_of: the hosts of the workers, by worker_id; a worker that is not in it is gone and gets nothing.
        timestamp: the wall clock, in seconds since the epoch.
        draw_secret: draws the secret of a round, which is the same for all of its hosts and appears nowhere else.
    """
    match action:
        case actions.StartWorker(worker_id, host, slot, background):
            start = agent_pb2.StartWorker(worker_id=worker_id, slot=slot, background=background)
            yield host, agent_pb2.FromDriver(start_worker=start)
        case actions.StopWorker(worker_id, host, grace):
            yield host, agent_pb2.FromDriver(stop_worker=agent_pb2.StopWorker(worker_id=worker_id, grace=grace))
        case actions.AssignRound():
            for host, message in assignments_by_host(action, draw_secret()):
                yield host, agent_pb2.FromDriver(assign_round=message)
        case (
            actions.Notify()
            | actions.StopAt()
            | actions.GoOn()
            | actions.Abort()
            | actions.Finish()
            | actions.Leave()
            | actions.Skip()
        ):
            workers, notice = notice_of(action, timestamp)
            by_host: dict[str, list[int]] = {}
            for worker_id in workers:
                if worker_id in host_of:
                    by_host.setdefault(host_of[worker_id], []).append(worker_id)
            for host, on_host in by_host.items():
                deliver = agent_pb2.DeliverNotice(worker_ids=on_host, notice=notice)
                yield host, agent_pb2.FromDriver(deliver_notice=deliver)
        case _:
            return
