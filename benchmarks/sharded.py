"""HSDP: what 2 replicas x 2 shards of 25 M parameters with Adam cost, and lose, beside DDP of the same model."""

from __future__ import annotations

import random
import time

from benchmarks.jobs import HarnessError, Workload
from benchmarks.processes import kill
from benchmarks.speed import Subject, speed
from benchmarks.under_edriver import HOSTS, EdriverJob

REPLICA_SIZE = 2
FLAGS = ("--replica-size", str(REPLICA_SIZE))

WORKLOAD = Workload(samples=512, hidden=2048, layers=6, step_seconds=0.0)
"""25.7 M parameters; an epoch of 4 workers has 16 steps."""

QUICK = Workload(samples=512, hidden=64, layers=2, step_seconds=0.02)
"""To see whether the harness works."""

KILLS = 20
SEED = 1
STEPS_TO_STOP = 20
"""How many steps lie between the order to stop and the step to stop at, so that all workers know of it by then."""


QUIET_BOUND = 3600.0
"""Longest that the undisturbed run may take for as many steps, in seconds."""


class ShardedJob(EdriverJob):
    """A run of whole replicas of two workers, each replica on a host of its own."""

    script = "benchmarks.sharded_job"
    flags = FLAGS

    def launch(self, size: int) -> None:
        """Start the driver with 2 or 4 workers; it may go on with a replica, and have two at most."""
        self.start(HOSTS[size], np=size, min_np=REPLICA_SIZE)


class OneReplicaJob(EdriverJob):
    """A run whose four workers are one replica, each with another's shard as its shadow."""

    script = "benchmarks.sharded_job"
    flags = ("--replica-size", "all", "--standby-workers", "0")  # so three make steps before there are four

    def launch(self, size: int) -> None:
        """Start the driver; it may go on with three workers."""
        self.start(HOSTS[size], np=size, min_np=3)


class _BitsJob(ShardedJob):
    """The same, of a training that does not depend on the number of replicas."""

    script = "benchmarks.sharded_bits_job"

    def stop_at(self, step: int) -> None:
        """Have the script end after that step."""
        unfinished = self.folder / "stop.unfinished"
        unfinished.write_text(str(step))
        unfinished.replace(self.folder / "stop")

    def end(self) -> dict[int, str]:
        """Wait for the end; by rank, what the members of the last round then hold.

        Raises:
            HarnessError: it ends badly, or without two whole replicas.
        """
        code = self.wait()
        last = self.history.rounds[-1]
        held = {rank: record.digest for rank, record in last.done.get(last.last_step, {}).items()}
        if code != 0 or len(held) != 2 * REPLICA_SIZE or not all(held.values()):
            self.keep()
            raise HarnessError(f"the run ended with {code}, and {held} at its end", self.folder)
        return held


def equal_bits(workload: Workload = WORKLOAD, kills: int = KILLS, seed: int = SEED) -> dict[str, float]:
    """HSDP BITS: kill workers, one after the other, at random times; then compare with an undisturbed run.

    Args:
        workload: what trains.
        kills: how many.
        seed: of the times and the victims.

    Raises:
        HarnessError: a run does not go on, or does not end.
    """
    chosen = random.Random(seed)
    with _BitsJob(workload) as job:
        job.launch(4)
        job.wait_for_steps(size=4, steps=3)
        for _ in range(kills):
            time.sleep(chosen.uniform(0, 2 * job.history.step_seconds(4)))
            now = time.monotonic()
            kill(job.look()[-1].starts[chosen.randrange(4)].pid)
            job.wait_for_steps(size=4, steps=3, after=now)
        last = job.look()[-1].last_step + STEPS_TO_STOP
        job.stop_at(last)
        held, lost, rounds = job.end(), job.history.steps_lost(), len(job.history.rounds)
    with _BitsJob(workload) as job:
        job.stop_at(last)
        job.launch(4)
        job.wait_for_steps(size=4, steps=last - STEPS_TO_STOP, bound=QUIET_BOUND)
        undisturbed = job.end()
    different = sum(held[rank] != undisturbed[rank] for rank in held)
    return {
        "kills": kills,
        "rounds": rounds,
        "steps": last,
        "steps lost": lost,
        "ranks with other bits than undisturbed": different,
    }


def sharded_speed(workload: Workload = WORKLOAD, turns: int = 20, turn_seconds: float = 8.0) -> dict[str, float]:
    """HSDP SPEED: how fast they train, beside the same script without edriver; see speed.speed.

    A step takes a second, so a turn is longer than an agent's lease. The driver is stopped in it as well, and notices.
    """
    size = (str(workload.hidden), str(workload.layers), str(workload.batch_size))
    return speed(
        Subject(
            "benchmarks.sharded_speed_job",
            size,
            workers=2 * REPLICA_SIZE,
            flags=FLAGS,
            warm_steps=10,
            turns=turns,
            turn_seconds=turn_seconds,
        )
    )
