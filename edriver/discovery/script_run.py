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
from collections.abc import Callable, Sequence
from typing import IO

from edriver.discovery.errors import DiscoveryError
from edriver.system.tether import Tether
from edriver.text.printable import printable

MAX_OUTPUT_BYTES = 4 * 1024 * 1024
_CHUNK_BYTES = 64 * 1024
_ERROR_TAIL_BYTES = 8192
_ERROR_LINES = 5
_ERROR_LINE_CHARACTERS = 200

DRAIN_SECONDS = 0.5
"""How long output may still come after the script has exited: a shell's `> >(tee log)` outlives it by a
moment, and a background child that keeps stdout open would outlive it for ever."""

_REAP_SECONDS = 5.0
"""How long a killed script may take to die. Only one that is stuck in the kernel (a dead network file system)
or belongs to another user takes longer; the poll must not wait with it."""


class _Script:
    """A script that runs: what it writes, stdout up to the limit, of stderr the end; reaped as soon as it exits.

    Args:
        command: as for run_script.

    Raises:
        OSError: it cannot be started.
    """

    def __init__(self, command: Sequence[str]) -> None:
        self.output = bytearray()
        self.errors = bytearray()
        self.overflowed = False
        self.settled = asyncio.Event()  # it exited, or wrote too much to go on
        self.exited = asyncio.Event()
        self.drained = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        # Not by the loop: uvloop forks for it, which copies the driver's page tables and calls gRPC's fork handlers.
        self._tether = Tether()
        try:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                bufsize=0,
                start_new_session=True,
                pass_fds=(self._tether.end,),
            )
        except OSError:
            self._tether.cut()
            raise
        self._tether.tie(self._process.pid)
        stdout, stderr = self._process.stdout, self._process.stderr
        assert stdout is not None
        assert stderr is not None
        self._open_pipes = {stdout, stderr}
        try:
            self._pidfd = os.pidfd_open(self._process.pid)
        except OSError:  # too many open files
            self.kill()
            self._process.wait()
            self.close()
            raise
        self._loop.add_reader(self._pidfd, self._reap)
        self._listen_to(stdout, self._add_output)
        self._listen_to(stderr, self._add_errors)

    @property
    def returncode(self) -> int | None:
        """How it ended, as of Popen; None: it has not."""
        return self._process.returncode

    def kill(self) -> None:
        """Kill its process group.

        The group's number cannot be another's: it is not given out again while a process of the group is left,
        and numbers are given out in a cycle, so not within moments of the last one's end either.
        """
        # PermissionError: all that is left belongs to another user (the script runs sudo).
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)

    def close(self) -> None:
        """Read no more. A script that lives yet is reaped whenever it exits."""
        self._tether.cut()
        for pipe in list(self._open_pipes):
            self._close_pipe(pipe)

    def _reap(self) -> None:
        self._loop.remove_reader(self._pidfd)
        os.close(self._pidfd)
        self._process.wait()  # it has exited: this does not wait
        self.exited.set()
        self.settled.set()

    def _listen_to(self, pipe: IO[bytes], take: Callable[[bytes], None]) -> None:
        os.set_blocking(pipe.fileno(), False)

        def read() -> None:
            try:
                data = os.read(pipe.fileno(), _CHUNK_BYTES)
            except BlockingIOError:
                return
            if data:
                take(data)
                return
            self._close_pipe(pipe)
            if not self._open_pipes:
                self.drained.set()

        self._loop.add_reader(pipe, read)

    def _close_pipe(self, pipe: IO[bytes]) -> None:
        self._loop.remove_reader(pipe)
        pipe.close()
        self._open_pipes.discard(pipe)

    def _add_output(self, data: bytes) -> None:
        if len(self.output) + len(data) > MAX_OUTPUT_BYTES:
            self.overflowed = True
            self.settled.set()
        else:
            self.output += data

    def _add_errors(self, data: bytes) -> None:
        self.errors += data
        del self.errors[:-_ERROR_TAIL_BYTES]


async def run_script(command: Sequence[str], seconds: float) -> bytes:
    """Run a command once and return what it wrote to stdout.

    Args:
        command: the program, an absolute path or a name on PATH, and its arguments. No shell is involved.
        seconds: how long it may take.

    Raises:
        DiscoveryError: it took longer, wrote more than MAX_OUTPUT_BYTES, or exited with anything but 0.
        OSError: it could not be started.
    """
    script = _Script(command)
    timed_out = False
    try:
        await _settle(script, seconds)
    except TimeoutError:
        timed_out = True
    finally:
        await _end(script)
    _check_ending(script, seconds if timed_out else None)
    return bytes(script.output)


async def _settle(script: _Script, seconds: float) -> None:
    """Wait until the script has exited and its output is in, or it wrote too much.

    Raises:
        TimeoutError: it has not exited by then.
    """
    async with asyncio.timeout(seconds):
        await script.settled.wait()
    if script.exited.is_set():
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(DRAIN_SECONDS):
                await script.drained.wait()


async def _end(script: _Script) -> None:
    """Kill what is left of the script's process group and reap the script."""
    script.kill()
    try:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_REAP_SECONDS):
                await script.exited.wait()
    finally:
        script.close()


def _check_ending(script: _Script, exceeded: float | None) -> None:
    """Raise a DiscoveryError unless the script ended well; `exceeded` is the time limit that it broke."""
    left = "" if script.exited.is_set() else " but does not die: see what it is stuck in"
    said = _last_lines(bytes(script.errors))
    if exceeded is not None:
        raise DiscoveryError(f"did not exit within {exceeded:g} s and was killed{left}{said}")
    if script.overflowed:
        limit = f"{MAX_OUTPUT_BYTES // (1024 * 1024)} MiB"
        raise DiscoveryError(f"printed more than {limit} and was killed{left}; expected one line a host{said}")
    if script.returncode:
        raise DiscoveryError(f"{_ending(script.returncode)}{said or '; its stderr is empty'}")


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
    return f"; the last of its stderr: {printable(' | '.join(shown))}" if shown else ""
