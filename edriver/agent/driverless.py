"""What this host's workers do while their run has no driver, and what they do if none takes over in time.

If a round loses a member meanwhile, the agents abort it. The agent of the lost member sends `Abort` to the other
members on its host. Severing their connections makes a collective fail on other hosts, whose agents hear of it and do
the same. The agents decide nothing else: the survivors wait for their next place, with their state, and the reports of
all this are what the next driver receives first.

If no successor comes within `--driver-timeout`, the run writes a last checkpoint. The agents send `DriverGone`: a
worker leaves at its next boundary, as for a change of hosts, or stops waiting, or is freed by an `Abort` from a
collective in which it hangs for ten seconds, and its loop asks for `LastCheckpoint` before the process exits. Rank 0
writes it. In a round that has lost a member, which may be rank 0, the lowest rank of each host does, as the agents
cannot consult one another. In restart mode the workers are stopped, and each host that holds all of a checkpoint in
memory, its own part and copies of the others', writes the newest one to disk (checkpoint_server.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from edriver.agent.lost_round import LostRound, loss_in
from edriver.agent.worker import TERMINATION_GRACE, WorkerSupervisor
from edriver.agent.worker_settings import WorkerSettings
from edriver.v1 import agent_pb2, cause_pb2


class Driverless:
    """Decides for the workers of this host what no driver does.

    Args:
        workers: the workers, by their ids.
        host: this host's name.
        settings: what workers are started with.
        driver_is_there: whether messages reach the driver now.
    """

    def __init__(
        self,
        workers: Mapping[int, WorkerSupervisor],
        host: str,
        settings: WorkerSettings,
        driver_is_there: Callable[[], bool],
    ) -> None:
        self._workers = workers
        self._host = host
        self._settings = settings
        self._driver_is_there = driver_is_there
        self._lost_round = LostRound()
        self._parted = False

    def note(self, message: agent_pb2.ConnectRequest) -> None:
        """A message to the driver: it may say that a worker has left its round."""
        worker = self._workers.get(loss_in(message) or 0)
        if worker is not None and worker.in_round and not worker.link.parted and self._settings.restart_mode is None:
            text = f"worker {worker.worker_id} ({self._host}:{worker.slot}) has left the round, and there is no driver"
            self._lost_round.note(worker.round_id, cause_pb2.Cause(kind=cause_pb2.CAUSE_KIND_LEFT_ROUND, text=text))
            self.check()

    def check(self) -> None:
        """Abort a round that has lost a member, if no driver can do it."""
        if self._driver_is_there() or self._parted:
            return
        members = {worker.worker_id: worker.round_id for worker in self._workers.values()}
        for worker_id, notice in self._lost_round.notices(members):
            self._workers[worker_id].link.deliver(notice)

    def part_with_run(self, bound: float) -> None:
        """No driver took over in time: end all workers gracefully.

        Rank 0 writes a checkpoint, if the state has any; in a round that has lost a member, which may be that one, the
        lowest rank of each host does.

        Args:
            bound: seconds after which they are killed.
        """
        self._parted = True
        members = [worker for worker in self._workers.values() if worker.round_id.n]
        # One that has ended is here until it has been reaped, which takes seconds where its memory is large.
        living = (worker for worker in members if not worker.trainer_ended)
        lowest = min((worker.capture.rank or 0 for worker in living), default=0)
        for worker in self._workers.values():
            if self._settings.restart_mode is not None:
                worker.stop(TERMINATION_GRACE)
            elif worker not in members:
                worker.stop(0.0)
            else:
                rank, lost = worker.capture.rank or 0, worker.round_id == self._lost_round.round_id
                worker.part_with_run(rank == (lowest if lost else 0), bound)
