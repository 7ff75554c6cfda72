"""The workers of a simulated run: the real loop of their rounds, run by simulated processes."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from edriver.agent.lost_round import loss_in
from edriver.model import events
from edriver.model.ids import RoundId
from edriver.v1 import agent_pb2
from edriver.v1 import notification_pb2 as pb
from edriver.wire.conversion import duration, round_id_message, round_id_of
from edriver.wire.reports import event_of_report
from edriver.worker.rounds.participant import Stage
from tests.sim.fabric import Severed
from tests.sim.sim_hosts import Process, SimHost
from tests.sim.sim_rounds import Exploded, Meet, Sleep, WaitChange
from tests.sim.trainee import BUG_LINE, SIZE_LINE, Trainee

if TYPE_CHECKING:
    from tests.sim.world import World

WORKER_LEASE = 5.0
STALL_LIMIT = 3.0
BLOCKED_LOOK = 0.5
BLOCKED_AFTER = 2.5
SHELL_SECONDS = 300.0
STALLED_AT = 'thread MainThread:\n  File "train.py", line 5, in evaluate\n    model(x)\n'


class SimWorkers:
    """All workers.

    Args:
        world: the rest of the run.
        shells: decides which workers are started by a shell.

    Attributes:
        bad_hosts: where workers fail by themselves, after a while.
        unlinked: hosts whose data network is down: their workers can connect to no other host's.
        slow: the workers whose steps take long.
        any_outlived: whether a shell has gone on without its worker.
    """

    def __init__(self, world: World, shells: random.Random) -> None:
        self._world = world
        self._rng, self._clockwork, self._fabric = world.rng, world.clockwork, world.fabric
        self._shells = shells
        self.bad_hosts: set[str] = set()
        self.unlinked: set[str] = set()
        self.slow: set[int] = set()
        self.any_outlived = False

    def start(self, host: SimHost, worker_id: int) -> None:
        if not host.alive:
            return

        def report(message: pb.Report) -> None:
            self._report(process, message)
            told = agent_pb2.WorkerReport(worker_id=worker_id, report=message)
            if loss_in(agent_pb2.ConnectRequest(worker_report=told)):
                self._world.agents.note_loss(process)
            elif message.HasField("worker_waiting"):
                process.in_round = None

        process = Process(worker_id, host, self._trainee(worker_id, report))
        host.processes[worker_id] = process
        if host.name in self.bad_hosts:
            self._clockwork.after(self._rng.expovariate(0.3), lambda: self._break(process))
        self._advance(process, None, None)

    def _trainee(self, worker_id: int, report: Callable[[pb.Report], None]) -> Trainee:
        """What a worker runs that has just been started."""

        def tear_down() -> None:
            self._world.invariants.round_begun(trainee)
            for round_id in list(self._world.driver.seats):
                if round_id < trainee.participant.round_id:
                    self._fabric.leave(round_id, worker_id)

        boundary_passed, boot = self._world.invariants.boundary_passed, self._rng.uniform(0.5, 3)
        step_time = partial(self._step_time, worker_id)
        trainee = Trainee(
            worker_id, self._world.job, report, boundary_passed, tear_down, boot, step_time, self._world.disk
        )
        return trainee

    def _step_time(self, worker_id: int) -> float:
        return self._rng.uniform(0.02, 0.1) * (50 if worker_id in self.slow else 1)

    def _advance(self, process: Process, value: Any, error: BaseException | None) -> None:
        """Run the training thread until it waits again."""
        trainee = process.trainee
        if not process.alive:
            return
        try:
            wait = trainee.script.throw(error) if error else trainee.script.send(value)
        except StopIteration as end:
            self._exit(process, end.value)
            return
        except Exploded as error:
            process.wait = None
            process.ticket += 1  # no notice wakes it any more
            self._report_explosion(process, error)
            return
        process.ticket += 1
        ticket = process.ticket
        process.wait = wait
        match wait:
            case Sleep(seconds):
                self._clockwork.after(seconds, lambda: self._wake(process, ticket, None, None))
            case Meet("who", _, _):
                members = self._world.driver.seats[trainee.participant.round_id]
                self._clockwork.after(0.0, lambda: self._wake(process, ticket, members, None))
            case Meet(name, parties, what):
                round_id = trainee.participant.round_id
                if self._cannot_reach(process, parties):
                    self._clockwork.after(0.001, lambda: self._wake(process, ticket, None, Severed()))
                    return
                self._clockwork.after(BLOCKED_AFTER, lambda: self._tell_blocked(process, ticket, BLOCKED_AFTER))
                self._fabric.meet(
                    round_id,
                    name,
                    parties,
                    process.worker_id,
                    what,
                    lambda v, e: self._wake(process, ticket, v, e),
                )
                if trainee.participant.abort_cause is not None:
                    self._fabric.sever(round_id, process.worker_id)

    def _cannot_reach(self, process: Process, parties: frozenset[int]) -> bool:
        if process.host.name not in self.unlinked:
            return False
        return len({other.host.name for other in self._world.processes() if other.worker_id in parties}) > 1

    def _wake(self, process: Process, ticket: int, value: Any, error: BaseException | None) -> None:
        if not process.alive or ticket != process.ticket:
            return
        if process.blocked:
            self._tell_blocked(process, ticket, 0.0)
        if process.frozen or process.stalled:
            process.wait = None
            self._clockwork.after(0.05, lambda: self._wake(process, ticket, value, error))
            return
        self._advance(process, value, error)

    def take(self, process: Process | None, notice: pb.Notice) -> None:
        """The notification thread."""
        if process is None or not process.alive:
            return
        if notice.HasField("assignment"):
            process.in_round = round_id_of(notice.assignment.round.round_id)
        if process.frozen:
            process.held.append(notice)
            return
        participant = process.trainee.participant
        answer = participant.take(notice)
        if answer is not None:
            self._report(process, answer)
        if notice.HasField("abort") and participant.abort_cause is not None:
            self._fabric.sever(participant.round_id, process.worker_id)
        if isinstance(process.wait, WaitChange):
            ticket = process.ticket
            self._clockwork.after(0.0, lambda: self._wake(process, ticket, None, None))

    def _report_explosion(self, process: Process, error: Exploded) -> None:
        if error.line == BUG_LINE:
            self._world.invariants.bug_met(process.trainee.participant.round_id)
        if error.line != SIZE_LINE:
            self._world.invariants.failed_by_itself(process.worker_id)
        report = pb.Report(worker_failed=pb.WorkerFailed(traceback=error.traceback(process.worker_id)))
        self._report(process, report)
        self._clockwork.after(self._rng.uniform(0.05, 0.5), lambda: self._exit(process, 1))

    def _exit(self, process: Process, code: int, outlived: bool = False) -> None:
        if process.alive:
            self.die(process)
            host, worker_id = process.host, process.worker_id
            if self._rng.random() < 0.8:  # the others end before they hold the lock
                host.up.send(lambda: self._world.agents.feed_if_alive(host, events.WorkerEnding(worker_id)))
                if code:
                    self._world.agents.note_loss(process)
                if outlived:
                    self.any_outlived = True
                    host.outlived[worker_id] = self._clockwork.now
                    self._clockwork.after(SHELL_SECONDS, lambda: self._end_command(host, worker_id, 0))
                    return
            self._reaped(host, worker_id, code, process if code else None)

    def _reaped(self, host: SimHost, worker_id: int, code: int, lost: Process | None = None) -> None:
        def report() -> None:
            host.up.send(lambda: self._world.agents.feed_if_alive(host, events.WorkerExited(worker_id, code)))
            if lost is not None:
                self._world.agents.note_loss(lost)

        self._clockwork.after(self._rng.uniform(0.0, 0.05), report)

    def _end_command(self, host: SimHost, worker_id: int, code: int) -> None:
        if host.alive and host.outlived.pop(worker_id, None) is not None:
            self._reaped(host, worker_id, code)

    def die(self, process: Process) -> None:
        process.alive = False
        self._world.invariants.process_ended(process.trainee)
        process.host.processes.pop(process.worker_id, None)
        for round_id in list(self._world.driver.seats):
            if process.worker_id in self._world.driver.seats[round_id].values():
                self._fabric.leave(round_id, process.worker_id)

    def stop(self, host: SimHost, worker_id: int, grace: float) -> None:
        if process := host.processes.get(worker_id):
            if grace == 0.0:
                self._exit(process, -9)
            else:
                self._clockwork.after(self._rng.uniform(0.0, min(grace, 1.0)), lambda: self._exit(process, -15))
        self._end_command(host, worker_id, -15)

    def kill(self, process: Process) -> None:
        """Kill -9. Some workers are started by a shell, which goes on."""
        self._exit(process, -9, outlived=self._shells.random() < 0.2)

    def _break(self, process: Process) -> None:
        """A bad host ends what runs on it, as long as it is one."""
        if process.host.name in self.bad_hosts:
            self._world.invariants.failed_by_itself(process.worker_id)
            self._exit(process, 1)

    def freeze(self, process: Process, seconds: float) -> None:
        """SIGSTOP, and SIGCONT later; the agent reports when the worker's lease expires and when it answers again."""
        if process.frozen or not process.alive:
            return
        process.frozen = True
        # Its last word may be older than the stop: the agent asks now and then.
        lease = WORKER_LEASE - self._rng.uniform(0, 1)
        if seconds > lease / 2:
            self._clockwork.after(lease / 2, lambda: self._tell(process, events.WorkerQuiet(process.worker_id)))
        if seconds > lease:
            self._clockwork.after(lease, lambda: self._tell(process, events.LeaseExpired(process.worker_id, lease)))
        self._clockwork.after(seconds, lambda: self._thaw(process, received=seconds > lease / 2))

    def _report(self, process: Process, message: pb.Report) -> None:
        event = event_of_report(process.worker_id, message)
        assert event is not None
        process.host.up.send(lambda: self._world.agents.feed_if_alive(process.host, event))

    def _tell(self, process: Process, event: events.Event) -> None:
        if process.alive:
            process.host.up.send(lambda: self._world.agents.feed_if_alive(process.host, event))

    def stall(self, process: Process, seconds: float) -> None:
        """The training thread stands still, and the notification thread does not: after a while it reports that."""
        participant = process.trainee.participant
        if process.stalled or not process.alive or participant.stage is not Stage.ASSIGNED:
            return
        process.stalled = True
        progress = (participant.round_id, participant.boundaries)
        self._clockwork.after(seconds, lambda: setattr(process, "stalled", False))
        self._clockwork.after(STALL_LIMIT, lambda: self._tell_stall(process, progress))

    def _tell_stall(self, process: Process, progress: tuple[RoundId, int]) -> None:
        participant = process.trainee.participant
        same = progress == (participant.round_id, participant.boundaries)
        if process.alive and process.stalled and same and not isinstance(process.wait, Meet):
            round_id = round_id_message(participant.round_id)
            lasted = duration(STALL_LIMIT)
            stalled = pb.WorkerStalled(round_id=round_id, phase="step", duration=lasted, stacks=STALLED_AT)
            self._report(process, pb.Report(worker_stalled=stalled))

    def _tell_blocked(self, process: Process, ticket: int, seconds: float) -> None:
        """The training thread has stood still in a collective, or goes on."""
        participant = process.trainee.participant
        current = process.alive and ticket == process.ticket and participant.stage is Stage.ASSIGNED
        if current and process.frozen and seconds > 0:  # it looks again when it runs again
            self._clockwork.after(BLOCKED_LOOK, lambda: self._tell_blocked(process, ticket, seconds))
        elif current and not process.frozen:
            process.blocked = seconds > 0
            self._report(process, participant.blocked(seconds))

    def _thaw(self, process: Process, received: bool) -> None:
        process.frozen = False
        if received:
            self._tell(process, events.WorkerAnswered(process.worker_id))
        held, process.held = process.held, []
        for notice in held:
            self.take(process, notice)
