"""How long training stops for a drain, beside a growth of the same run: `python -m benchmarks.drain_pause --boot 20`.

Two workers on one host become four on two; then the second host is drained, while a third one is free. Workers take
`--boot` seconds to boot, beside what their imports take: neither change may stop training for as long as that.
"""

from __future__ import annotations

import argparse
import sys
import time

from benchmarks.jobs import Job, Workload, end_well_on_sigterm
from benchmarks.scenarios import WARM_STEPS
from benchmarks.under_edriver import GUEST, HOME, EdriverJob
from edriver.client import Client, here
from edriver.v1 import control_pb2

FREE = "127.0.0.3"
MAY_BE_TIMES = 1.3
"""The longest pause of a drain, by that of a growth."""


def drain_pause(boot: float) -> dict[str, float]:
    """Grow, and drain.

    Args:
        boot: seconds that a worker's boot takes beside its imports.

    Raises:
        HarnessError: the run does not do so in time, or drains otherwise than by changing places.
    """
    with EdriverJob(Workload(boot_seconds=boot)) as job:
        bound = 120.0 + 2 * boot
        job.start({HOME: 2}, np=2, min_np=2)
        job.wait_for_steps(2, WARM_STEPS, bound=bound)
        began = time.monotonic()
        job.set_hosts({HOME: 2, GUEST: 2})
        job.wait_for_steps(4, WARM_STEPS, after=began, bound=bound)
        growth = job.history.longest_pause(after=began)
        job.set_hosts({HOME: 2, GUEST: 2, FREE: 2})
        with Client(here(job.run_id)) as client:
            job.wait_until(lambda _: FREE in {host.name for host in client.status().hosts}, bound, "a third host")
            expected = client.preview_drain(GUEST)
            rounds, drained = len(job.look()), time.monotonic()
            client.drain(GUEST, reason="a benchmark")
        job.wait_for_steps(4, WARM_STEPS, after=drained, bound=bound)
        pause = job.history.longest_pause(after=drained)
        changes = len(job.look()) - rounds
        took = min(start.time for start in job.look()[-1].starts.values()) - drained
        check(job, expected.outcome == control_pb2.DRAIN_OUTCOME_MOVES, f"the preview of the drain says {expected}")
        check(job, changes == 1, f"the drain takes {changes} changes of the members")
        check(job, {s.host for s in job.look()[-1].starts.values()} == {HOME, FREE}, "the drained host is still used")
        job.finish()
    return {
        "growth: longest pause": growth,
        "drain: longest pause": pause,
        "drain's pause by the growth's": pause / growth,
        "drain: until its workers have left": took,
    }


def check(job: Job, holds: bool, text: str) -> None:
    """Fail unless it holds.

    Raises:
        SystemExit: it does not.
    """
    if not holds:
        job.keep()
        sys.exit(f"{text}; see {job.folder}")


def main() -> int:
    """Parse the command line, measure, and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.drain_pause", description=__doc__)
    parser.add_argument("--boot", type=float, default=20.0, metavar="SECONDS", help="what a boot takes (default: 20)")
    options = parser.parse_args()
    end_well_on_sigterm()
    figures = drain_pause(options.boot)
    for name, value in figures.items():
        print(f"{name}: {value:.3f}{'' if 'by the' in name else ' s'}")
    return 0 if figures["drain's pause by the growth's"] <= MAY_BE_TIMES else 1


if __name__ == "__main__":
    sys.exit(main())
