"""What the loss of a driver costs, and that of all workers.

Four hosts with a real sshd, each a network namespace, train a small model, 20 steps a second. Their driver is killed
with SIGKILL; `edriver resume` takes the run over. What training did is read from what rank 0 wrote down, step by step.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from benchmarks.jobs import HarnessError
from tests.etcd.cluster import etcd_cluster
from tests.etcd.pair import pair
from tests.process.resuming import TRAIN, Resumed, environ_of, kill, steps_of, wait_for_steps
from tests.process.running import Printing, Run, running, wait_for_exit
from tests.process.sites import Site, site

HOSTS = 4
STEPS = 60
"""Steps over which the speed is measured, with a driver and without."""

BOUND = 60.0
ESTABLISHED = "01"  # in /proc/net/tcp: see proc(5)


def present() -> bool:
    """Whether there is what this needs: an etcd, an sshd, and the right to make network namespaces."""
    return os.geteuid() == 0 and all(map(shutil.which, ("etcd", "ip", "sshd")))


def driver_killed() -> dict[str, float]:
    """Train without a driver, and with the next one."""
    with _run_on_hosts() as (there, run, folder):
        reports = folder / "reports"
        alive = _time(lambda: wait_for_steps(reports, STEPS))
        kill(run)
        dead = _time(lambda: wait_for_steps(reports, STEPS))
        began = time.monotonic()
        resumed = _resume(there, run, folder)
        taken_over = time.monotonic() - began
        _await(lambda: len(_callers(resumed.process.pid)) == HOSTS, folder)
        attached = time.monotonic() - began
        _end(resumed)
    return {
        "steps a second without a driver, by with one": alive / dead,
        "resume to taken over": taken_over,
        "resume to in charge: all agents attached": attached,
    }


def worker_killed_meanwhile() -> dict[str, float]:
    """Kill a worker while there is no driver."""
    with _run_on_hosts() as (there, run, folder):
        reports = folder / "reports"
        pids = run.pids()
        kill(run)
        os.kill(pids[HOSTS - 1], signal.SIGKILL)
        before = _when_still(reports)
        resumed = _resume(there, run, folder)
        taken_over = time.monotonic()
        _await(lambda: len(_callers(resumed.process.pid)) == HOSTS, folder)
        attached = time.monotonic()
        _await(lambda: len(steps_of(reports)) > before, folder)
        stepped = time.monotonic()
        _end(resumed)
    return {
        "worker killed meanwhile: all agents attached to the survivors' next step": stepped - attached,
        "worker killed meanwhile: taken over to the survivors' next step": stepped - taken_over,
    }


def driver_killed_with_a_standby() -> dict[str, float]:
    """Kill the driver of two hosts that have dialled in, beside a standby and a real etcd of three members."""
    with _folder() as folder, etcd_cluster(folder) as cluster, pair(cluster, folder, EPOCHS="40000") as both:
        both.run.process.kill()
        began = time.monotonic()
        both.standby.line("another driver has taken over")
        in_charge = time.monotonic() - began
        _end(both.standby)
    return {"standby: kill to in charge": in_charge}


def all_workers_killed() -> dict[str, float]:
    """Kill all workers of a run that writes checkpoints; what a launch takes is what a boot and a first step take."""
    with _folder() as folder:
        reports = folder / "reports"
        reports.touch()
        environ = environ_of(folder, CHECKPOINT=str(folder / "checkpoints"), EPOCHS="40000")
        began = time.monotonic()
        with running(["-np", "2", "--min-np", "1", *TRAIN], folder, environ) as run:
            _await(lambda: steps_of(reports) != [], folder)
            launched = time.monotonic() - began
            run.line("rank 0 passed step 40")
            pids = run.pids().values()
            for pid in pids:
                os.kill(pid, signal.SIGKILL)
            began = time.monotonic()
            for pid in pids:
                wait_for_exit(pid)
            before = len(steps_of(reports))
            _await(lambda: len(steps_of(reports)) > before, folder)
            lost = time.monotonic() - began
            _end(run)
    return {"all workers killed: to the next step": lost, "all workers killed: that beyond a launch": lost - launched}


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
    driver.process.terminate()
    driver.end()


def _time(action: Callable[[], object]) -> float:
    began = time.monotonic()
    action()
    return time.monotonic() - began


def _await(holds: Callable[[], bool], folder: Path) -> None:
    deadline = time.monotonic() + BOUND
    while not holds():
        if time.monotonic() > deadline:
            raise HarnessError(f"what was awaited has not come within {BOUND:g} s", folder)
        time.sleep(0.002)


def _when_still(reports: Path) -> int:
    """How many steps there are once no more are made."""
    count = -1
    while count != len(steps_of(reports)):
        count = len(steps_of(reports))
        time.sleep(1.0)
    return count


def _callers(pid: int) -> set[str]:
    """The addresses from which a process has connections."""
    inodes = set()
    for fd in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):  # it is closed meanwhile
            inodes.add(str(fd.readlink()).removeprefix("socket:[").removesuffix("]"))
    found = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            remote, state, inode = fields[2], fields[3], fields[9]
            if state == ESTABLISHED and inode in inodes:
                found.add(remote.rpartition(":")[0][-8:])
    return found
