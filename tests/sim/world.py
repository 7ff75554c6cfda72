"""The whole run in one process: the real core, simulated agents, workers and network, and faults drawn from a seed."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from typing import Any

from edriver.agent.host_workers import assignment_notices
from edriver.agent.lost_round import loss_in
from edriver.common.ids import RoundId
from edriver.common.wire import duration, round_id_message, round_id_of
from edriver.discovery.hosts import Host, HostSet
from edriver.driver.core import actions, events
from edriver.driver.core.cause import AgentFault, AgentFaultKind
from edriver.driver.core.membership import Membership
from edriver.driver.core.rounds.ranks import RoundPlan
from edriver.driver.core.settings import Settings
from edriver.driver.rpc.translate import assignments_by_host, event_of_report, notice_of
from edriver.v1 import agent_pb2, cause_pb2
from edriver.v1 import notification_pb2 as pb
from edriver.worker.rounds.participant import Stage
from tests.sim.clockwork import Channel, Clockwork
from tests.sim.fabric import Fabric
from tests.sim.invariants import Invariants, check
from tests.sim.sim_hosts import Process, SimHost
from tests.sim.sim_journal import SimJournal
from tests.sim.sim_rounds import Exploded, Meet, Sleep, WaitChange
from tests.sim.trainee import BUG_LINE, Job, Model, Trainee

AGENT_LEASE = 5.0
WORKER_LEASE = 5.0
STALL_LIMIT = 3.0
BLOCKED_LOOK = 0.5
BLOCKED_AFTER = 2.5
SHELL_SECONDS = 300.0
ROUNDING = 1e-9
"""Seconds: a deadline has passed when its tick comes, although both times are rounded."""


class World:
    """One simulated run.

    Args:
        seed: everything follows from it.
        settings: the core's.
        job: the script.
        log: takes one line per event and action, for replays; None: none are made.
    """

    def __init__(self, seed: int, settings: Settings, job: Job, log: Callable[[str], None] | None = None) -> None:
        self.rng = random.Random(seed)
        self.disk: list[Model] = []
        self._disk_times = random.Random(seed ^ 0xD15C)
        self._shells = random.Random(seed ^ 0x5E11)
        self.clockwork = Clockwork()
        self.fabric = Fabric(self.clockwork, self.rng)
        self.job = job
        self.journal = SimJournal(seed)
        self.core = Membership(settings, now=0.0, draw=self.journal.draws.random)
        self.journal.take_snapshot(self.core)
        self.drivers = 1
        self.invariants = Invariants(self)
        self.hosts: dict[str, SimHost] = {}
        self.discovered = HostSet(())
        self.seats: dict[RoundId, dict[int, int]] = {}
        self.outcome: actions.FinishRun | None = None
        self.launch_fails: set[str] = set()
        self.bad_hosts: set[str] = set()
        self.slow: set[int] = set()
        self.given_up: set[int] = set()
        self.stopped_agents: set[int] = set()
        self.happened: Callable[[events.Event], None] = lambda _event: None
        self.ordered: Callable[[actions.Action], None] = lambda _order: None
        self._log = log
        self.any_outlived = False
        self._without_driver = 0.0
        self._driver_gone_at: float | None = None
        self._missed: list[Callable[[], None]] = []
        self._tick_at: float | None = None
        self._ticks = 0
        self.fabric.completed_in = self.invariants.collective_completed

    # ---- the driver -------------------------------------------------------------------------------------------

    @property
    def now(self) -> float:
        """The core's time: it stands still while there is no driver."""
        at = self.clockwork.now if self._driver_gone_at is None else self._driver_gone_at
        return at - self._without_driver

    def feed(self, event: events.Event) -> None:
        """Step the core and perform what it orders; the next driver does so if there is none."""
        if self.outcome:
            return
        if self._driver_gone_at is not None:
            self._missed.append(lambda: self.feed(event))
            return
        self.log(f"event  {event}")
        if isinstance(event, events.AgentLost):
            self.given_up |= {w.worker_id for w in self.core.roster.on(event.host)}
        orders = self.core.step(event, self.now)
        self.journal.write_down(self.now, event, orders, self.core)
        self.invariants.after_step(orders)
        for order in orders:
            self.log(f"action {order}")
            self._perform(order)
            self.ordered(order)
        self.happened(event)
        deadline = self.core.next_deadline
        if deadline is not None and (self._tick_at is None or deadline < self._tick_at):
            self._plan_tick(deadline)

    def successor(self) -> Membership:
        """The core of the next driver, once it stands where this one does."""
        core = self.journal.restored()
        self.journal.replay(core)
        return core

    def crash_driver(self, seconds: float) -> None:
        """The driver is killed; another one takes over after a while."""
        if self.outcome or self._driver_gone_at is not None:
            return
        self.log(f"fault  no driver for {seconds:.1f} s")
        self._driver_gone_at = self.clockwork.now
        without = list(self.hosts.values())
        for host in without:
            host.up.cut()
            host.down.cut()
            self._free_members(host)
        self.clockwork.after(seconds, lambda: self._resume(without))

    def _resume(self, hosts: list[SimHost]) -> None:
        core = self.successor()
        check(core.next_deadline == self.core.next_deadline, "replayed, the core awaits another time")
        self.core = core
        self.drivers += 1
        assert self._driver_gone_at is not None
        for host in hosts:
            self.invariants.freed_without_driver(host, self._driver_gone_at)
        self._without_driver += self.clockwork.now - self._driver_gone_at
        self._driver_gone_at = None
        if self._tick_at is not None:
            self._plan_tick(self._tick_at)
        self.feed(events.DriverResumed(self.drivers))
        missed, self._missed = self._missed, []
        for happen in missed:
            happen()
        for host in hosts:
            host.up.heal()
            host.down.heal()

    # ---- the hosts ----------------------------------------------------------------------------------------------

    def _plan_tick(self, deadline: float) -> None:
        """Have a tick at this time of the core, in place of the one that is planned."""
        self._tick_at = deadline
        self._ticks += 1
        ticket = self._ticks
        delay = max(deadline - self.now, 0.0) + ROUNDING
        self.clockwork.after(delay, lambda: self._tick(ticket))

    def _tick(self, ticket: int) -> None:
        if self._ticks == ticket and self._driver_gone_at is None:
            self._tick_at = None
            self.feed(events.Ticked())

    def discover(self, *hosts: tuple[str, int]) -> None:
        """Discovery's answer changes."""
        answer = self.discovered.aged_by(HostSet(tuple(Host(name, slots) for name, slots in hosts)))
        self.discovered = answer
        self.feed(events.HostsObserved(answer))

    def _perform(self, order: actions.Action) -> None:
        match order:
            case actions.StartAgent(host, agent_id):
                self.clockwork.after(self.rng.uniform(0.1, 0.4), lambda: self._start_agent(host, agent_id))
            case actions.StopAgent(host, agent_id):
                self.stopped_agents.add(agent_id)
                if host in self.hosts:
                    self._end_agent(self.hosts[host])
            case actions.AbandonAgent(host, agent_id):
                if (record := self.hosts.get(host)) and record.agent_id == agent_id:
                    record.abandoned = True
                    del self.hosts[host]
            case actions.StartWorker(worker_id, host, _):
                self._order(host, lambda record: self._start_worker(record, worker_id))
            case actions.StopWorker(worker_id, host, grace):
                self._order(host, lambda record: self._stop_worker(record, worker_id, grace))
            case RoundPlan() as plan:
                self.seats[plan.round_id] = {seat.rank: seat.worker_id for seat in plan.seats}
                self.fabric.forget_before(plan.round_id)
                for host, message in assignments_by_host(plan, secret=b""):
                    if record := self.hosts.get(host):
                        for seat, notice in assignment_notices(message):
                            self._send_notice(record, seat.worker_id, notice)
            case actions.FinishRun():
                self.outcome = order
            case actions.Explain():
                pass
            case _:
                workers, notice = notice_of(order, self.clockwork.now)
                for worker_id in workers:
                    record = next((h for h in self.hosts.values() if worker_id in h.processes), None)
                    if record:
                        self._send_notice(record, worker_id, notice)

    def _order(self, name: str, carry_out: Callable[[SimHost], None]) -> None:
        if host := self.hosts.get(name):
            host.down.send(lambda: carry_out(host))

    def _send_notice(self, host: SimHost, worker_id: int, notice: pb.Notice) -> None:
        host.down.send(lambda: self._take(host.processes.get(worker_id), notice))

    # ---- agents -----------------------------------------------------------------------------------------------

    def _start_agent(self, name: str, agent_id: int) -> None:
        if agent_id in self.stopped_agents:
            return
        if name in self.launch_fails:
            self.feed(events.AgentLost(name, agent_id, AgentFault(AgentFaultKind.ENDED, "could not be started")))
            return
        self.hosts[name] = SimHost(
            name, agent_id, Channel(self.clockwork, self._delay), Channel(self.clockwork, self._delay)
        )
        self.feed(events.AgentConnected(name, agent_id))

    def _delay(self) -> float:
        return self.rng.uniform(0.0005, 0.003) if self.rng.random() < 0.97 else self.rng.uniform(0.01, 0.3)

    def _end_agent(self, host: SimHost) -> None:
        host.alive = False
        for process in list(host.processes.values()):
            self._die(process)
        if self.hosts.get(host.name) is host:
            del self.hosts[host.name]

    def kill_agent(self, host: SimHost) -> None:
        """The agent dies; its guard ends its workers; the driver sees it at once."""
        if host.alive:
            self._end_agent(host)
            self.feed(
                events.AgentLost(host.name, host.agent_id, AgentFault(AgentFaultKind.ENDED, "was killed by SIGKILL"))
            )

    def cut(self, host: SimHost, seconds: float) -> None:
        """The control stream goes silent both ways, or the agent is stopped, for a while."""
        if host.cut_since is not None or not host.alive:
            return
        host.cut_since = self.clockwork.now
        host.down.cut()
        host.up.cut()
        if seconds > AGENT_LEASE:
            self.clockwork.after(AGENT_LEASE, lambda: self._lease_ends(host))
        self.clockwork.after(seconds, lambda: self._heal(host))

    def _heal(self, host: SimHost) -> None:
        if host.abandoned:
            self._end_agent(host)  # it dials again, and is refused
        elif host.alive:
            silent = self.clockwork.now - (host.cut_since or 0.0) > AGENT_LEASE
            host.cut_since = None
            if silent:
                self.feed(events.AgentConnected(host.name, host.agent_id))
            host.down.heal()
            host.up.heal()

    def _lease_ends(self, host: SimHost) -> None:
        if host.alive:
            self.feed(events.AgentSilent(host.name, host.agent_id, AgentFault(AgentFaultKind.SILENT, seconds=5.0)))

    def _note_loss(self, process: Process) -> None:
        """As the agent does, see Driverless: without a driver, a member that has left its round frees the others."""
        if process.in_round is None:
            return
        host, round_id = process.host, round_id_message(process.in_round)
        if round_id != host.lost_round.round_id:
            host.lost_at = self.clockwork.now
        host.lost_round.note(round_id, cause_pb2.Cause(text="a member is lost"))
        if self._driver_gone_at is not None:
            self._free_members(host)

    def _free_members(self, host: SimHost) -> None:
        rounds = {
            worker_id: round_id_message(process.in_round)
            for worker_id, process in host.processes.items()
            if process.in_round is not None
        }
        for worker_id, notice in host.lost_round.notices(rounds):
            self.clockwork.after(0.001, partial(self._take_from, host, worker_id, notice))

    def _take_from(self, host: SimHost, worker_id: int, notice: pb.Notice) -> None:
        self._take(host.processes.get(worker_id), notice)

    # ---- workers ----------------------------------------------------------------------------------------------

    def _start_worker(self, host: SimHost, worker_id: int) -> None:
        if not host.alive:
            return

        def report(message: pb.Report) -> None:
            event = event_of_report(worker_id, message)
            assert event is not None
            host.up.send(lambda: self._feed_if_alive(host, event))
            told = agent_pb2.WorkerReport(worker_id=worker_id, report=message)
            if loss_in(agent_pb2.ConnectRequest(worker_report=told)):
                self._note_loss(process)
            elif message.HasField("waiting"):
                process.in_round = None

        process = Process(worker_id, host, self._trainee(worker_id, report))
        host.processes[worker_id] = process
        if host.name in self.bad_hosts:
            self.clockwork.after(self.rng.expovariate(0.3), lambda: self._break(process))
        self._advance(process, None, None)

    def _trainee(self, worker_id: int, report: Callable[[pb.Report], None]) -> Trainee:
        """What a worker runs that has just been started."""

        def tear_down() -> None:
            self.invariants.round_begun(trainee)
            for round_id in list(self.seats):
                if round_id < trainee.participant.round_id:
                    self.fabric.leave(round_id, worker_id)

        boundary_passed, boot = self.invariants.boundary_passed, self.rng.uniform(0.5, 3)
        step_time = partial(self._step_time, worker_id)
        trainee = Trainee(worker_id, self.job, report, boundary_passed, tear_down, boot, step_time, self)
        return trainee

    def write(self, worker_id: int, model: Model) -> None:
        """A worker begins to write a checkpoint."""

        def written() -> None:
            if any(process.worker_id == worker_id for process in self.processes()):
                self.log(f"disk   worker {worker_id} has written step {model.steps}")
                self.disk.append(model)

        self.clockwork.after(self._disk_times.uniform(0.0, 1.0), written)

    def newest(self) -> Model | None:
        """The newest checkpoint."""
        return max(self.disk, key=lambda model: model.steps, default=None)

    def _step_time(self, worker_id: int) -> float:
        return self.rng.uniform(0.02, 0.1) * (50 if worker_id in self.slow else 1)

    def _feed_if_alive(self, host: SimHost, event: events.Event) -> None:
        if not host.abandoned and (self.hosts.get(host.name) is host or not host.alive):
            self.feed(event)

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
            self._report_explosion(process, error.line)
            return
        process.ticket += 1
        ticket = process.ticket
        process.wait = wait
        match wait:
            case Sleep(seconds):
                self.clockwork.after(seconds, lambda: self._wake(process, ticket, None, None))
            case Meet("who", _, _):
                members = self.seats[trainee.participant.round_id]
                self.clockwork.after(0.0, lambda: self._wake(process, ticket, members, None))
            case Meet(name, parties, what):
                round_id = trainee.participant.round_id
                self.clockwork.after(BLOCKED_AFTER, lambda: self._tell_blocked(process, ticket, BLOCKED_AFTER))
                self.fabric.meet(
                    round_id,
                    name,
                    parties,
                    process.worker_id,
                    what,
                    lambda v, e: self._wake(process, ticket, v, e),
                )
                if trainee.participant.abort_cause is not None:
                    self.fabric.sever(round_id, process.worker_id)

    def _wake(self, process: Process, ticket: int, value: Any, error: BaseException | None) -> None:
        if not process.alive or ticket != process.ticket:
            return
        if process.blocked:
            self._tell_blocked(process, ticket, 0.0)
        if process.frozen or process.stalled:
            process.wait = None
            self.clockwork.after(0.05, lambda: self._wake(process, ticket, value, error))
            return
        self._advance(process, value, error)

    def _take(self, process: Process | None, notice: pb.Notice) -> None:
        """The notification thread."""
        if process is None or not process.alive:
            return
        if notice.HasField("assign_place"):
            process.in_round = round_id_of(notice.assign_place.round.round_id)
        if process.frozen:
            process.held.append(notice)
            return
        participant = process.trainee.participant
        answer = participant.take(notice)
        if answer is not None:
            event = event_of_report(process.worker_id, answer)
            assert event is not None
            process.host.up.send(lambda: self._feed_if_alive(process.host, event))
        if notice.HasField("abort") and participant.abort_cause is not None:
            self.fabric.sever(participant.round_id, process.worker_id)
        if isinstance(process.wait, WaitChange):
            ticket = process.ticket
            self.clockwork.after(0.0, lambda: self._wake(process, ticket, None, None))

    def _report_explosion(self, process: Process, line: int) -> None:
        if line == BUG_LINE:
            self.invariants.bug_met(process.trainee.participant.round_id)
        where = f'  File "train.py", line {line}, in train\n'
        message = f"ValueError: worker {process.worker_id}'s"
        traceback = f"Traceback (most recent call last):\n{where}{message}\n"
        report = pb.Report(failed=pb.Failed(traceback=traceback))
        event = event_of_report(process.worker_id, report)
        assert event is not None
        process.host.up.send(lambda: self._feed_if_alive(process.host, event))
        self.clockwork.after(self.rng.uniform(0.05, 0.5), lambda: self._exit(process, 1))

    def _exit(self, process: Process, code: int, outlived: bool = False) -> None:
        if process.alive:
            self._die(process)
            host, worker_id = process.host, process.worker_id
            if self.rng.random() < 0.8:  # the others end before they hold the lock
                host.up.send(lambda: self._feed_if_alive(host, events.WorkerEnding(worker_id)))
                if code:
                    self._note_loss(process)
                if outlived:
                    self.any_outlived = True
                    host.outlived[worker_id] = self.clockwork.now
                    self.clockwork.after(SHELL_SECONDS, lambda: self._end_command(host, worker_id, 0))
                    return
            self._reaped(host, worker_id, code, process if code else None)

    def _reaped(self, host: SimHost, worker_id: int, code: int, lost: Process | None = None) -> None:
        def report() -> None:
            host.up.send(lambda: self._feed_if_alive(host, events.WorkerExited(worker_id, code)))
            if lost is not None:
                self._note_loss(lost)

        self.clockwork.after(self.rng.uniform(0.0, 0.05), report)

    def _end_command(self, host: SimHost, worker_id: int, code: int) -> None:
        if host.alive and host.outlived.pop(worker_id, None) is not None:
            self._reaped(host, worker_id, code)

    def _die(self, process: Process) -> None:
        process.alive = False
        self.invariants.process_ended(process.trainee)
        process.host.processes.pop(process.worker_id, None)
        for round_id in list(self.seats):
            if process.worker_id in self.seats[round_id].values():
                self.fabric.leave(round_id, process.worker_id)

    def _stop_worker(self, host: SimHost, worker_id: int, grace: float) -> None:
        if process := host.processes.get(worker_id):
            if grace == 0.0:
                self._exit(process, -9)
            else:
                self.clockwork.after(self.rng.uniform(0.0, min(grace, 1.0)), lambda: self._exit(process, -15))
        self._end_command(host, worker_id, -15)

    def kill(self, process: Process) -> None:
        """Kill -9. Some workers are started by a shell, which goes on."""
        self._exit(process, -9, outlived=self._shells.random() < 0.2)

    def _break(self, process: Process) -> None:
        """A bad host ends what runs on it, as long as it is one."""
        if process.host.name in self.bad_hosts:
            self._exit(process, 1)

    def freeze(self, process: Process, seconds: float) -> None:
        """SIGSTOP, and SIGCONT later; the agent reports when the worker's lease expires and when it answers again."""
        if process.frozen or not process.alive:
            return
        process.frozen = True
        # Its last word may be older than the stop: the agent asks now and then.
        lease = WORKER_LEASE - self.rng.uniform(0, 1)
        if seconds > lease / 2:
            self.clockwork.after(lease / 2, lambda: self._tell(process, events.WorkerQuiet(process.worker_id)))
        if seconds > lease:
            self.clockwork.after(lease, lambda: self._tell(process, events.LeaseExpired(process.worker_id, lease)))
        self.clockwork.after(seconds, lambda: self._thaw(process, received=seconds > lease / 2))

    def _tell(self, process: Process, event: events.Event) -> None:
        if process.alive:
            process.host.up.send(lambda: self._feed_if_alive(process.host, event))

    def stall(self, process: Process, seconds: float) -> None:
        """The training thread stands still, and the notification thread does not: after a while it reports that."""
        participant = process.trainee.participant
        if process.stalled or not process.alive or participant.stage is not Stage.ASSIGNED:
            return
        process.stalled = True
        progress = (participant.round_id, participant.boundaries)
        self.clockwork.after(seconds, lambda: setattr(process, "stalled", False))
        self.clockwork.after(STALL_LIMIT, lambda: self._tell_stall(process, progress))

    def _tell_stall(self, process: Process, progress: tuple[RoundId, int]) -> None:
        participant = process.trainee.participant
        same = progress == (participant.round_id, participant.boundaries)
        if process.alive and process.stalled and same and not isinstance(process.wait, Meet):
            round_id = round_id_message(participant.round_id)
            report = pb.Report(stalled=pb.Stalled(round_id=round_id, phase="step", duration=duration(STALL_LIMIT)))
            event = event_of_report(process.worker_id, report)
            assert event is not None
            process.host.up.send(lambda: self._feed_if_alive(process.host, event))

    def _tell_blocked(self, process: Process, ticket: int, seconds: float) -> None:
        """The training thread has stood still in a collective, or goes on."""
        participant = process.trainee.participant
        current = process.alive and ticket == process.ticket and participant.stage is Stage.ASSIGNED
        if current and process.frozen and seconds > 0:  # it looks again when it runs again
            self.clockwork.after(BLOCKED_LOOK, lambda: self._tell_blocked(process, ticket, seconds))
        elif current and not process.frozen:
            process.blocked = seconds > 0
            event = event_of_report(process.worker_id, participant.blocked(seconds))
            assert event is not None
            process.host.up.send(lambda: self._feed_if_alive(process.host, event))

    def _thaw(self, process: Process, received: bool) -> None:
        process.frozen = False
        if received:
            self._tell(process, events.WorkerAnswered(process.worker_id))
        held, process.held = process.held, []
        for notice in held:
            self._take(process, notice)

    # ---- looking at it ----------------------------------------------------------------------------------------

    def processes(self) -> list[Process]:
        """All living worker processes, oldest first."""
        found = [p for host in self.hosts.values() for p in host.processes.values() if p.alive]
        return sorted(found, key=lambda p: p.worker_id)

    def workers_of(self, host: str, agent_id: int) -> set[int]:
        """The workers that an agent has started and that are alive."""
        record = self.hosts.get(host)
        return set(record.processes) if record and record.agent_id == agent_id else set()

    def members(self) -> list[Process]:
        """Those that have a place in the latest round they know of."""
        return [p for p in self.processes() if p.trainee.participant.stage in (Stage.ASSIGNED, Stage.DONE)]

    def log(self, text: str) -> None:
        """Write a line of the replay."""
        if self._log:
            self._log(f"{self.clockwork.now:10.4f}  {text}")
