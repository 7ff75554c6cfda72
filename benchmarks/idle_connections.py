"""What idle unauthenticated connections cost a run: `python -m benchmarks.idle_connections`. As root.

Two workers train on two hosts (network namespaces). In turns another host opens connections, or does not: 1,100 to each
of a worker's two ports, its store's and its Gloo listener's; or, with `--at driver`, 1,300 to the TCP port of a driver
that may have 1,024 descriptors. Their process has the lowest priority, since it would run on another machine.
Prints one JSON object:

- ratio: steps a second with these connections, by those without; the median of the turns.
- ratios: of each turn.
- lost: workers that ended meanwhile.
- missing: events that the event log lacks.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median

from benchmarks.jobs import Workload, end_well_on_sigterm
from benchmarks.under_edriver import EdriverJob
from tests.attacks.silent_callers import callers, ports, strangers
from tests.process.sites import Site, environment_of, site

WARM_STEPS, TURN_SECONDS, SETTLING = 50, 3.0, 1.0
EACH = 1100
"""Connections to each of a worker's two ports."""

AT_DRIVER = 1300
"""Connections to the driver's port."""

LIMITED = ["sh", "-c", 'ulimit -n 1024 && exec "$@"', "sh"]

WORKLOAD = Workload(samples=4096, batch_size=8, hidden=64, step_seconds=0.01)


def rate(job: EdriverJob) -> float:
    """Steps a second, for a while."""
    time.sleep(SETTLING)
    began = time.monotonic()
    time.sleep(TURN_SECONDS)
    ended = time.monotonic()
    job.look()
    return job.history.counted_steps(began, ended) / (ended - began)


def workers(there: Site) -> list[int]:
    """The workers' processes."""
    commands = there.processes().items()
    return [pid for pid, text in commands if "churn_job" in text and "EDRIVER_WORKER_ID" in environment_of(pid)]


def missing_events(log: Path) -> int:
    """How many events an event log of a run that has ended lacks."""
    reported = [json.loads(line) for line in log.read_text().splitlines()]
    return int(reported[-1]["seq"]) - sum("seq" in line for line in reported)


@contextlib.contextmanager
def at_workers(there: Site) -> Iterator[None]:
    """Strangers at the ports of both workers."""
    one, other = workers(there)
    with strangers(there.hosts[0], one, EACH), strangers(there.hosts[0], other, EACH):
        yield


@contextlib.contextmanager
def at_driver(there: Site, driver: int) -> Iterator[None]:
    """Strangers at the driver's port."""
    (port,) = ports(driver)
    with callers(there.hosts[-1], [f"{there.hosts[0].address}:{port}"], AT_DRIVER):
        yield


def measure(turns: int, at: str) -> dict[str, object]:
    """Let a run train, with the connections in every second turn."""
    ratios = []
    with tempfile.TemporaryDirectory() as folder, site(Path(folder), 3) as there:
        environ = {"PATH": there.ssh.path, "TMPDIR": str(there.ssh.temporary / "host0")}
        through = ["ip", "netns", "exec", there.hosts[0].namespace, *(LIMITED if at == "driver" else [])]
        with EdriverJob(WORKLOAD, through, environ) as job:
            job.start({"host1": 1, "host2": 1}, np=2, max_np=2)
            job.wait_for_steps(size=2, steps=WARM_STEPS)
            first = set(workers(there))
            for _ in range(turns):
                quiet = rate(job)
                with at_driver(there, job.driver) if at == "driver" else at_workers(there):
                    ratios.append(rate(job) / quiet)
            lost = len(first - set(workers(there)))
            job.finish()
            missing = missing_events(job.event_log)
    return {
        "ratio": round(median(ratios), 3),
        "ratios": [round(ratio, 3) for ratio in ratios],
        "lost": lost,
        "missing": missing,
    }


def main() -> None:
    """Measure."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.idle_connections")
    parser.add_argument("--turns", type=int, default=30, help="(default: %(default)s)")
    parser.add_argument("--at", choices=("workers", "driver"), default="workers", help="(default: %(default)s)")
    flags = parser.parse_args()
    end_well_on_sigterm()
    print(json.dumps(measure(flags.turns, flags.at)))


if __name__ == "__main__":
    main()
