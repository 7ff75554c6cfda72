"""One run of a discovery script: bounded in time and in output, and nothing of it is left behind.

The script is somebody else's program, run every few seconds for weeks beside the driver's event loop. So it
gets a process group of its own, no terminal and no input; whatever way its run ends, and that includes
cancellation, the whole group is killed and the script reaped. (A process that makes a session of its own is
out of reach, but cannot hold the poll up either.)
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
from collections.abc import Sequence

from edriver.discovery.errors import DiscoveryError

MAX_OUTPUT_BYTES = 4 * 1024 * 1024
_ERROR_TAIL_BYTES = 8192
_ERROR_LINES = 5
_ERROR_LINE_CHARACTERS = 200

DRAIN_SECONDS = 0.5
"""How long output may still come after the script has exited: a shell's `> >(tee log)` outlives it by a
moment, and a background child that keeps stdout open would outlive it for ever."""

_REAP_SECONDS = 5.0
"""How long a killed script may take to die. Only one that is stuck in the kernel (a dead network file system)
or belongs to another user takes longer; the poll must not wait with it."""


class _Collector(asyncio.SubprocessProtocol):
    """Takes what one script writes: stdout up to the limit, of stderr the end."""

    def __init__(self) -> None:
        self.output = bytearray()
        self.errors = bytearray()
        self.overflowed = False
        self.settled = asyncio.Event()  # it exited, or wrote too much to go on
        self.exited = asyncio.Event()
        self.drained = asyncio.Event()
        self._open_pipes = 2

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        if fd == 2:
            self.errors += data
            del self.errors[:-_ERROR_TAIL_BYTES]
        elif len(self.output) + len(data) > MAX_OUTPUT_BYTES:
            self.overflowed = True
            self.settled.set()
        else:
            self.output += data

    def pipe_connection_lost(self, fd: int, exc: Exception | None) -> None:  # noqa: ARG002
        self._open_pipes -= 1
        if not self._open_pipes:
            self.drained.set()

    def process_exited(self) -> None:
        self.exited.set()
        self.settled.set()


async def run_script(command: Sequence[str], seconds: float) -> bytes:
    """Run a command once and return what it wrote to stdout.

    Args:
        command: the program, an absolute path or a name on PATH, and its arguments. No shell is involved.
        seconds: how long it may take.

    Raises:
        DiscoveryError: it took longer, wrote more than MAX_OUTPUT_BYTES, or exited with anything but 0.
        OSError: it could not be started.
    """
    # Shielded, since cancelled halfway asyncio would kill the script but not the children it has by then.
    starting = asyncio.ensure_future(_start(command))
    try:
        transport, collector = await asyncio.shield(starting)
    except asyncio.CancelledError:
        with contextlib.suppress(OSError):
            await _end(*await starting)
        raise
    timed_out = False
    try:
        await _settle(collector, seconds)
    except TimeoutError:
        timed_out = True
    finally:
        await _end(transport, collector)
    _check_ending(transport.get_returncode(), collector, seconds if timed_out else None)
    return bytes(collector.output)


async def _start(command: Sequence[str]) -> tuple[asyncio.SubprocessTransport, _Collector]:
    return await asyncio.get_running_loop().subprocess_exec(
        _Collector,
        *command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )


async def _settle(collector: _Collector, seconds: float) -> None:
    """Wait until the script has exited and its output is in, or it wrote too much.

    Raises:
        TimeoutError: it has not exited by then.
    """
    async with asyncio.timeout(seconds):
        await collector.settled.wait()
    if collector.exited.is_set():
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(DRAIN_SECONDS):
                await collector.drained.wait()


async def _end(transport: asyncio.SubprocessTransport, collector: _Collector) -> None:
    """Kill what is left of the script's process group and reap the script.

    The group's number cannot be another's: it is not given out again while a process of the group is left,
    and numbers are given out in a cycle, so not within moments of the last one's end either.
    """
    try:
        # PermissionError: all that is left belongs to another user (the script runs sudo).
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(transport.get_pid(), signal.SIGKILL)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_REAP_SECONDS):
                await collector.exited.wait()
    finally:
        with contextlib.suppress(PermissionError):
            transport.close()


def _check_ending(returncode: int | None, collector: _Collector, exceeded: float | None) -> None:
    """Raise a DiscoveryError unless the script ended well; `exceeded` is the time limit that it broke."""
    left = "" if collector.exited.is_set() else " but does not die: see what it is stuck in"
    said = _last_lines(bytes(collector.errors))
    if exceeded is not None:
        raise DiscoveryError(f"did not exit within {exceeded:g} s and was killed{left}{said}")
    if collector.overflowed:
        limit = f"{MAX_OUTPUT_BYTES // (1024 * 1024)} MiB"
        raise DiscoveryError(f"printed more than {limit} and was killed{left}; expected one line a host{said}")
    if returncode:
        raise DiscoveryError(f"{_ending(returncode)}{said or '; its stderr is empty'}")


def _ending(returncode: int) -> str:
    if returncode > 0:
        return f"exited with code {returncode}"
    try:
        return f"was killed by {signal.Signals(-returncode).name}"
    except ValueError:
        return f"was killed by signal {-returncode}"


def _last_lines(errors: bytes) -> str:
    """The end of stderr, for a message; control characters as escapes: they must not act on a terminal."""
    lines = [line.strip() for line in errors.decode("utf-8", "replace").splitlines() if line.strip()]
    shown = [line[:_ERROR_LINE_CHARACTERS] for line in lines[-_ERROR_LINES:]]
    safe = ["".join(c if c.isprintable() else ascii(c)[1:-1] for c in line) for line in shown]
    return f"; the last of its stderr: {' | '.join(safe)}" if safe else ""
