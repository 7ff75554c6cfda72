"""A real `edriver` run, as a test drives it: what it prints, line by line, and what it leaves behind."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from edriver.system.own_addresses import bound_at
from tests.waiting import BOUND as BOUND

ROOT = Path(__file__).parents[2]
SCRIPTS = Path(__file__).parent / "scripts"

SOON = 10.0
"""Seconds within which nothing is left of a run whose driver has ended, in whatever way, on a machine that is busy."""

QUICK_WORKERS = {"PYTHONPATH": f"{ROOT}{os.pathsep}{Path(__file__).parent / 'quick_workers'}"}
"""For a run in restart mode, of `edriver.launch`, or of torchrun: it gets the stand-ins of tests/torch_stand_ins.py."""

PATIENT = ("--start-timeout", f"{BOUND:g}")
"""The first round has all workers, however long they take on a loaded machine. A test's own flags come after."""

NO_STANDBYS = ("--standby-workers", "0")
"""A standby imports all of torch behind each run of a test. With QUICK_WORKERS it costs little."""


class Printing:
    """A process whose output a thread reads: tests wait for lines of it, never for time.

    Args:
        command: what it runs.
        folder: its working folder.
        environ: more variables for it.
    """

    def __init__(
        self, command: Sequence[str], folder: Path | None = None, environ: Mapping[str, str] | None = None
    ) -> None:
        self.lines: list[str] = []
        self._changed = threading.Condition()
        self._ended = False
        self.process = subprocess.Popen(
            command,
            cwd=folder,
            env={**os.environ, **(environ or {})},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with self._changed:
                self.lines.append(line.rstrip("\n"))
                self._changed.notify_all()
        self.process.stdout.close()
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def line(self, pattern: str, after: int = 0) -> re.Match[str]:
        """Wait for the first line, from the given one on, in which the pattern is found."""

        def found() -> re.Match[str] | None:
            return next((m for line in self.lines[after:] if (m := re.search(pattern, line))), None)

        with self._changed:
            self._changed.wait_for(lambda: found() or self._ended, timeout=BOUND)
            match = found()
        assert match, f"no line with {pattern!r} in:\n{self.text}"
        return match

    @property
    def text(self) -> str:
        """All that has been printed."""
        return "\n".join(self.lines)

    @property
    def ended(self) -> bool:
        """Whether nothing more will be printed."""
        return self._ended

    def end(self, bound: float = BOUND) -> int:
        """Wait for the end, for so many seconds; returns the exit code."""
        try:
            code = self.process.wait(timeout=bound)
        except subprocess.TimeoutExpired:
            left = "\n".join(self.left_behind())
            raise AssertionError(f"not done after {bound:g} s:\n{self.text}\nstill there:\n{left}") from None
        self._reader.join(timeout=BOUND)
        return code

    def left_behind(self) -> list[str]:
        """Living processes that it has left."""
        return []


class Run(Printing):
    """A driver process.

    Args:
        args: edriver's arguments.
        folder: the working folder.
        environ: more variables for it and its workers.
        through: the command that runs it, such as `ip netns exec NAME`.
    """

    def __init__(
        self, args: list[str], folder: Path, environ: dict[str, str] | None = None, through: Sequence[str] = ()
    ) -> None:
        quick = "quick_workers" in (environ or {}).get("PYTHONPATH", "")
        self.mark = uuid.uuid4().hex
        python_path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
        super().__init__(
            [*through, sys.executable, "-m", "edriver", *PATIENT, *(() if quick else NO_STANDBYS), *args],
            folder,
            {"PYTHONPATH": python_path, "EDRIVER_TEST": self.mark, **(environ or {})},
        )

    @property
    def id(self) -> str:
        """Its id, once it has been printed."""
        return self.line(r"^edriver: run (\w+):")[1]

    def pids(self) -> dict[int, int]:
        """The workers' pids by rank, as the scripts have printed them last."""
        found = {}
        for line in self.lines:
            if match := re.search(r"rank (\d+) of (\d+) pid (\d+)", line):
                found[int(match[1])] = int(match[3])
        return found

    def agent_of(self, host: str) -> int:
        """The process id of a host's agent."""
        command = rf"edriver.agent.main --host {re.escape(host)} $"
        agents = [text for text in self.left_behind() if re.search(command, text)]
        assert len(agents) == 1, self.left_behind()
        return int(agents[0].partition(":")[0])

    def left_behind(self) -> list[str]:
        """Living processes that were started by this run, whatever their parent is now."""
        found = []
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit() or int(entry.name) == self.process.pid:
                continue
            try:
                environ = (entry / "environ").read_bytes()
                state = (entry / "stat").read_text().rpartition(")")[2].split()[0]
                command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            except OSError:
                continue
            if f"EDRIVER_TEST={self.mark}".encode() in environ and state != "Z":
                found.append(f"{entry.name}: {command}")
        return found

    def gone(self, seconds: float = BOUND) -> bool:
        """Wait until nothing of the run is left; False if something stays.

        A process that is just being started has no environment for a moment, and is seen at a later look.
        """
        deadline = time.monotonic() + seconds
        while left := self.left_behind():
            if time.monotonic() >= deadline:
                return False
            for pid in [int(text.partition(":")[0]) for text in left]:
                wait_for_exit(pid, max(0.0, deadline - time.monotonic()))
        return True


def wait_for_exit(pid: int, seconds: float = BOUND) -> bool:
    """Wait until a process, not necessarily a child, is gone."""
    import select

    try:
        pidfd = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([pidfd], [], [], seconds)[0])
    finally:
        os.close(pidfd)


@contextmanager
def running(
    args: list[str], folder: Path, environ: dict[str, str] | None = None, through: Sequence[str] = ()
) -> Iterator[Run]:
    """A run that is ended with its test."""
    run = Run(args, folder, environ, through)
    try:
        yield run
    finally:
        if run.process.poll() is None:
            run.process.terminate()  # not SIGINT: a shell lets what it starts in the background ignore that
            try:
                run.process.wait(timeout=60)
            except subprocess.TimeoutExpired:
                run.process.kill()
                run.process.wait()
        run.end()


class Hosts:
    """A discovery script that prints a file, which the test rewrites."""

    def __init__(self, folder: Path, *lines: str) -> None:
        self._file = folder / "hosts"
        self.script = folder / "discover.sh"
        self.are(*lines)
        self.script.write_text(f"#!/bin/sh\ncat {shlex.quote(str(self._file))}\n")
        self.script.chmod(0o755)

    def are(self, *lines: str) -> None:
        """Change discovery's answer, all at once."""
        new = self._file.with_suffix(".new")
        new.write_text("\n".join(lines) + "\n")
        new.replace(self._file)


def edriver(*words: str, environ: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Run `edriver WORD ...` to its end: a query or an order to a running run."""
    command = [sys.executable, "-X", "faulthandler", "-m", "edriver", *words]
    everything = {**os.environ, "PYTHONPATH": str(ROOT), **(environ or {})}
    process = subprocess.Popen(command, env=everything, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        out, err = process.communicate(timeout=BOUND)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGABRT)  # the fault handler prints where each thread stands
        out, err = process.communicate(timeout=SOON)
        raise AssertionError(f"{words} was not done after {BOUND:g} s:\n{out}\n{err}") from None
    finally:
        process.kill()
    return subprocess.CompletedProcess(command, process.returncode, out, err)


def free_ports(number: int) -> list[int]:
    """Ports that were free at the same time a moment ago."""
    sockets = [bound_at("127.0.0.1", 0) for _ in range(number)]
    ports = [int(each.getsockname()[1]) for each in sockets]
    for each in sockets:
        each.close()
    return ports
