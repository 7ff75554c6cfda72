"""Does to a real run what a schedule says, and looks at what is left of it."""

from __future__ import annotations

import contextlib
import functools
import heapq
import itertools
import os
import signal
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from benchmarks.churn_check import COOLDOWN_FLAGS, RECOVERY_BOUND, Nemesis
from benchmarks.history import Round, faults
from benchmarks.jobs import HarnessError, Workload
from benchmarks.records import RoundStart
from benchmarks.under_edriver import EdriverJob
from tests.linked_hosts import LinkedHost, linked_hosts
from tests.process.running import edriver
from tests.ssh_hosts import ssh_hosts
from tests.trouble.reported_times import time_faults
from tests.trouble.schedule import (
    HOSTS,
    MOST_WORKERS,
    Cut,
    Drain,
    Event,
    Flood,
    Fork,
    Kill,
    KillDriver,
    KillGuard,
    LongCall,
    Resize,
    Schedule,
    Stop,
    StopAll,
    StopDriver,
)

T = TypeVar("T")

DRIVER_TIMEOUT = 30.0
"""The runs' --driver-timeout: a host that is cut off while its run ends cannot know that no driver will take it over,
and waits so long. More than the driver is ever stopped for."""

EXIT_BOUND = DRIVER_TIMEOUT + 40.0
"""Seconds after the run's end within which nothing of it is left on any host: an agent that lost its driver may have to
find that out first, and then end its workers."""


class TroubledJob(EdriverJob):
    """A run whose script makes trouble of its own when it is ordered to."""

    script = "tests.trouble.job"

    def __init__(
        self, workload: Workload, through: Sequence[str] = (), environ: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(workload, through, environ)
        (self.folder / "orders").mkdir()

    def order(self, worker: int, line: str) -> None:
        """Have a worker's script do this at its next step."""
        place = self.folder / "orders" / str(worker)
        draft = place.with_suffix(".draft")
        draft.write_text(f"{line}\n")
        draft.replace(place)

    def workers(self) -> list[int]:
        """The process ids of its workers."""
        marked = {pid for pid, command in self.processes().items() if f"-m {self.script}" in command}
        return sorted(marked - {self.driver})


class Trouble:
    """Does to a run what a schedule says.

    Args:
        job: the run, which trains.
        hosts: where it trains, by name.
        spared: the member that is left alone.
    """

    def __init__(self, job: TroubledJob, hosts: Mapping[str, LinkedHost], spared: RoundStart) -> None:
        self._job = job
        self._hosts = hosts
        self._spared = spared
        self._later: list[tuple[float, int, Callable[[], None]]] = []
        self._count = itertools.count()
        self._drained: list[str] = []
        self._driver_wakes = 0.0

    def perform(self, event: Event) -> None:
        """Do this, after its delay."""
        self._until(time.monotonic() + event.delay)
        match event:
            case Kill(_, choice):
                if worker := _chosen(self._workers(), choice):
                    _signal(worker, signal.SIGKILL)
            case Stop(_, choice, seconds, agent):
                if stopped := _chosen(self._agents() if agent else self._workers(), choice):
                    _signal(stopped, signal.SIGSTOP)
                    self._after(seconds, lambda: _signal(stopped, signal.SIGCONT))
            case Cut(_, choice, seconds):
                if name := _chosen([host for host in HOSTS if host != self._spared.host], choice):
                    self._hosts[name].cut()
                    self._after(seconds, self._hosts[name].heal)
            case Drain(_, choice):
                if name := _chosen([host for host in self._job.hosts if host != self._spared.host], choice):
                    self._steer("drain", name)
                    self._drained.append(name)
            case StopDriver(_, seconds):
                _signal(self._job.driver, signal.SIGSTOP)
                self._driver_wakes = max(self._driver_wakes, time.monotonic() + seconds)
                self._after(seconds, self._wake_the_driver)
            case KillDriver(_, seconds):
                self._until(self._driver_wakes)  # the one before is to be there
                self._job.kill_driver()
                self._after(seconds, self._job.resume)
                self._driver_wakes = time.monotonic() + seconds
            case StopAll(_, seconds):
                for worker in self._job.workers():
                    _signal(worker, signal.SIGSTOP)
                    self._after(seconds, functools.partial(_signal, worker, signal.SIGCONT))
            case LongCall(_, choice, seconds):
                self._order(choice, f"call {seconds}")
            case Fork(_, choice):
                self._order(choice, "fork")
            case Flood(_, choice, lines):
                self._order(choice, f"flood {lines}")
            case KillGuard(_, choice):
                if guard := _chosen(self._guards(), choice):
                    _signal(guard, signal.SIGKILL)
            case Resize(_, hosts):
                kept = {self._spared.host: self._job.hosts[self._spared.host]}
                self._job.set_hosts(kept | hosts | kept)

    def end(self) -> None:
        """Put right what is to be put right."""
        self._until(max([at for at, _, _ in self._later], default=0.0))
        for name in self._drained:
            self._steer("undrain", name)

    def _after(self, seconds: float, act: Callable[[], None]) -> None:
        heapq.heappush(self._later, (time.monotonic() + seconds, next(self._count), act))

    def _until(self, when: float) -> None:
        """Let time pass, and do what is due meanwhile."""
        while self._later and self._later[0][0] <= when:
            at, _, act = heapq.heappop(self._later)
            time.sleep(max(0.0, at - time.monotonic()))
            act()
        time.sleep(max(0.0, when - time.monotonic()))

    def _wake_the_driver(self) -> None:
        if time.monotonic() >= self._driver_wakes:  # else it was stopped again meanwhile
            _signal(self._job.driver, signal.SIGCONT)

    def _order(self, choice: float | None, line: str) -> None:
        """Have the script of one worker, or of all, do something at its next step."""
        workers = self._job.workers()
        for worker in workers if choice is None else [_chosen(workers, choice)]:
            if worker is not None:
                self._job.order(worker, line)

    def _guards(self) -> list[int]:
        """The guards of the driver and of all agents."""
        there = set(self._job.processes()).union(*(host.processes() for host in self._hosts.values()))
        return sorted(pid for pid in there if "guard_main.py" in _command(pid))

    def _workers(self) -> list[int]:
        """Workers that may be troubled."""
        return [pid for pid in self._job.workers() if pid != self._spared.pid]

    def _agents(self) -> list[int]:
        """Agents that may be troubled."""
        return agents_on([host for name, host in self._hosts.items() if name != self._spared.host])

    def _steer(self, verb: str, host: str) -> None:
        """`edriver drain`, or undrain. That it is refused is an answer, too: too few slots, no such host any more."""
        self._until(self._driver_wakes)  # one that is stopped does not answer
        edriver(verb, host, "--run", self._job.run_id)


def run_schedules(schedules: Sequence[Schedule], bound: float = RECOVERY_BOUND) -> list[str]:
    """Run schedules one after the other in one run; returns what was wrong, in sentences.

    Args:
        schedules: what happens.
        bound: seconds in which the run must have recovered from each.
    """
    first = schedules[0]
    workload = Workload(
        samples=first.samples,
        batch_size=4,
        hidden=16,
        step_seconds=0.03,  # most of the processor is for those that boot
        commit_steps=first.commit_steps,
        digest=True,
    )
    with contextlib.ExitStack() as made:
        there = made.enter_context(linked_hosts(1 + len(HOSTS)))
        folder = Path(made.enter_context(tempfile.TemporaryDirectory(prefix="edriver-trouble-")))
        ssh = made.enter_context(ssh_hosts(there[1:], folder))
        hosts = dict(zip(HOSTS, there[1:], strict=True))
        servers = {name: host.processes() for name, host in hosts.items()}
        through = ["ip", "netns", "exec", there[0].namespace]
        job = made.enter_context(TroubledJob(workload, through, {"PATH": ssh.path}))
        seed = first.seed
        alarms: list[str] = []
        try:
            np = min(sum(first.hosts.values()), MOST_WORKERS)
            flags = [*COOLDOWN_FLAGS, "--driver-timeout", f"{DRIVER_TIMEOUT:g}"]
            job.start(first.hosts, np=np, min_np=1, max_np=MOST_WORKERS, flags=flags)
            nemesis = Nemesis(job, bound)
            nemesis.await_recovery(whole=True)
            for schedule in schedules:
                seed = schedule.seed
                before = job.look()[-1]
                members = sorted(before.starts.items())
                trouble = Trouble(job, hosts, members[int(schedule.spared * len(members))][1])
                for event in schedule.events:
                    trouble.perform(event)
                trouble.end()
                nemesis.await_recovery(whole=True)
                if schedule.harmless and (alarm := _alarm(schedule, before, job.look()[-1])):
                    alarms.append(f"seed {seed}: a false alarm: nothing of {schedule.events} is to {alarm}")
            code = job.finish()
        except HarnessError as error:
            job.keep()
            return [f"seed {seed}: {error.what}", f"folder: {job.folder}"]
        found = [*alarms, *([f"the run ended with {code}"] if code != 0 else [])]
        found += _left_behind(hosts, servers)
        found += [f"left behind: process {pid}, {command}" for pid, command in job.processes().items()]
        found += faults(job.history, first.samples)
        found += time_faults(job.history, job.event_log)
        if found:
            job.keep()
            found.append(f"folder: {job.folder}")
        return found


def _alarm(schedule: Schedule, before: Round, after: Round) -> str:
    """What a schedule has done that it is not to do, as the end of a sentence; empty: nothing.

    Workers that have all been stopped for a lease may form a round anew: the same processes, with nothing lost.
    """
    if before.members.keys() - after.members.keys():
        return "end a process"
    stopped = any(isinstance(event, StopAll) for event in schedule.events)
    return "" if stopped or after.number == before.number else "end a round"


def agents_on(hosts: Iterable[LinkedHost]) -> list[int]:
    """The process ids of the agents on these hosts."""
    pids = set().union(*(host.processes() for host in hosts))
    return sorted(pid for pid in pids if "edriver.agent.main" in _command(pid))


def _left_behind(hosts: Mapping[str, LinkedHost], servers: Mapping[str, set[int]]) -> list[str]:
    """What is still there of the run, some time after its end, on any host."""
    deadline = time.monotonic() + EXIT_BOUND
    while True:
        left = [
            f"left behind on {name}: process {pid}, {command}"
            for name, host in hosts.items()
            for pid in host.processes() - servers[name]
            if (command := _command(pid))
        ]
        if not left or time.monotonic() > deadline:
            return left
        time.sleep(0.1)


def _chosen(candidates: list[T], choice: float) -> T | None:
    return candidates[int(choice * len(candidates))] if candidates else None


def _signal(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""
