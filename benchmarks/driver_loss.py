"""What the loss of a driver costs: python -m benchmarks.driver_loss [--repeats 5]

Four hosts with a real sshd, each a network namespace, train a small model, 20 steps a second. Their driver is killed
with SIGKILL; `edriver resume` takes the run over. Then the same with a worker that is killed while there is no driver.
Last, two hosts that have dialled in, a driver that is killed, and a standby beside a real etcd of three members.

What training did is read from what rank 0 wrote down, step by step.
"""

from __future__ import annotations

import argparse
import os
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tests.etcd.cluster import etcd_cluster
from tests.etcd.test_standby import pair
from tests.process.running import Printing, Run
from tests.process.sites import Site, site
from tests.process.test_resume import TRAIN, Resumed, environ_of, kill, steps_of, wait_for_steps

HOSTS = 4
STEPS = 60
"""Steps over which the speed is measured, with a driver and without."""

BOUND = 60.0
ESTABLISHED = "01"  # in /proc/net/tcp: see proc(5)
SSH_PORT = 22


def main() -> None:
    """Measure, and print the medians with all values."""
    flags = argparse.ArgumentParser(prog="python -m benchmarks.driver_loss", description=__doc__.splitlines()[0])
    flags.add_argument("--repeats", type=int, default=5)
    repeats = flags.parse_args().repeats
    for name, measure in (
        ("driver killed", _resumed),
        ("and a worker", _resumed_with_a_loss),
        ("standby", _standby),
    ):
        found = [measure() for _ in range(repeats)]
        for key in found[0]:
            values = sorted(each[key] for each in found)
            every = " ".join(f"{value:.3f}" for value in values)
            print(f"{name}: {key}: {statistics.median(values):.3f} ({every})", flush=True)


def _resumed() -> dict[str, float]:
    with _run_on_hosts() as (there, run, folder):
        reports = folder / "reports"
        alive = _time(lambda: wait_for_steps(reports, STEPS))
        kill(run)
        dead = _time(lambda: wait_for_steps(reports, STEPS))
        began = time.monotonic()
        resumed = _resume(there, run, folder)
        in_charge = time.monotonic() - began
        attached = _attached(resumed, HOSTS, began)
        _end(resumed)
    return {
        "speed without a driver / with": alive / dead,
        "in charge, s": in_charge,
        "all agents attached, s": attached,
    }


def _resumed_with_a_loss() -> dict[str, float]:
    with _run_on_hosts() as (there, run, folder):
        reports = folder / "reports"
        pids = run.pids()
        kill(run)
        os.kill(pids[HOSTS - 1], signal.SIGKILL)
        before = _when_still(reports)
        resumed = _resume(there, run, folder)
        waited = _time(lambda: _await(lambda: len(steps_of(reports)) > before))
        _end(resumed)
    return {"the survivors' next step after it is in charge, s": waited}


def _standby() -> dict[str, float]:
    with _folder() as folder, etcd_cluster(folder) as cluster, pair(cluster, folder, EPOCHS="40000") as both:
        both.run.process.kill()
        began = time.monotonic()
        both.standby.line("another driver has taken over")
        in_charge = time.monotonic() - began
        _end(both.standby)
    return {"in charge after the kill, s": in_charge}


@contextmanager
def _run_on_hosts() -> Iterator[tuple[Site, Run, Path]]:
    hosts = ",".join(f"host{n}:1" for n in range(1, HOSTS + 1))
    args = ["-np", str(HOSTS), "--min-np", "1", "-H", hosts, *TRAIN]
    with ExitStack() as stack:
        folder = stack.enter_context(_folder())
        there = stack.enter_context(site(folder, HOSTS))
        run = stack.enter_context(there.running(args, folder, environ_of(folder, STEPS="6000", EPOCHS="1")))
        run.line(f"rank {HOSTS - 1} passed step 5")
        yield there, run, folder


@contextmanager
def _folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="driver-loss-") as folder:
        yield Path(folder)


def _resume(there: Site, run: Run, folder: Path) -> Resumed:
    resumed = Resumed(run, folder, through=["ip", "netns", "exec", there.hosts[0].namespace])
    resumed.line("another driver has taken over")
    return resumed


def _end(driver: Printing) -> None:
    driver.process.send_signal(signal.SIGINT)
    driver.end()


def _time(action: Callable[[], object]) -> float:
    began = time.monotonic()
    action()
    return time.monotonic() - began


def _await(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + BOUND
    while not holds():
        if time.monotonic() > deadline:
            sys.exit("what was awaited has not come")
        time.sleep(0.002)


def _when_still(reports: Path) -> int:
    """How many steps there are once no more are made."""
    count = -1
    while count != len(steps_of(reports)):
        count = len(steps_of(reports))
        time.sleep(1.0)
    return count


def _attached(driver: Printing, hosts: int, began: float) -> float:
    """Wait until so many hosts have a connection to the driver; seconds since then."""
    _await(lambda: len(_callers(driver.process.pid)) == hosts)
    return time.monotonic() - began


def _callers(pid: int) -> set[str]:
    """The addresses of other machines that have a connection to one that this process sees; not by ssh."""
    found = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
            _, local, remote, state, *_ = line.split()
            ports = {int(end.rpartition(":")[2], 16) for end in (local, remote)}
            if state == ESTABLISHED and SSH_PORT not in ports:
                found.add(remote.rpartition(":")[0][-8:])
    return found


if __name__ == "__main__":
    main()
