"""What goes wrong, drawn from the seed: the nemesis of a simulated run."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from edriver.model import actions, events
from edriver.model.cause import CauseKind
from edriver.model.ids import NO_VERSION
from edriver.model.mode import OnLoss
from edriver.model.plan import RoundPlan
from edriver.model.settings import HOST_COOLDOWN, Settings
from tests.sim.checking import Violation, check
from tests.sim.invariants import shards_cut
from tests.sim.sim_driver import ROUNDING
from tests.sim.sim_hosts import Process
from tests.sim.trainee import BUG_LINE, Job
from tests.sim.world import World

NAMES = ("a", "b", "c", "d")

REPLICA_SIZES = (1, 1, 1, 2, 2, 3)
"""Of how many workers a replica consists."""

ALL_SHARE = 0.4
"""Of the runs whose replicas have one worker, those in which all workers of a round are one replica instead."""

KINDS = (
    "kill",
    "kill",
    "kill",
    "hosts",
    "hosts",
    "undo",
    "agent",
    "cut",
    "freeze",
    "freeze all",
    "cut all",
    "stall",
    "drain",
    "explode",
    "slow",
    "launch",
    "glitch",
    "stranger",
)
"""What can happen; what is named more often happens more often."""

CONVERGENCE_BOUND = 45.0
"""Virtual seconds, after the faults have ended, within which all slots that may be used share one round."""

DRAIN_SHARE = 0.125
"""Of all runs, those in which hosts are drained within a while, up to three times."""

CRASH_SHARE = 0.5
"""Of all runs, those whose driver is killed, up to four times, and taken over."""

LONG_STOP = 300.0
"""Seconds for which a worker is stopped that must not resume before the others go on without it."""

LIVENESS_BOUND = 1500.0
"""Virtual seconds, after the faults have ended, within which every run must end."""


class Nemesis:
    """Draws a run's shape and its faults from the seed, and carries them out.

    Args:
        seed: everything follows from it.
        log: see World.
        replica_sizes: the sizes of replicas to choose from. A run in which each worker is one is the same whatever
            other sizes there are.
        all_share: see ALL_SHARE.
    """

    def __init__(
        self,
        seed: int,
        log: Callable[[str], None] | None = None,
        replica_sizes: Sequence[int] = REPLICA_SIZES,
        all_share: float = ALL_SHARE,
    ) -> None:
        rng = random.Random(seed ^ 0x5EED)
        np = rng.randint(1, 4)
        settings = Settings(
            np=np,
            min_np=rng.randint(1, np),
            max_np=np + rng.randint(0, 3),
            cooldown_range=(0.5, 4.0) if rng.random() < 0.3 else None,
            rejoin_timeout=rng.choice((30.0, 30.0, 1.0)),  # a short one makes survivors come back too late
            resize_pause=random.Random(seed ^ 0x9A05E).choice((0.0, 0.0, 0.0, 5.0)),
        )
        job = Job(
            samples=rng.choice((20, 200, 600, 2000)),
            batch=rng.randint(1, 4),
            epochs=rng.randint(1, 3),
            runs=2 if rng.random() < 0.2 else 1,
            commit_every=rng.choice((0, 0, 1, 2, 5)),
            late_collective=rng.random() < 0.3,
        )
        others = random.Random(seed ^ 0xBAD)
        if others.random() < 0.08:
            kind = others.choice(("rank 0", "sample", "uneven"))
            job = replace(job, bug=kind, bug_at=others.randrange(job.samples))
        job = replace(job, seals=random.Random(seed ^ 0x5EA1).random() < 0.3)
        replicas = random.Random(seed ^ 0x2EB1)
        settings, job = self._in_replicas(settings, job, replicas.choice(replica_sizes), replicas)
        settings, job = self._in_one_replica(settings, job, random.Random(seed ^ 0xA110), all_share)
        variants = random.Random(seed ^ 0x1A6E)
        job = replace(job, large=variants.random() < 0.15 and not job.sharded)
        disk = random.Random(seed ^ 0xD15C5)
        every = disk.choice((0, 0, 0, 1, 3, 10))
        job = replace(job, checkpoint_every=0 if job.one_replica else every)
        sizes = random.Random(seed ^ 0x512E)
        if settings.max_np > settings.np and sizes.random() < 0.1:
            size = settings.replica_size
            job = replace(job, bad_size=sizes.randrange(settings.np + size, settings.max_np + 1, size))
        self._crashes = random.Random(seed ^ 0xD21E)
        self._drains = random.Random(seed ^ 0xD2EB)
        self._drains_in_time = self._drains.randint(1, 3) if self._drains.random() < DRAIN_SHARE else 0
        self.rng = rng
        self.world = World(seed, settings, job, log)
        if others.random() < 0.12:
            self.world.workers.bad_hosts = {others.choice(NAMES)}
        self.ends = rng.uniform(5, 30)
        self._swallows_at = variants.uniform(1, self.ends) if variants.random() < 0.2 else None
        self._disasters = disk.randint(0, 2) if job.checkpoint_every else 0
        self._disaster_rng = disk
        links = random.Random(seed ^ 0x11F7)
        self._unlinks_at = links.uniform(1, self.ends) if links.random() < 0.15 else None
        self._reactive = rng.random() * 0.3
        self._glitches = 1
        self._accidents = 0
        self._calm = False
        self._calm_since = 0.0
        self._any_unlinked = False
        self.world.driver.ordered = self._react
        self.world.driver.happened = self._surprise

    def _in_replicas(self, settings: Settings, job: Job, size: int, rng: random.Random) -> tuple[Settings, Job]:
        """Some runs have replicas of several workers. Then steps are sealed, and what tears a state outside of a step's
        collectives, which the seal does not cover, is left out.
        """
        if size == 1:
            return settings, job
        replicas = rng.randint(1, 2)
        least, most = rng.randint(1, replicas), replicas + rng.randint(0, 1)
        settings = replace(settings, np=size * replicas, min_np=size * least, max_np=size * most, replica_size=size)
        return settings, replace(job, replica_size=size, seals=True, late_collective=False)

    def _in_one_replica(self, settings: Settings, job: Job, rng: random.Random, share: float) -> tuple[Settings, Job]:
        """In some runs all workers of a round hold the state once between them, and there are no checkpoints."""
        if job.replica_size > 1 or rng.random() >= share:
            return settings, job
        np = rng.randint(1, 6)
        settings = replace(settings, np=np, min_np=rng.randint(1, np), max_np=np + rng.randint(0, 2))
        settings = replace(settings, one_replica=True, on_loss=rng.choice((OnLoss.SHRINK, OnLoss.SHRINK, OnLoss.WAIT)))
        writes = rng.choice((0, 0, 0, 1, 7))
        return settings, replace(job, one_replica=True, seals=True, late_collective=False, write_every=writes)

    def run(self) -> actions.FinishRun:
        """Run to the end.

        Raises:
            Violation: an invariant does not hold, or the run does not end.
        """
        world, clockwork = self.world, self.world.clockwork
        clockwork.after(0.0, lambda: world.driver.discover(*self._some_hosts()))
        at = 0.0
        while at < self.ends:
            at += self.rng.expovariate(0.7)
            clockwork.after(at, self._strike)
        if self._swallows_at is not None:
            clockwork.after(self._swallows_at, self._swallow)
        if self._unlinks_at is not None:
            clockwork.after(self._unlinks_at, self._unlink)
        for _ in range(self._disasters):
            clockwork.after(self._disaster_rng.uniform(1, self.ends), self._kill_all_that_hold)
        for _ in range(self._drains_in_time):
            clockwork.after(self._drains.uniform(1, self.ends), self._drain_in_time)
        if self._crashes.random() < CRASH_SHARE:
            for _ in range(self._crashes.randint(1, 4)):
                at = self._crashes.uniform(0, 1.2 * self.ends)
                away = self._crashes.choice((0.0, 0.0, self._crashes.uniform(0, 1), self._crashes.uniform(0, 20)))
                clockwork.after(at, partial(world.driver.crash, away))
                if self._crashes.random() < 0.5:
                    clockwork.after(at + away / 2, self._kill_a_member)
        clockwork.after(self.ends, self._calm_down)
        if not clockwork.run(lambda: world.driver.outcome is not None, self.ends + LIVENESS_BOUND):
            raise Violation(f"the run does not end: {world.driver.core.activity}")
        assert world.driver.outcome is not None
        if world.driver.outcome.cause.kind is CauseKind.COLLECTIVES_BROKEN:
            check(self._any_unlinked, "one glitch and some unproven connections are taken for a bad link")
            check(not self._some_have_trained(), "newcomers that cannot connect end a run whose other workers train")
        return world.driver.outcome

    def _some_hosts(self) -> list[tuple[str, int]]:
        count = self.rng.randint(1, len(NAMES))
        most = max(3, self.world.job.replica_size + 1)
        return [(name, self.rng.randint(1, most)) for name in self.rng.sample(NAMES, count)]

    def _calm_down(self) -> None:
        """The faults end: all hosts are there and stay. Soon all that may train does."""
        self.world.clockwork.after(CONVERGENCE_BOUND, self._check_convergence)
        self._calm, self._calm_since = True, self.world.driver.now
        self.world.agents.launch_fails.clear()
        self.world.workers.bad_hosts.clear()
        self.world.workers.unlinked.clear()
        self.world.workers.slow.clear()
        self.world.driver.discover(*((name, 4) for name in NAMES))

    def _check_convergence(self) -> None:
        core, now = self.world.driver.core, self.world.driver.now
        free_at = (record.rest.free_at for record in core.roster.hosts.values())
        healed = max(self._calm_since, *free_at) + CONVERGENCE_BOUND  # without a driver, the core's time stands still
        if healed > now:  # a host in quarantine may not be used yet
            check(healed - now <= HOST_COOLDOWN[1] + CONVERGENCE_BOUND, "a host is quarantined without end")
            self.world.clockwork.after(healed - now + ROUNDING, self._check_convergence)
            return
        current = core.round
        members = [p for p in self.world.processes() if current and p.worker_id in current.plan.workers]
        for position in range(core.settings.replica_size):
            alike = [p for p in members if (p.trainee.position or 0) == position]
            holders = [p for p in alike if p.trainee.participant.committed != NO_VERSION]  # others were never synced
            # Where no holder is left, a suspected member may be one for all that the driver can know.
            awaited = holders or [p for p in alike if p.worker_id in core.suspects] or alike
            if awaited and all(p.frozen for p in awaited):  # there is none who could go on
                return
        if core.settings.one_replica and any(p.frozen for p in members) and self._lacks_parts(members):
            return
        check(not core.suspects, "a worker stays suspected: it is neither killed nor answers again")
        if (
            self.world.driver.outcome is None
            and current
            and current.running
            and not (self.world.job.bug or self.world.job.bad_size)
        ):
            size, wanted = len(current.plan.seats), self.world.driver.core.settings.max_np
            check(size == wanted, f"{size} of {wanted} workers train {CONVERGENCE_BOUND:g} s after the last fault")

    def _lacks_parts(self, members: list[Process]) -> bool:
        """Whether those that are not stopped do not have all of the state between them."""
        able = [p.trainee for p in members if not p.frozen]
        offers = [(t.participant.live, t.participant.sealed, t.shards_held(False)) for t in able]
        return shards_cut(offers) == NO_VERSION

    def _strike(self) -> None:
        if self._calm or self.world.driver.outcome:
            return
        world, rng = self.world, self.rng
        members, processes = world.members(), world.processes()
        kind = rng.choice(KINDS)
        world.log("fault", kind)
        victims = processes if rng.random() < 0.3 else members
        if kind == "hosts":
            world.driver.discover(*self._some_hosts())
        elif kind == "undo":
            before = [(h.name, h.slots) for h in world.driver.discovered]
            world.driver.discover(*self._some_hosts())
            world.clockwork.after(rng.uniform(0, 0.02), lambda: self._undo(before))
        elif kind == "launch":
            world.agents.launch_fails = {rng.choice(NAMES)}
        elif kind == "drain":
            self._drain(rng.choice(NAMES))
        elif len(victims) > 1 or (victims and rng.random() < 0.05):
            victim = rng.choice(victims)
            if kind == "kill":
                world.workers.kill(victim)
            elif kind == "agent":
                world.agents.kill(victim.host)
            elif kind == "cut":
                world.agents.cut(victim.host, rng.uniform(0.1, 8))
            elif kind == "cut all":
                seconds = rng.uniform(4, 15)
                for host in {id(p.host): p.host for p in processes}.values():
                    world.agents.cut(host, seconds + rng.uniform(0, 0.01))
            elif kind == "freeze all":
                seconds = rng.uniform(4, 15)
                for process in processes:
                    world.workers.freeze(process, seconds + rng.uniform(0, 0.5))
            elif kind == "freeze":
                world.workers.freeze(victim, LONG_STOP if rng.random() < 0.2 else rng.uniform(0.1, 15))
            elif kind == "stall":
                world.workers.stall(victim, rng.uniform(0.1, 15))
            elif kind == "explode":
                self._accidents += 1
                victim.trainee.explode_at = BUG_LINE + self._accidents
            elif kind == "slow":
                world.workers.slow = {victim.worker_id}
            elif kind == "glitch" and self._glitches:
                self._glitches -= 1
                victim.trainee.glitch = True
            elif kind == "stranger":
                victim.trainee.rounds.unproven = rng.randint(1, 4)

    def _unlink(self) -> None:
        """A host loses its workers and its data network; its agent answers. What starts there cannot connect."""
        members = [process for process in self.world.members() if self._has_trained(process.worker_id)]
        others = {process.host.name for process in members}
        if self._calm or len(others) < 2:
            return
        host = members[-1].host
        self.world.log("fault", f"unlink {host.name}")
        self._any_unlinked = True
        self.world.workers.unlinked = {host.name}
        for process in self.world.processes():
            if process.host.name == host.name:
                self.world.workers.kill(process)

    def _has_trained(self, worker_id: int) -> bool:
        worker = self.world.driver.core.roster.workers.get(worker_id)
        return worker is not None and worker.trained

    def _some_have_trained(self) -> bool:
        current = self.world.driver.core.round
        return current is not None and any(self._has_trained(worker_id) for worker_id in current.plan.workers)

    def _swallow(self) -> None:
        """The script of a member catches the next exception that is to lead it out of its round."""
        members = self.world.members()
        if members and not self._calm:
            self._accidents += 1
            members[-1].trainee.swallow_at = BUG_LINE + self._accidents

    def _kill_all_that_hold(self) -> None:
        """Every member of the round dies; some of those that wait for the next one may stay."""
        for process in self.world.processes():
            if process in self.world.members() or self._disaster_rng.random() < 0.7:
                self.world.log("fault", "kill, with all others")
                self.world.workers.kill(process)

    def _drain(self, host: str) -> None:
        """A host, or its first slot, is to be left; sometimes that is taken back, else at the end of the faults."""
        slot = 0 if self.rng.random() < 0.3 else None
        self.world.driver.feed(events.DrainRequested(host, slot, "the operator wants it"))
        self.world.clockwork.after(
            self.rng.choice((self.rng.uniform(0, 0.1), max(0.0, self.ends - self.world.clockwork.now))),
            lambda: self.world.driver.feed(events.UndrainRequested(host, slot)),
        )

    def _drain_in_time(self) -> None:
        """A host that is in use is to be left within a while; sometimes a member dies meanwhile."""
        world, rng, members = self.world, self._drains, self.world.members()
        if self._calm or not members:
            return
        host = rng.choice(sorted({member.host.name for member in members}))
        slot = 0 if rng.random() < 0.3 else None
        drain = events.DrainRequested(host, slot, "a notice", within=rng.uniform(1, 15), notice=rng.random() < 0.3)
        world.log("fault", f"drain of {host} within {drain.within:.1f} s")
        world.driver.feed(drain)
        undrain = events.UndrainRequested(host, slot)
        world.clockwork.after(max(0.0, self.ends - world.clockwork.now), lambda: world.driver.feed(undrain))
        if rng.random() < 0.5:
            world.clockwork.after(rng.uniform(0, 3), self._kill_a_member)

    def _undo(self, hosts: list[tuple[str, int]]) -> None:
        if not self._calm:
            self.world.driver.discover(*hosts)

    def _react(self, order: actions.Action) -> None:
        """Inject a fault at the worst moment: while a round is being built, synced, stopped or aborted."""
        if self._calm or self.rng.random() > self._reactive:
            return
        if isinstance(order, RoundPlan | actions.StopAt | actions.HostsUpdated | actions.Abort | actions.Finish):
            self.world.clockwork.after(self.rng.expovariate(100), self._kill_a_member)

    def _surprise(self, event: events.Event) -> None:
        """Change the hosts at the very end of a round, when some members are done and others are not."""
        if isinstance(event, events.WorkerDone) and not self._calm and self.rng.random() < 0.3:
            self.world.clockwork.after(0.0, lambda: self.world.driver.discover(*self._some_hosts()))

    def _kill_a_member(self) -> None:
        members = self.world.members()
        if len(members) > 1 and not self._calm:
            self.world.log("fault", "kill, in reaction")
            self.world.workers.kill(self.rng.choice(members))
