"""Whether a run on a loaded machine is ever disturbed by a false alarm: nothing happens to it, and nothing may.

    python -m tests.trouble.calm [--minutes 60] [--busy 4]

Four workers on two hosts, network namespaces with a real sshd, beside processes that do nothing but compute. It ends
with 1 if there was a second round, and prints why it began.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.jobs import Workload, end_well_on_sigterm
from benchmarks.phases import read_event_log
from benchmarks.under_edriver import EdriverJob
from tests.busy import busy
from tests.linked_hosts import linked_hosts
from tests.ssh_hosts import ssh_hosts

WORKERS = 4
WARM_STEPS = 20


def main() -> int:
    """Let a run go on for a while, and look how often it was disturbed."""
    parser = argparse.ArgumentParser(prog="python -m tests.trouble.calm")
    parser.add_argument("--minutes", type=float, default=60.0, help="(default: %(default)g)")
    parser.add_argument("--busy", type=int, default=4, help="processes that compute beside it (default: %(default)s)")
    flags = parser.parse_args()
    end_well_on_sigterm()
    with contextlib.ExitStack() as made:
        there = made.enter_context(linked_hosts(3))
        folder = Path(made.enter_context(tempfile.TemporaryDirectory(prefix="edriver-calm-")))
        ssh = made.enter_context(ssh_hosts(there[1:], folder))
        through = ["ip", "netns", "exec", there[0].namespace]
        job = made.enter_context(EdriverJob(Workload(), through, {"PATH": ssh.path}))
        job.start({"host1": 2, "host2": 2}, np=WORKERS, min_np=1, max_np=WORKERS)
        job.wait_for_steps(size=WORKERS, steps=WARM_STEPS)
        made.enter_context(busy(flags.busy))
        time.sleep(flags.minutes * 60)
        rounds = read_event_log(job.event_log)
        steps = job.look()[-1].last_step
        code = job.finish()
    print(f"{flags.minutes:g} minutes beside {flags.busy} busy processes: {steps} steps, ended with {code}")
    for line in rounds[1:]:
        print(f"round {line.round}: {line.cause}")
    return 1 if code or rounds[1:] else 0


if __name__ == "__main__":
    sys.exit(main())
