"""Runs of restart mode with faults drawn from a seed: `python -m tests.sim.restart_world --seeds N`."""

from __future__ import annotations

import argparse
import random
import sys
import traceback
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from edriver.driver.core.replicas import in_replicas, replica_width
from edriver.model import actions, events
from edriver.model.cause import Cause, CauseKind, FailedResize
from edriver.model.ids import RoundId
from edriver.model.memory_checkpoint import CheckpointId
from edriver.model.mode import Mode
from edriver.model.plan import RoundPlan
from edriver.model.records import HostRecord
from edriver.model.settings import WHOLE_HOSTS, Settings
from edriver.v1 import notification_pb2 as pb
from tests.sim.checking import check
from tests.sim.drains import Drains
from tests.sim.faults import Nemesis
from tests.sim.invariants import AVOIDABLE, FailedSizes
from tests.sim.restart_trainee import RestartJob, RestartTrainee
from tests.sim.sim_agents import SimAgents
from tests.sim.sim_checkpoints import SimCheckpoints
from tests.sim.sim_hosts import Process
from tests.sim.sim_workers import SimWorkers
from tests.sim.trainee import Job
from tests.sim.world import World

SAVE_BOUND = 600.0
"""Virtual seconds after which an agreed stop is forced."""


class RestartInvariants:
    """What must hold in restart mode."""

    def __init__(self, world: RestartWorld) -> None:
        self._world = world
        self.checkpoint = 0
        self._sizes = FailedSizes()
        self._drains = Drains()
        self._ended: dict[RoundId, set[int]] = {}
        self._stop_ordered: tuple[RoundId, float] | None = None

    def before_step(self, event: events.Event) -> None:
        roster = self._world.driver.core.roster
        if isinstance(event, events.AgentLost) and roster.has_agent(event.host, event.agent_id):
            self._world.checkpoints.lost(event.host)
        self._drains.note(event, self._world.driver.core, self._world.driver.now)

    def after_step(self, orders: list[actions.Action]) -> None:
        core = self._world.driver.core
        self._drains.check(orders, core)
        checkpoints = self._world.checkpoints
        limit = core.settings.reset_limit
        for order in orders:
            match order:
                case actions.StopAt(round_id=round_id):
                    self._stop_ordered = round_id, self._world.driver.now
                case actions.Abort(_, round_id, cause) if cause.kind is CauseKind.MEMBERS_CHANGE:
                    self._check_saved(round_id)
                case actions.Abort(_, _, Cause(kind=CauseKind.RESIZE_FAILED)):
                    self._sizes.note_failed()
                case actions.Abort(_, _, cause):
                    check(cause.kind not in AVOIDABLE, f"nothing but the protocol itself ends a round: {cause}")
                case RoundPlan() as plan:
                    spent = plan.failures
                    check(
                        limit is None or spent <= limit,
                        f"a round begins after {spent} failures, of which {limit} are allowed",
                    )
                    checkpoints.round_begins(plan.memory_checkpoint)
                    check_replicas(plan, core.roster.hosts, core.settings.replica_size)
                case actions.Leave(worker_id) if core.settings.replica_size != 1:
                    self._check_without_place(worker_id)
                case actions.StopAgent(host):
                    checkpoints.let_go(host)
                case actions.AbandonAgent(host):
                    checkpoints.lost(host)
                case actions.FinishRun(cause=Cause(kind=CauseKind.RESIZE_FAILED, detail=FailedResize(size, before))):
                    check(size < before, f"a run ends of a size from which there is a way back: {order.cause}")
                case actions.FinishRun() if order.end is actions.RunEnd.DONE:
                    seats = self._world.driver.seats
                    whole = [r for r, ended in self._ended.items() if ended == set(seats[r].values())]
                    check(bool(whole), f"success, and in no round have all scripts ended: {self._ended}")

    def _check_without_place(self, worker_id: int) -> None:
        """A worker whose replica is not whole waits, as long as the run may use that."""
        core = self._world.driver.core
        worker, current = core.roster.workers[worker_id], core.round
        record = core.roster.hosts[worker.host]
        slots = in_replicas(core.settings.replica_size, record.slots, record.open_count)
        before = [w for w in core.roster.on(worker.host) if w.worker_id < worker_id and w.live and not w.trainer_gone]
        if not core.roster.keeps(worker) or sum(map(core.roster.keeps, before)) >= slots:
            return
        size = len(current.plan.seats) if current and current.running else 0
        room = core.sizes.max_workers - size
        check(
            room < replica_width(core.settings.replica_size, record.slots),
            f"worker {worker_id} is dismissed, and the run has room for its replica: {room}",
        )

    def _check_saved(self, round_id: RoundId) -> None:
        """Scripts that save on request by a call have saved their last step, unless they are silent or slow."""
        if self._stop_ordered is None or self._stop_ordered[0] != round_id:
            return
        now, at = self._world.driver.now, self._stop_ordered[1]
        members = [p for p in self._world.processes() if p.trainee.participant.round_id == round_id]
        if self._world.restart_job.way not in ("call", "rank 0") or now - at > SAVE_BOUND:
            return
        for process in members:
            other: Any = process.trainee
            if other.zero:
                # A script that goes on after it has saved is stopped at its next call, one step later.
                check(other.step <= self.checkpoint + 1, f"step {other.step} is lost, {self.checkpoint} is saved")

    def is_beyond_reach(self, trainee: RestartTrainee) -> bool:
        """Whether its host was given up while it was cut off: nothing that was ordered since has arrived there."""
        return all(process.worker_id != trainee.worker_id for process in self._world.processes())

    def script_begins(self, trainee: RestartTrainee) -> None:
        mine = trainee.participant.round_id
        for process in self._world.processes():
            other = process.trainee
            assert isinstance(other, RestartTrainee)
            if other.running and process.host.cut_since is None:
                theirs = other.participant.round_id
                check(theirs == mine, f"worker {other.worker_id} of {theirs} still runs as {mine} begins")

    def save(self, trainee: RestartTrainee, step: int) -> None:
        place = trainee.participant.assignment
        assert place is not None
        for process in self._world.processes():
            if process.worker_id == trainee.worker_id:
                checkpoint = CheckpointId(place.round_id, step, place.size)
                self._world.checkpoints.save(process.host, checkpoint, place.rank)

    def load(self, trainee: RestartTrainee) -> int:
        """The newer of the checkpoint in memory and the one on disk."""
        place = trainee.participant.assignment
        assert place is not None
        start = place.memory_checkpoint
        return max(self.checkpoint, 0 if start is None else self._world.checkpoints.load(start))

    def script_ended(self, trainee: RestartTrainee) -> None:
        self._ended.setdefault(trainee.participant.round_id, set()).add(trainee.worker_id)

    def __getattr__(self, name: str) -> Callable[..., None]:
        if name in ("process_ended", "collective_completed", "bug_met", "failed_by_itself", "freed_without_driver"):
            return lambda *_: None
        raise AttributeError(name)


def check_replicas(plan: RoundPlan, hosts: Mapping[str, HostRecord], size: int) -> None:
    """A round has whole replicas only, each with ranks that follow one another, on one host or on whole ones."""
    seats = [seat.host for seat in plan.seats]
    at = 0
    while at < len(seats):
        width = replica_width(size, hosts[seats[at]].slots)
        replica = Counter(seats[at : at + width])
        check(replica.total() == width, f"a replica of {width} has {replica.total()} workers: {plan}")
        for host, count in replica.items():
            slots = hosts[host].slots
            whole = len(replica) == 1 or (count == slots and slots < width)
            check(whole, f"a replica of {width} has {count} of the {slots} slots of {host}: {plan}")
        at += width


class RestartAgents(SimAgents):
    """Agents of a run in restart mode."""

    def note_loss(self, process: Process) -> None:
        """They free none: the driver restarts all."""


class RestartWorkers(SimWorkers):
    """Workers of a run in restart mode."""

    def _trainee(self, worker_id: int, report: Callable[[pb.Report], None]) -> Any:
        world: Any = self._world
        boot, step_time = world.rng.uniform(0.5, 3), partial(self._step_time, worker_id)
        return RestartTrainee(worker_id, world.restart_job, report, world.invariants, boot, step_time)


class RestartWorld(World):
    """A simulated run in restart mode."""

    agents_type = RestartAgents
    workers_type = RestartWorkers
    restart_job: RestartJob
    checkpoints: SimCheckpoints


class RestartNemesis(Nemesis):
    """Faults of a run in restart mode."""

    def __init__(self, seed: int, log: Callable[[str], None] | None = None) -> None:
        super().__init__(seed, log, all_share=0.0)
        draw = random.Random(seed ^ 0x2E57)
        limit = draw.choice((None, None, None, 1, 3))
        settings: Settings = replace(self.world.driver.core.settings, mode=Mode.RESTART, reset_limit=limit)
        bad_size = self.world.job.bad_size
        units = random.Random(seed ^ 0x5E91)
        if (size := units.choice((1, 1, 1, 2, 2, 3, 4, 8, WHOLE_HOSTS))) != 1:
            settings = _in_replicas(settings, size, units)
            bad_size = settings.np + size if bad_size and size and settings.max_np > settings.np else 0
        bad = self.world.workers.bad_hosts
        self.world = RestartWorld(seed, settings, self.world.job, log)
        self.world.checkpoints = SimCheckpoints(self.world, random.Random(seed ^ 0xC0B1))
        watcher: Any = RestartInvariants(self.world)
        self.world.invariants = watcher
        self.world.fabric.completed_in = lambda _round, _parties: None
        self.world.workers.bad_hosts = bad
        self.world.restart_job = RestartJob(
            steps=draw.choice((10, 100, 300)),
            save_every=draw.choice((1, 5, 20)),
            way=draw.choice(("", "signal", "call", "rank 0")),
            last_evaluation=draw.choice((0.0, 0.0, 10.0)),
            bad_size=bad_size,
            memory_every=draw.choice((0, 1, 3, 10)),
        )
        self.world.driver.ordered, self.world.driver.happened = self._react, self._surprise

    def _in_replicas(self, settings: Settings, job: Job, size: int, rng: random.Random) -> tuple[Settings, Job]:
        """They are drawn below, for this mode."""
        return settings, job

    def _check_convergence(self) -> None:
        """After some have run the whole script, a round keeps its size."""


def _in_replicas(settings: Settings, size: int, rng: random.Random) -> Settings:
    """The same run with sizes that replicas of this size make up; all hosts have four slots in the end."""
    if size == WHOLE_HOSTS:
        least, np, most = rng.randint(1, 4), 4, 4 * rng.randint(1, 3)
    else:
        replicas = rng.randint(1, 2)
        least, np, most = (
            size * rng.randint(1, replicas),
            size * replicas,
            size * min(replicas + rng.randint(0, 1), 16 // size),
        )
    return replace(settings, np=np, min_np=least, max_np=max(np, most), replica_size=size)


def main() -> int:
    """Parse the command line and run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=100)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--seed", type=int)
    options = parser.parse_args()
    if options.seed is not None:
        print(RestartNemesis(options.seed, print).run())
        return 0
    ends: Counter[str] = Counter()
    for seed in range(options.first, options.first + options.seeds):
        try:
            ends[RestartNemesis(seed).run().cause.kind.value] += 1
        except Exception as error:  # noqa: BLE001  whatever it is, it is this seed's
            ends["violation"] += 1
            print(
                f"seed {seed}: {error!r}"[:300], traceback.format_exc(limit=-1)[-300:] if ends["violation"] < 3 else ""
            )
    print(dict(ends))
    return 1 if ends["violation"] else 0


if __name__ == "__main__":
    sys.exit(main())
