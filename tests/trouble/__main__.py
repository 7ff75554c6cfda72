"""Random trouble over several hosts: kills, stopped workers and agents, cut cables, drains, hosts that come and go.

    python -m tests.trouble [--seeds 0 1000] [--record build/trouble.jsonl]

Each seed is a run of its own, over real sshds on three hosts made of network namespaces. Afterwards: it has ended with
0, no process is left on any host, each epoch has visited every sample once, and members of a round never held
different states. What has been run is written down, so that the rest can be run another time: seeds that are in the
record are passed over. It ends with 1 if anything was wrong in any run that is in the record.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

from benchmarks.jobs import end_well_on_sigterm
from tests.trouble.runner import run_schedule
from tests.trouble.schedule import schedule_of


def main() -> int:
    """Run the schedules that are not in the record yet."""
    parser = argparse.ArgumentParser(prog="python -m tests.trouble")
    parser.add_argument("--seeds", type=int, nargs=2, default=(0, 1000), metavar=("FROM", "TO"), help="TO is left out")
    parser.add_argument("--record", type=Path, default=Path("build/trouble.jsonl"), help="(default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin no run after so many")
    flags = parser.parse_args()
    end_well_on_sigterm()
    flags.record.parent.mkdir(parents=True, exist_ok=True)
    known = _read(flags.record)
    ends = time.monotonic() + flags.seconds
    for seed in range(*flags.seeds):
        if seed in known or time.monotonic() >= ends:
            continue
        began = time.monotonic()
        schedule = schedule_of(seed)
        wrong = run_schedule(schedule)
        seconds = round(time.monotonic() - began, 1)
        known[seed] = wrong
        with flags.record.open("a") as record:
            record.write(json.dumps({"seed": seed, "seconds": seconds, "wrong": wrong}) + "\n")
        print(f"seed {seed}: {seconds} s: {'' if wrong else 'nothing wrong'}", flush=True)
        if wrong:
            print(f"    {schedule}", *wrong, sep="\n    ", flush=True)
    failed = sorted(seed for seed, wrong in known.items() if wrong)
    print(f"{len(known)} runs, {len(failed)} with something wrong{f': seeds {failed}' if failed else ''}")
    return 1 if failed else 0


def _read(record: Path) -> dict[int, list[str]]:
    """What was wrong, by seed, with those that have been run."""
    entries = [json.loads(line) for line in record.read_text().splitlines()] if record.exists() else []
    return {entry["seed"]: entry["wrong"] for entry in entries}


if __name__ == "__main__":
    sys.exit(main())
