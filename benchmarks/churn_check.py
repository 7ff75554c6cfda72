"""`make churn`: random churn over real processes, and what must hold whatever happens.

    python -m benchmarks.churn_check [--schedules 30] [--seed 1] [--bursts 5]

After each schedule: the run ended with 0, no process is left, each epoch of the surviving history visited every sample
exactly once (end padding aside), and members of a round never held different states. A schedule that fails prints its
seed and keeps its folder.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter

from benchmarks.history import Round, faults
from benchmarks.jobs import HarnessError, Workload, end_well_on_sigterm
from benchmarks.processes import kill
from benchmarks.records import RoundStart
from benchmarks.schedule import MOST_WORKERS, Burst, Kill, Resize, Schedule, schedule_of
from benchmarks.under_edriver import EdriverJob

STEADY_STEPS = 3
RECOVERY_BOUND = 240.0
COOLDOWN_FLAGS = ("--blacklist-cooldown-range", "0.1", "0.5")  # or slots that are killed often would pause for long


class Nemesis:
    """Does to a run what a schedule says.

    Args:
        job: the run.
        bound: seconds in which it must have recovered.
    """

    def __init__(self, job: EdriverJob, bound: float = RECOVERY_BOUND) -> None:
        self._job = job
        self._bound = bound
        self._spared: RoundStart | None = None
        self.kills = 0

    def perform(self, burst: Burst) -> None:
        """Let a burst happen, and wait until the run has got over it.

        Raises:
            HarnessError: it does not, within a bound.
        """
        self._spared = None
        for event in burst.events:
            time.sleep(event.delay)
            match event:
                case Kill():
                    self._kill(event)
                case Resize():
                    self._resize(event)
        self.await_recovery(burst.whole)

    def await_recovery(self, whole: bool) -> None:
        """Wait until the newest round trains, and, if asked for, until it has all slots."""
        happened = time.monotonic()

        def recovered(rounds: list[Round]) -> bool:
            if not rounds or (whole and not self._is_whole(rounds[-1])):
                return False
            steps = [step for step in rounds[-1].completions() if step[0] > happened]
            return len(steps) >= STEADY_STEPS and self._lives(rounds[-1])

        self._job.wait_until(recovered, self._bound, f"recovery to {self._job.hosts}" if whole else "recovery")

    def _is_whole(self, current: Round) -> bool:
        """Whether all slots, as far as they may be used, are in the round."""
        hosts = self._job.hosts
        members = Counter(start.host for start in current.starts.values())
        fits = all(count <= hosts.get(host, 0) for host, count in members.items())
        return fits and members.total() == min(sum(hosts.values()), MOST_WORKERS)

    def _lives(self, current: Round) -> bool:
        """Whether all its members are still there: one that was killed just now may have finished steps before."""
        return current.members.keys() <= self._job.processes().keys()

    def _kill(self, event: Kill) -> None:
        script = self._job.script
        workers = {pid for pid, command in self._job.processes().items() if script in command} - {self._job.driver}
        current = self._job.look()[-1]
        members = [start for _, start in sorted(current.starts.items()) if start.pid in workers]
        if self._spared is None:
            self._spared = self._survivor(members, event)
        victims = sorted(workers - {self._spared.pid})
        chosen = []
        if event.rank_zero and (zero := current.starts.get(0)) and zero.pid in victims:
            chosen.append(zero.pid)
        for choice in event.choices[len(chosen) :]:
            left = [pid for pid in victims if pid not in chosen]
            chosen += left[int(choice * len(left)) :][:1]
        self.kills += sum(kill(pid) for pid in chosen)

    def _survivor(self, members: list[RoundStart], event: Kill) -> RoundStart:
        """A member that this burst spares, since it holds the state; another than rank 0 if that is to die."""
        if not members:
            raise HarnessError("no member of the newest round lives", self._job.folder)
        if event.rank_zero and len(members) > 1:
            members = [start for start in members if start.rank != 0]
        return members[int(event.choices[0] * len(members))]

    def _resize(self, event: Resize) -> None:
        hosts = dict(event.hosts)
        if self._spared is not None:
            hosts = {self._spared.host: self._job.hosts[self._spared.host]} | hosts
            hosts[self._spared.host] = max(hosts[self._spared.host], self._job.hosts[self._spared.host])
        self._job.set_hosts(hosts)


def run_schedule(schedule: Schedule, kind: type[EdriverJob] = EdriverJob) -> list[str]:
    """Run one schedule with a job of this kind; returns what was wrong, in sentences."""
    began = time.monotonic()
    workload = Workload(
        samples=schedule.samples,
        batch_size=4,
        hidden=16,
        step_seconds=schedule.step_seconds,
        commit_steps=schedule.commit_steps,
        digest=True,
    )
    with kind(workload) as job:
        np = min(sum(schedule.hosts.values()), MOST_WORKERS)
        try:
            job.start(schedule.hosts, np=np, min_np=schedule.min_np, max_np=MOST_WORKERS, flags=COOLDOWN_FLAGS)
            nemesis = Nemesis(job)
            nemesis.await_recovery(whole=True)
            for burst in schedule.bursts:
                nemesis.perform(burst)
            code = job.finish()
        except HarnessError as error:
            job.keep()
            return [error.what, f"folder: {job.folder}"]
        found = [f"the run ended with {code}"] if code != 0 else []
        found += [f"left behind: process {pid}, {command}" for pid, command in job.processes().items()]
        found += faults(job.history, schedule.samples)
        if found:
            job.keep()
            return [*found, f"folder: {job.folder}"]
        rounds = job.history.rounds
        print(
            f"seed {schedule.seed}: {len(rounds)} rounds, {nemesis.kills} kills, {rounds[-1].last_step} steps, "
            f"{job.history.steps_lost()} lost, {time.monotonic() - began:.0f} s: nothing wrong",
            flush=True,
        )
    return []


def main() -> int:
    """Run the schedules; returns 1 if anything was wrong in any."""
    flags = _flags()
    end_well_on_sigterm()
    failed = []
    for seed in range(flags.seed, flags.seed + flags.schedules):
        schedule = schedule_of(seed, flags.bursts)
        if wrong := run_schedule(schedule):
            failed.append(seed)
            print(f"seed {seed} FAILED: {schedule}", *wrong, sep="\n    ", flush=True)
    if failed:
        print(f"{len(failed)} of {flags.schedules} schedules failed: seeds {failed} (--seed N --schedules 1 for one)")
    return 1 if failed else 0


def _flags() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.churn_check", description="random churn, real processes"
    )
    parser.add_argument("--schedules", type=int, default=30, help="how many (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="the first one's seed; the others count on")
    parser.add_argument("--bursts", type=int, default=5, help="bursts of events in each (default: %(default)s)")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
