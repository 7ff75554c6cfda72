"""`make soak`: a thousand kills and replacements in one run, and what the survivors hold meanwhile.

    python -m benchmarks.soak [--kills 1000] [--seed 1] [--output docs/benchmarks/soak.md]

Four workers on two hosts. Each wave kills one or two with SIGKILL and waits until the replacements train with the
others; then memory, descriptors and threads are looked at. It ends with 1 if anything grew, any recovery was slow, or
any step or sample was lost. Stopped by Ctrl-C or SIGTERM it reports what it has.
"""

from __future__ import annotations

import argparse
import datetime
import os
import shlex
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from benchmarks import soak_page
from benchmarks.endurance import Outcome, Recovery, complaints
from benchmarks.history import Round, faults
from benchmarks.jobs import HarnessError, Workload, end_well_on_sigterm
from benchmarks.lives import Life, Sample
from benchmarks.processes import kill
from benchmarks.records import RoundStart
from benchmarks.under_edriver import EdriverJob
from benchmarks.vitals import Vitals, vitals_of_all, zombies_of
from benchmarks.waves import Strike, Wave, waves_of

HOSTS = {"localhost": 2, "127.0.0.1": 2}
WORKERS = 4
EXPECTED = {"driver": 1, "agent": len(HOSTS), "guard": 1 + len(HOSTS), "worker": WORKERS}
WARM_STEPS = 20
STEPS_WHOLE = 2
"""Steps that all four have to finish together before the next wave."""

WAVE_BOUND = 120.0
COOLDOWN_FLAGS = ("--blacklist-cooldown-range", "0.001", "0.001")  # replacements come at once, however often
LOOKS, LOOK_SECONDS = 3, 0.1
PROGRESS_KILLS = 20
ROLES = {"-m edriver ": "driver", "edriver.agent.main": "agent", "guard_main.py": "guard"}
JOB = "benchmarks.churn_job"


class Soak:
    """Kills, waits, looks, again and again.

    Args:
        job: a run that trains with all its workers.
        outcome: takes what is found.
    """

    def __init__(self, job: EdriverJob, outcome: Outcome) -> None:
        self._job = job
        self._outcome = outcome
        self._living: dict[int, Life] = {}
        self._reign = -1
        self._elder = 0
        self._look()

    def perform(self, wave: Wave) -> None:
        """Let a wave happen, wait until the run is whole again, and look at what is there.

        Raises:
            HarnessError: it does not become whole.
        """
        outcome = self._outcome
        victims: list[RoundStart] = []
        struck = 0.0
        for strike in wave.strikes:
            time.sleep(strike.delay)
            victim = self._victim(wave, strike, victims)
            struck = time.monotonic()
            kill(victim.pid)
            victims.append(victim)
        outcome.kills += len(victims)
        outcome.rank_zero += sum(victim.rank == 0 for victim in victims)
        what = f"all {WORKERS} again after kill {outcome.kills}"
        self._job.wait_until(lambda rounds: _is_whole(rounds[-1], after=struck), WAVE_BOUND, what)
        outcome.recoveries.append(self._recovery(struck, victims))
        gone = {victim.pid for victim in victims}
        self._job.retire(gone)
        for pid in gone:
            self._living.pop(pid, None)
        self._look()

    def _victim(self, wave: Wave, strike: Strike, before: list[RoundStart]) -> RoundStart:
        """Who is hit: by rank in the newest round, or any whom the wave has not hit yet."""
        rounds = self._job.look()
        if wave.spares_elder and wave.reign != self._reign:
            self._reign = wave.reign
            self._elder = max(rounds[-1].starts.values(), key=lambda start: start.rank).pid
        hit = {victim.pid for victim in before}
        if wave.spares_elder:
            hit.add(self._elder)
        # Of a round that has just begun, only those may be known that are not to be hit.
        known = ([start for _, start in sorted(r.starts.items()) if start.pid not in hit] for r in reversed(rounds))
        members = next(filter(None, known))
        if strike.rank_zero and members[0].rank == 0:
            return members[0]
        return members[int(strike.choice * len(members))]

    def _recovery(self, struck: float, victims: list[RoundStart]) -> Recovery:
        for current in self._job.history.rounds[-4:]:
            if _began(current) > struck:
                for finished, _ in current.completions():
                    return Recovery(
                        kill=self._outcome.kills,
                        round=current.number,
                        entered=max(start.time for start in current.starts.values()) - struck,
                        seconds=finished - struck,
                        rank_zero=any(victim.rank == 0 for victim in victims),
                        victims=len(victims),
                    )
        raise HarnessError(f"more than four rounds after kill {self._outcome.kills}", self._job.folder)

    def _look(self) -> None:
        """Take a sample of every process, and count them."""
        kinds, vitals, zombies = self._quiet_look()
        self._outcome.processes = max(self._outcome.processes, len(vitals))
        for pid, held in vitals.items():
            if pid not in self._living:
                life = Life(kinds[pid], pid)
                self._living[pid] = life
                self._outcome.lives.append(life)
            self._living[pid].samples.append(Sample(self._outcome.kills, held))
        found = {role: sum(kinds[pid] == role for pid in vitals) for role in EXPECTED}
        if found != EXPECTED or zombies:
            self._outcome.wrong.append(f"kill {self._outcome.kills}: processes {found}, zombies {sorted(zombies)}")

    def _quiet_look(self) -> tuple[dict[int, str], dict[int, Vitals], set[int]]:
        """Roles and vitals of those that are there in each of a few looks, and the zombies; see Vitals.least.

        The mark of one whose memory is just being moved may not be read: those that are known are looked for by number.
        """
        processes = self._job.processes()
        kinds = {pid: life.role for pid, life in self._living.items()}
        kinds |= {pid: role for pid, command in processes.items() if (role := _role(command))}
        vitals = vitals_of_all(kinds)
        zombies = zombies_of(processes)
        for _ in range(LOOKS - 1):
            time.sleep(LOOK_SECONDS)
            vitals = {pid: held.least(vitals[pid]) for pid, held in vitals_of_all(vitals).items()}
            zombies &= zombies_of(processes)
        return kinds, vitals, zombies


def _role(command: str) -> str:
    """What a process is; empty: none of edriver's (discovery's script, which comes and goes)."""
    if command.startswith(sys.executable) and JOB in command and " -m edriver " not in command:
        return "worker"
    return next((role for part, role in ROLES.items() if part in command), "")


def _is_whole(current: Round, after: float) -> bool:
    if current.size != WORKERS or len(current.starts) != WORKERS or _began(current) < after:
        return False
    return len(list(current.completions())) >= STEPS_WHOLE


def _began(current: Round) -> float:
    return min(start.time for start in current.starts.values())


def run(waves: list[Wave], outcome: Outcome, say: Callable[[str], None]) -> None:
    """Soak one run; what was found is in the outcome, also if an exception ends this."""
    workload = Workload(hidden=256, step_seconds=0.05)
    with EdriverJob(workload) as job:
        began = time.monotonic()
        try:
            job.start(HOSTS, np=WORKERS, min_np=1, max_np=WORKERS, flags=COOLDOWN_FLAGS)
            job.wait_for_steps(size=WORKERS, steps=WARM_STEPS)
            soak = Soak(job, outcome)
            began = time.monotonic()
            for wave in waves:
                before = outcome.kills
                soak.perform(wave)
                if before // PROGRESS_KILLS != outcome.kills // PROGRESS_KILLS:
                    outcome.seconds = time.monotonic() - began
                    say(_progress(outcome))
            outcome.seconds = time.monotonic() - began
            outcome.wrong += _end(job)
        except HarnessError as error:
            outcome.wrong.append(str(error))
        finally:
            outcome.seconds = outcome.seconds or time.monotonic() - began
            rounds = job.look()
            outcome.rounds, outcome.steps = len(rounds), rounds[-1].last_step if rounds else 0
            outcome.steps_lost = job.history.steps_lost()
            if any(complaints(outcome)):
                job.keep()


def _end(job: EdriverJob) -> Iterator[str]:
    """End the run in order; yields what is wrong with its end or its records."""
    code = job.finish()
    if code != 0:
        yield f"the run ended with {code}"
    yield from (f"left behind: process {pid}, {command}" for pid, command in job.processes().items())
    yield from faults(job.history, job.workload.samples)


def _progress(outcome: Outcome) -> str:
    last = outcome.recoveries[-10:]
    held = ", ".join(
        f"{life.role} {life.samples[-1].vitals.memory / 1e6:.1f} MB "
        f"{life.samples[-1].vitals.descriptors} fds {life.samples[-1].vitals.threads} threads"
        for life in outcome.lives
        if life.samples[-1].kills == outcome.kills and life.role != "guard"
    )
    slowest = max(recovery.seconds for recovery in last) * 1000
    return f"{outcome.kills} kills, {outcome.seconds:.0f} s, slowest of the last 10: {slowest:.0f} ms; {held}"


def main() -> int:
    """Soak; returns 1 if anything was wrong."""
    flags = _flags()
    end_well_on_sigterm()
    load = os.getloadavg()[0]
    outcome = Outcome()
    try:
        run(waves_of(flags.seed, flags.kills), outcome, lambda text: print(text, file=sys.stderr, flush=True))
    except (KeyboardInterrupt, SystemExit):
        outcome.wrong.append(f"stopped after {outcome.kills} of {flags.kills} kills")
    print(soak_page.figures(outcome))
    if flags.output:
        command = shlex.join(["python", "-m", "benchmarks.soak", *sys.argv[1:]])
        date = datetime.datetime.now(datetime.UTC).date().isoformat()
        soak_page.write(flags.output, outcome, command, date, load)
    return 1 if any(complaints(outcome)) else 0


def _flags() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.soak", description="many kills in one run")
    parser.add_argument("--kills", type=int, default=1000, help="how many (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="decides who is killed when (default: %(default)s)")
    parser.add_argument("--output", type=Path, help="write a page of Markdown, and its picture to ../pictures/soak.png")
    flags = parser.parse_args()
    if flags.kills < 1:
        parser.error(f"--kills is {flags.kills}: at least one is needed")
    return flags


if __name__ == "__main__":
    sys.exit(main())
