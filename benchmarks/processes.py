"""Processes that are ours, by a mark in their environment: whatever a run has started, however far down."""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

MARK = "EDRIVER_BENCHMARK"
"""The environment variable that tells which run a process belongs to."""

_TICKS = os.sysconf("SC_CLK_TCK")


def processes_of(mark: str) -> dict[int, str]:
    """The living processes that carry this mark, zombies aside: their command lines by process id."""
    wanted = f"{MARK}={mark}".encode()
    found = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            with contextlib.suppress(OSError):  # it has ended meanwhile, or belongs to another user
                if wanted in (entry / "environ").read_bytes().split(b"\0"):
                    found[int(entry.name)] = (
                        (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                    )
    return found


def kill(pid: int) -> bool:
    """Kill a process as `kill -9` does; returns whether it was there."""
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return False
    return True


@contextlib.contextmanager
def marked(command: list[str], folder: Path, environ: Mapping[str, str], before: Sequence[str] = ()) -> Iterator[str]:
    """A command that trains in a folder, and all that it starts, until this is left: then the folder is removed.

    Args:
        command: the command. What it prints goes to the folder's `output`, and is shown if an error is raised within.
        folder: where it runs.
        environ: its environment.
        before: a command that is started before it; empty: there is none.

    Yields:
        the mark of its processes.
    """
    mark = uuid.uuid4().hex
    everything = {**environ, MARK: mark, "XDG_STATE_HOME": str(folder / "state")}
    with (folder / "output").open("wb") as output:
        processes = [
            subprocess.Popen(
                words,
                cwd=folder,
                env=everything,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            for words in ([*before], command)
            if words
        ]
    try:
        yield mark
    except Exception:
        print((folder / "output").read_text(errors="replace")[-3000:], file=sys.stderr)
        raise
    finally:
        kill_all(mark)
        for process in processes:
            process.wait()
        shutil.rmtree(folder)


def parent_of(pid: int) -> int:
    """The process that has started another; 0: that has ended."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0


def kill_all(mark: str) -> dict[int, str]:
    """Kill every process that carries this mark until there is none; returns those there were."""
    found: dict[int, str] = {}
    while left := processes_of(mark):
        found |= left
        for pid in left:
            kill(pid)
        time.sleep(0.01)
    return found


def started() -> float:
    """When this process began, in seconds of the system-wide monotonic clock: see proc(5), /proc/PID/stat."""
    ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
    return time.monotonic() - (time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / _TICKS)


def death(pid: int, bound: float) -> float | None:
    """Wait until a process that need not be a child of ours ends.

    Returns:
        when it did, in seconds of the monotonic clock; None: not within the bound (seconds).

    Raises:
        ProcessLookupError: it is not there.
    """
    descriptor = os.pidfd_open(pid)
    try:
        ended, _, _ = select.select([descriptor], [], [], bound)
        return time.monotonic() if ended else None
    finally:
        os.close(descriptor)


@dataclass(frozen=True, slots=True)
class Usage:
    """What a process takes: resident memory now, in bytes, and processor time so far, in seconds."""

    memory: int
    seconds: float


def usage_of(pid: int) -> Usage:
    """See proc(5), /proc/PID/status and /proc/PID/stat.

    Raises:
        OSError: it is not there.
    """
    status = Path(f"/proc/{pid}/status").read_text()
    resident = next(line for line in status.splitlines() if line.startswith("VmRSS:"))
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return Usage(int(resident.split()[1]) * 1024, (int(fields[11]) + int(fields[12])) / _TICKS)
