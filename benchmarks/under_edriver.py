"""A run under edriver, with a discovery script that prints a file and says when."""

from __future__ import annotations

import functools
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.jobs import HarnessError, Job, Workload
from edriver.client import Client, here

HOME, GUEST = "127.0.0.1", "127.0.0.2"
HOSTS = {2: {HOME: 2}, 4: {HOME: 2, GUEST: 2}}
"""The hosts, with their slots, for a number of workers."""

READY_BOUND = 120.0
"""Longest that standbys may take to be ready."""

LOOK_SECONDS = 0.2


class EdriverJob(Job):
    """A run under edriver.

    Args:
        workload: what to train.
        through: the command that runs the driver, such as `ip netns exec NAME`.
        environ: more variables for it and its workers.

    Attributes:
        hosts: slots by host, as discovery finds them.
    """

    script = "benchmarks.churn_job"
    """The module that trains."""

    flags: Sequence[str] = ()
    """More of the driver's flags."""

    def __init__(
        self, workload: Workload, through: Sequence[str] = (), environ: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(workload)
        self._through = through
        self._environ = environ or {}
        self.hosts: dict[str, int] = {}
        self._script = self.folder / "discover_hosts.sh"
        self._answers = self.folder / "answers"
        note = f"date +\"%s.%N $(echo $hosts)\" >> '{self._answers}'"
        self._script.write_text(f"#!/bin/sh\nhosts=$(cat '{self.folder}/hosts')\n{note}\necho \"$hosts\"\n")
        self._script.chmod(0o755)

    def settle(self) -> None:
        """Wait until each host that trains has a standby that is ready, if this edriver keeps them.

        Raises:
            HarnessError: they are not there in time.
        """
        if "--standby-workers" in self.flags or not knows("--standby-workers"):
            return
        deadline = time.monotonic() + READY_BOUND
        with Client(here(self.run_id)) as client:
            while any(host.workers and not host.usage.standbys for host in client.status().hosts):
                if time.monotonic() > deadline:
                    raise HarnessError("not every host has a standby", self.folder)
                time.sleep(LOOK_SECONDS)

    @property
    def driver(self) -> int:
        """The driver's process id."""
        return self._started[0].pid

    @property
    def run_id(self) -> str:
        """The run's ID, as its first driver has printed it."""
        output = (self.folder / "output-0.txt").read_text()
        return output.partition("edriver: run ")[2].partition(":")[0]

    @property
    def event_log(self) -> Path:
        """Where the driver writes its event log, if it knows how to."""
        return self.folder / "events.jsonl"

    def launch(self, size: int) -> None:
        """Start the driver with 2 or 4 workers; it may go on with one, and have four at most."""
        self.start(HOSTS[size], np=size, min_np=1)

    def resize(self, size: int) -> None:
        """Let discovery find slots for 2 or 4 workers."""
        self.set_hosts(HOSTS[size])

    def start(
        self, hosts: Mapping[str, int], np: int, min_np: int = 2, max_np: int = 4, flags: Sequence[str] = ()
    ) -> None:
        """Start the driver.

        Args:
            hosts: slots by host.
            np: its -np.
            min_np: its --min-np.
            max_np: its --max-np.
            flags: more of its flags.
        """
        self.set_hosts(hosts)
        sizes = ["-np", str(np), "--min-np", str(min_np), "--max-np", str(max_np)]
        log = ["--event-log", str(self.event_log)] if knows("--event-log") else []
        command = [
            *self._through,
            sys.executable,
            "-m",
            "edriver",
            *sizes,
            *log,
            *self.flags,
            *flags,
            "--host-discovery-script",
            str(self._script),
        ]
        job = [sys.executable, "-m", self.script, *self.workload.flags(self.folder)]
        self._start([*command, *job], self._environ)

    def kill_driver(self) -> None:
        """Kill the driver, and nothing else."""
        self._started[0].kill()
        self._started[0].wait()

    def resume(self) -> None:
        """Start another driver, which takes the run over."""
        records = self.folder / "state" / "edriver" / self.run_id
        command = [*self._through, sys.executable, "-m", "edriver", "resume", str(records)]
        process = self._start(command, self._environ)
        self._started.remove(process)
        self._started.insert(0, process)

    def set_hosts(self, hosts: Mapping[str, int]) -> None:
        """Change what discovery will find."""
        unfinished = self.folder / "hosts.unfinished"
        unfinished.write_text("".join(f"{host}:{slots}\n" for host, slots in hosts.items()))
        unfinished.replace(self.folder / "hosts")
        self.hosts = dict(hosts)

    def answers(self, after: float) -> list[float]:
        """When discovery answered with the hosts as they are now, in seconds of the monotonic clock.

        Args:
            after: only answers after that time.
        """
        wanted = [f"{host}:{slots}" for host, slots in self.hosts.items()]
        lines = [line.split() for line in self._answers.read_text().splitlines()]
        to_monotonic = time.monotonic() - time.time()
        times = (float(at) + to_monotonic for at, *hosts in lines if hosts == wanted)
        return [at for at in times if at > after]


class EdriverWithoutJournalJob(EdriverJob):
    """A run under edriver that keeps no records, and so no journal."""

    flags = ("--no-records",)


class EdriverWithoutStandbysJob(EdriverJob):
    """A run under edriver in which a replacement starts cold."""

    flags = ("--standby-workers", "0")


@functools.cache
def knows(flag: str) -> bool:
    """Whether this edriver has a flag of this name."""
    command = [sys.executable, "-m", "edriver", "run", "--help"]
    return flag in subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
