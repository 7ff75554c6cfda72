"""Random trouble over several hosts: kills, stopped workers and agents, cut cables, drains, hosts that come and go.

    python -m tests.trouble [--seeds 0 1000] [--together 10] [--record build/trouble.jsonl]

Each seed is a schedule. Some together are one run, one after the other, over real sshds on three hosts made of network
namespaces: after each, all that can train train. Afterwards the run has ended with 0, no process is left on any host,
each epoch has visited every sample once, and members of a round never held different states. What has been run is
written down, so that the rest can be run another time: seeds that are in the record are passed over. It ends with 1 if
anything was wrong in any run that is in the record.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

from benchmarks.jobs import end_well_on_sigterm
from tests.trouble.runner import run_schedules
from tests.trouble.schedule import schedule_of


def main() -> int:
    """Run the schedules that are not in the record yet."""
    parser = argparse.ArgumentParser(prog="python -m tests.trouble")
    parser.add_argument("--seeds", type=int, nargs=2, default=(0, 1000), metavar=("FROM", "TO"), help="TO is left out")
    parser.add_argument("--together", type=int, default=10, help="schedules of one run (default: %(default)s)")
    parser.add_argument("--record", type=Path, default=Path("build/trouble.jsonl"), help="(default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin no run after so many")
    flags = parser.parse_args()
    end_well_on_sigterm()
    flags.record.parent.mkdir(parents=True, exist_ok=True)
    known = _read(flags.record)
    ends = time.monotonic() + flags.seconds
    left = [seed for seed in range(*flags.seeds) if seed not in known]
    for seeds in (left[at : at + flags.together] for at in range(0, len(left), flags.together)):
        if time.monotonic() >= ends:
            break
        began = time.monotonic()
        wrong = run_schedules([schedule_of(seed) for seed in seeds])
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
