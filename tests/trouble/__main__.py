"""Random trouble over several hosts: kills, stopped workers and agents, cut cables, drains, hosts that come and go.

    python -m tests.trouble [--seeds 0 1000] [--together 10] [--hard] [--minutes 60] [--busy 20]

Each seed is a schedule. Some together are one run, one after the other, over real sshds on three hosts made of network
namespaces: after each, all that can train train. Afterwards the run has ended with 0, no process is left on any host,
each epoch has visited every sample once, and members of a round never held different states. What has been run is
written down, so that the rest can be run another time: seeds that are in the record are passed over. It ends with 1 if
anything was wrong in any run that is in the record.

With --hard there is also what a run must bear as if nothing had happened: the driver stopped for up to 20 s, all
workers for up to 12 s, calls of up to 20 s that hold the interpreter, forks, kills of guards, floods of output. Half of
the schedules then have nothing else, and no round may end in them. An hour of it on a busy machine:

    python -m tests.trouble --hard --minutes 60 --busy 20

With --drivers the driver is killed, too, up to three times in a schedule, and the run is resumed up to 8 s later. Half
of the schedules have nothing else, and no round may end in them.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

from benchmarks.churn_check import RECOVERY_BOUND
from benchmarks.jobs import end_well_on_sigterm
from tests.busy import busy
from tests.trouble.runner import run_schedules
from tests.trouble.schedule import schedule_of

BUSY_BOUND = 5 * RECOVERY_BOUND
"""Seconds in which a run must have recovered on a machine that is busy with other things."""


def main() -> int:
    """Run the schedules that are not in the record yet."""
    parser = argparse.ArgumentParser(prog="python -m tests.trouble")
    parser.add_argument("--seeds", type=int, nargs=2, default=(0, 1000), metavar=("FROM", "TO"), help="TO is left out")
    parser.add_argument("--together", type=int, default=10, help="schedules of one run (default: %(default)s)")
    parser.add_argument("--record", type=Path, help="(default: build/trouble.jsonl, or trouble-hard.jsonl)")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="begin no run after so many")
    parser.add_argument("--hard", action="store_true", help="also what a run must bear as if nothing had happened")
    parser.add_argument("--busy", type=int, default=0, help="processes that compute beside it (default: %(default)s)")
    parser.add_argument("--drivers", action="store_true", help="also kill the driver, and resume the run")
    flags = parser.parse_args()
    kind = "-hard" if flags.hard else "-drivers" if flags.drivers else ""
    flags.record = flags.record or Path(f"build/trouble{kind}.jsonl")
    end_well_on_sigterm()
    flags.record.parent.mkdir(parents=True, exist_ok=True)
    known = _read(flags.record)
    ends = time.monotonic() + 60 * flags.minutes
    left = [seed for seed in range(*flags.seeds) if seed not in known]
    bound = BUSY_BOUND if flags.busy else RECOVERY_BOUND
    with busy(flags.busy):
        for seeds in (left[at : at + flags.together] for at in range(0, len(left), flags.together)):
            if time.monotonic() >= ends:
                break
            began = time.monotonic()
            wrong = run_schedules([schedule_of(seed, flags.hard, flags.drivers) for seed in seeds], bound)
            seconds = round(time.monotonic() - began, 1)
            known.update(dict.fromkeys(seeds, wrong))
            with flags.record.open("a") as record:
                record.write(json.dumps({"seeds": seeds, "seconds": seconds, "wrong": wrong}) + "\n")
            print(f"seeds {seeds[0]} to {seeds[-1]}: {seconds} s: {'' if wrong else 'nothing wrong'}", flush=True)
            if wrong:
                print(*wrong, sep="\n    ", flush=True)
    failed = sorted(seed for seed, wrong in known.items() if wrong)
    print(f"{len(known)} schedules, {len(failed)} in runs with something wrong{f': seeds {failed}' if failed else ''}")
    return 1 if failed else 0


def _read(record: Path) -> dict[int, list[str]]:
    """What was wrong, by seed, with those that have been run."""
    entries = [json.loads(line) for line in record.read_text().splitlines()] if record.exists() else []
    return {seed: entry["wrong"] for entry in entries for seed in entry["seeds"]}


if __name__ == "__main__":
    sys.exit(main())
