"""Everything that `make bench` can run: what, under which system, and about how long it takes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

from benchmarks import driver_loss
from benchmarks.goodput import goodput
from benchmarks.jobs import Workload
from benchmarks.micro import Micro, measured, present
from benchmarks.quiet import quiet
from benchmarks.scenarios import cut_anew, killed, on_ray, replica_joined, resized, stopped, without_ray
from benchmarks.sharded import KILLS, QUICK, WORKLOAD, OneReplicaJob, ShardedJob, equal_bits, sharded_speed
from benchmarks.speed import speed
from benchmarks.under_edriver import EdriverJob, EdriverWithoutJournalJob, EdriverWithoutStandbysJob
from benchmarks.under_nothing import BareJob
from benchmarks.under_ray import EdriverOnRayJob, FourHostsJob, RayTrainJob, ray_train_installed
from benchmarks.under_restart_mode import RestartJob
from benchmarks.under_torchft import TorchftJob, TorchftShardedJob, installed
from benchmarks.under_torchrun import TorchrunJob


@dataclass(frozen=True, slots=True)
class Trial:
    """One thing to measure, under one system.

    Attributes:
        part: what, as on the command line.
        system: under which system.
        seconds: how long it takes on two cores, roughly.
        run: runs it; gives figures by name.
        once: whether one run is enough, however many repeats are asked for.
    """

    part: str
    system: str
    seconds: float
    run: Callable[[], Mapping[str, float]]
    once: bool = False


def trials(commit_steps: int, seed: int) -> list[Trial]:
    """All trials, in the order in which they take turns.

    Args:
        commit_steps: every which step edriver's job commits; 0: never.
        seed: of the schedule of GOODPUT.
    """
    ours = Workload(commit_steps=commit_steps)

    def bare() -> BareJob:
        return BareJob(Workload())

    def edriver() -> EdriverJob:
        return EdriverJob(ours)

    def restart() -> RestartJob:
        return RestartJob(Workload())

    def torchft() -> TorchftJob:
        return TorchftJob(Workload())

    def torchrun(workers: int) -> TorchrunJob:
        return TorchrunJob(Workload(), workers)

    def without_journal() -> EdriverWithoutJournalJob:
        return EdriverWithoutJournalJob(ours)

    found = []
    for part, rank in (("K1", 2), ("K0", 0)):
        found += [
            Trial(part, "edriver", 16, partial(killed, edriver, rank)),
            Trial(part, "restart mode", 20, partial(killed, restart, rank)),
            Trial(part, "bare", 9, partial(killed, bare, rank)),
            Trial(part, "torchft", 15, partial(killed, torchft, rank)),
            Trial(part, "torchrun", 20, partial(killed, partial(torchrun, 4), rank)),
            Trial(part, "no journal", 16, partial(killed, without_journal, rank)),
        ]
    found.append(Trial("K1", "no standbys", 16, partial(killed, lambda: EdriverWithoutStandbysJob(ours), 2)))
    for part, before, after in (("UP", 2, 4), ("DOWN", 4, 2)):
        found += [
            Trial(part, "edriver", 14, partial(resized, edriver, before, after)),
            Trial(part, "restart mode", 20, partial(resized, restart, before, after)),
            Trial(part, "torchft", 13, partial(resized, torchft, before, after)),
            Trial(part, "torchrun", 22, partial(resized, partial(torchrun, 2), before, after)),
            Trial(part, "no journal", 14, partial(resized, without_journal, before, after)),
        ]
    found += [
        Trial("STOP", "edriver", 27, partial(stopped, edriver, 2)),
        Trial("STOP", "no journal", 27, partial(stopped, without_journal, 2)),
        Trial("SPEED", "edriver", 62, speed),
        Trial("GOODPUT", "edriver", 200, partial(goodput, edriver, seed), once=True),
        Trial("GOODPUT", "torchft", 200, partial(goodput, torchft, seed), once=True),
        Trial("GOODPUT", "torchrun", 200, partial(goodput, partial(torchrun, 2), seed), once=True),
        Trial("QUIET", "edriver", 40, partial(quiet, edriver)),
        Trial("QUIET", "no journal", 40, partial(quiet, without_journal)),
    ]
    if driver_loss.present():
        found += [
            Trial("DRIVER", "edriver", 15, driver_loss.driver_killed),
            Trial("DRIVER", "edriver", 15, driver_loss.worker_killed_meanwhile),
            Trial("DRIVER", "edriver", 15, driver_loss.driver_killed_with_a_standby),
            Trial("DRIVER", "edriver", 10, driver_loss.all_workers_killed),
        ]
    if ray_train_installed():
        found += [
            Trial("RAY", "edriver", 60, partial(without_ray, lambda: FourHostsJob(ours))),
            Trial("RAY", "edriver on Ray", 160, partial(on_ray, lambda: EdriverOnRayJob(ours))),
            Trial("RAY", "Ray Train", 400, partial(on_ray, lambda: RayTrainJob(Workload()))),
        ]
    found += [Trial(micro.part, "edriver", micro.seconds, partial(measured, micro)) for micro in present()]
    found += sharded_trials()
    return [trial for trial in found if trial.system != "torchft" or installed()]


def sharded_trials(quick: bool = False) -> list[Trial]:
    """Those of a sharded model: `python -m benchmarks.sharded_recovery` has them alone.

    Args:
        quick: with a small model, few kills and few turns, to see whether the harness works.
    """
    workload = QUICK if quick else WORKLOAD
    found = []
    for part, rank in (("HSDP K1", 2), ("HSDP K0", 0)):
        found += [
            Trial(part, "edriver", 150, partial(killed, partial(ShardedJob, workload), rank)),
            Trial(part, "DDP", 150, partial(killed, partial(EdriverJob, workload), rank)),
            Trial(part, "torchft", 150, partial(killed, partial(TorchftShardedJob, workload), rank)),
        ]
    seal = Micro("HSDP SEAL", "benchmarks.seal_speed", 15, ("--quick",) if quick else ())
    kills, turns, turn_seconds = (2, 4, 1.0) if quick else (KILLS, 20, 8.0)
    found += [
        Trial("HSDP UP", "edriver", 150, partial(replica_joined, partial(ShardedJob, workload))),
        Trial("HSDP ALL", "edriver", 150, partial(cut_anew, partial(OneReplicaJob, workload))),
        Trial(seal.part, "edriver", seal.seconds, partial(measured, seal)),
        Trial("HSDP SPEED", "edriver", 360, partial(sharded_speed, workload, turns, turn_seconds)),
        Trial("HSDP BITS", "edriver", 800, partial(equal_bits, workload, kills), once=True),
    ]
    return [trial for trial in found if trial.system != "torchft" or installed()]
