"""The driver of a simulated run: the real core, its journal, and what its orders do."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from edriver.driver.core.membership import Membership
from edriver.driver.observe.cause_text import cause_text
from edriver.model import actions, events
from edriver.model.hosts import Host, HostSet
from edriver.model.ids import RoundId
from edriver.model.plan import RoundPlan
from edriver.model.settings import Settings
from edriver.v1 import notification_pb2 as pb
from edriver.wire.assignments import assignment_notices, assignments_by_host
from edriver.wire.orders import notice_of
from tests.sim.checking import check
from tests.sim.scanning import check_indexes
from tests.sim.sim_hosts import SimHost
from tests.sim.sim_journal import SimJournal

if TYPE_CHECKING:
    from tests.sim.world import World

ROUNDING = 1e-9
"""Seconds: a deadline has passed when its tick comes, although both times are rounded."""


class SimDriver:
    """The driver, and those that take over from it.

    Args:
        world: the rest of the run.
        seed: of what the core draws.
        settings: the core's.

    Attributes:
        core: the core of the driver that is in charge, or of the last one.
        drivers: how many there have been.
        discovered: discovery's answer.
        seats: of each round, who has which rank.
        outcome: the run's; None: it goes on.
        gone_at: since when there is none; None: there is one.
        happened: called after each event,
        ordered: and after each action.
    """

    def __init__(self, world: World, seed: int, settings: Settings) -> None:
        self._world = world
        self._rng, self._clockwork, self._fabric = world.rng, world.clockwork, world.fabric
        self.journal = SimJournal(seed, settings)
        self.core = Membership(settings, now=0.0, draw=self.journal.draws.random)
        self.journal.take_snapshot(self.core)
        self.drivers = 1
        self.discovered = HostSet(())
        self.seats: dict[RoundId, dict[int, int]] = {}
        self.outcome: actions.FinishRun | None = None
        self.gone_at: float | None = None
        self.happened: Callable[[events.Event], None] = lambda _event: None
        self.ordered: Callable[[actions.Action], None] = lambda _order: None
        self._without_driver = 0.0
        self._missed: list[Callable[[], None]] = []
        self._tick_at: float | None = None
        self._ticks = 0

    @property
    def now(self) -> float:
        """The core's time: it stands still while there is no driver."""
        at = self._clockwork.now if self.gone_at is None else self.gone_at
        return at - self._without_driver

    def feed(self, event: events.Event) -> None:
        """Step the core and perform what it orders; the next driver does so if there is none."""
        if self.outcome:
            return
        if self.gone_at is not None:
            self._missed.append(lambda: self.feed(event))
            return
        self._world.log("event", event)
        if isinstance(event, events.AgentLost):
            self._world.agents.given_up |= {w.worker_id for w in self.core.roster.on(event.host)}
        self._world.invariants.before_step(event)
        orders = self.core.step(event, self.now)
        if orders:  # after the others nothing is different, as a rule; random_events.py checks after each
            check_indexes(self.core)
        self.journal.write_down(self.now, event, orders, self.core)
        self._world.invariants.after_step(orders)
        for order in orders:
            self._world.log("action", order)
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
        check(core.next_deadline == self.core.next_deadline, "replayed, the core awaits another time")
        return core

    def crash(self, seconds: float) -> None:
        """The driver is killed; another one takes over after a while."""
        if self.outcome or self.gone_at is not None:
            return
        self._world.log("fault", f"no driver for {seconds:.1f} s")
        self.gone_at = self._clockwork.now
        without = list(self._world.agents.hosts.values())
        for host in without:
            host.up.cut()
            host.down.cut()
            self._world.agents.free_members(host)
        self._clockwork.after(seconds, lambda: self._resume(without))

    def _resume(self, hosts: list[SimHost]) -> None:
        self.core = self.successor()
        self.drivers += 1
        assert self.gone_at is not None
        for host in hosts:
            self._world.invariants.freed_without_driver(host, self.gone_at)
        self._without_driver += self._clockwork.now - self.gone_at
        self.gone_at = None
        if self._tick_at is not None:
            self._plan_tick(self._tick_at)
        self.feed(events.DriverResumed(self.drivers))
        missed, self._missed = self._missed, []
        for happen in missed:
            happen()
        for host in hosts:
            host.up.heal()
            host.down.heal()

    def _plan_tick(self, deadline: float) -> None:
        """Have a tick at this time of the core, in place of the one that is planned."""
        self._tick_at = deadline
        self._ticks += 1
        ticket = self._ticks
        delay = max(deadline - self.now, 0.0) + ROUNDING
        self._clockwork.after(delay, lambda: self._tick(ticket))

    def _tick(self, ticket: int) -> None:
        if self._ticks == ticket and self.gone_at is None:
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
                self._clockwork.after(self._rng.uniform(0.1, 0.4), lambda: self._world.agents.start(host, agent_id))
            case actions.StopAgent(host, agent_id):
                self._world.agents.stopped.add(agent_id)
                if host in self._world.agents.hosts:
                    self._world.agents.end(self._world.agents.hosts[host])
            case actions.AbandonAgent(host, agent_id):
                if (record := self._world.agents.hosts.get(host)) and record.agent_id == agent_id:
                    record.abandoned = True
                    del self._world.agents.hosts[host]
            case actions.StartWorker(worker_id, host, _):
                self._order(host, lambda record: self._world.workers.start(record, worker_id))
            case actions.StopWorker(worker_id, host, grace):
                self._order(host, lambda record: self._world.workers.stop(record, worker_id, grace))
            case RoundPlan() as plan:
                self.seats[plan.round_id] = {seat.rank: seat.worker_id for seat in plan.seats}
                self._fabric.forget_before(plan.round_id)
                for host, message in assignments_by_host(plan, secret=b""):
                    if record := self._world.agents.hosts.get(host):
                        for seat, notice in assignment_notices(message):
                            self._send_notice(record, seat.worker_id, notice)
            case actions.FinishRun():
                self.outcome = order
            case actions.KeepCheckpoints(host):
                self._order(host, lambda record: self._world.checkpoints.keep(record, order))
            case actions.Explain():
                pass
            case _:
                workers, notice = notice_of(order, self._clockwork.now, cause_text)
                for worker_id in workers:
                    record = next((h for h in self._world.agents.hosts.values() if worker_id in h.processes), None)
                    if record:
                        self._send_notice(record, worker_id, notice)

    def _order(self, name: str, carry_out: Callable[[SimHost], None]) -> None:
        if host := self._world.agents.hosts.get(name):
            host.down.send(lambda: carry_out(host))

    def _send_notice(self, host: SimHost, worker_id: int, notice: pb.Notice) -> None:
        host.down.send(lambda: self._world.workers.take(host.processes.get(worker_id), notice))
