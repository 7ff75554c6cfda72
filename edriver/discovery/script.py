"""A discovery script as a source of hosts. Each run is bounded in time and in output, and nothing of it is left behind.

The script is the user's program, run every few seconds for weeks beside the driver's event loop. So it
gets its own process group, no terminal and no input; however its run ends, and that includes cancellation, the
whole group is killed and the script reaped. (A process that starts its own session cannot be killed, but cannot
delay the poll either.)
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import shlex
import shutil
import signal
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, Final

from edriver.discovery.errors import DiscoveryError, UnusableSourceError
from edriver.discovery.hosts import parse_hosts
from edriver.model.hosts import HostSet, Slots
from edriver.system.child import Child
from edriver.text.phrases import exit_text
from edriver.text.printable import printable
from edriver.text.start_failure import start_failure

SCRIPT_DESCRIPTION: Final = "an executable that prints one line, host:slots, for each host"
"""What the operator is asked for."""

_PERMANENT_ERRORS: Final = frozenset(
    {errno.ENOENT, errno.EACCES, errno.ENOEXEC, errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.ENAMETOOLONG}
)
"""Why a script cannot be started, where that is the script's own fault, and no want of processes or files."""

_SHELL_SYNTAX: Final = frozenset("|&;<>()$`*?[]{}~#!\n")
"""What a shell reads as more than a letter of a word. Quoted or not: for a command that needs no shell it makes no
difference which of the two runs it."""

_CODE_NOT_RUN: Final = frozenset({126, 127})
"""A shell's exit codes for a command that may not be executed, or does not exist."""

_CODE_NOT_READ: Final = 128 + signal.SIGPIPE
"""A shell's exit code, under pipefail, for a pipeline whose reader had what it wanted: `... | head -4`."""

MAX_OUTPUT_BYTES = 4 * 1024 * 1024
_CHUNK_BYTES = 64 * 1024
_ERROR_TAIL_BYTES = 8192
_ERROR_LINES = 5
_ERROR_LINE_CHARACTERS = 200

DRAIN_TIMEOUT = 0.5
"""How long output may still come after the script has exited: a shell's `> >(tee log)` outlives it by a
moment, and a background child that keeps stdout open would outlive it for ever."""

_REAP_TIMEOUT = 5.0
"""How long a killed script may take to die. Only one that is stuck in the kernel (a dead network file system)
or belongs to another user takes longer; the poll must not wait with it."""


class HostDiscoveryScript:
    """An executable that prints one line `host:slots` or `host` for each host there is now."""

    def __init__(self, script: str, default_slots: Slots, timeout: float) -> None:
        """A script that has not been looked at yet: all its faults come out of `find`.

        Args:
            script: the executable's path; if no such file exists, a command with arguments; if that has shell syntax
                in it (a pipe, a variable), a shell's command line.
            default_slots: the slots of a host whose line gives none.
            timeout: seconds that one run of the script may take.
        """
        self._script = script
        self._default_slots = default_slots
        self._timeout = timeout

    async def find(self) -> HostSet:
        """Run the script once and read its answer.

        Raises:
            DiscoveryError: it could not be started, failed, hung, or printed something else.
        """
        try:
            output = await self._run()
            return parse_hosts(output, self._default_slots)
        except DiscoveryError as error:
            kind = UnusableSourceError if isinstance(error, UnusableSourceError) else DiscoveryError
            raise kind(f"host discovery script {self._script!r}: {error}") from error

    async def _run(self) -> bytes:
        # Anew each time: the file may have been created, deleted or changed since the last poll.
        command = command_of(self._script)
        try:
            return await run_script(command, self._timeout)
        except ScriptFailedError as error:
            if command != shell_command(self._script):
                raise
            if error.code == _CODE_NOT_READ:
                return error.output
            if error.code in _CODE_NOT_RUN:
                raise UnusableSourceError(str(error)) from error
            raise
        except OSError as error:
            kind = UnusableSourceError if error.errno in _PERMANENT_ERRORS else DiscoveryError
            raise kind(start_failure(command[0], error, SCRIPT_DESCRIPTION)) from error


class ScriptFailedError(DiscoveryError):
    """A program has ended with another exit code than 0.

    Attributes:
        code: the exit code; negative: the signal that ended it.
        output: what it had written to stdout.
        errors: the end of what it had written to stderr, as lines.
    """

    def __init__(self, message: str, code: int, output: bytes, errors: Sequence[str]) -> None:
        super().__init__(message)
        self.code = code
        self.output = output
        self.errors = errors


def shell_command(script: str) -> list[str]:
    """The argument list of a shell that runs a command line.

    A pipeline fails if any part of it does: an answer that lacks what `curl ... | jq ...` could not fetch would remove
    hosts. POSIX's sh has that only since 2024, so bash runs it, where there is one.
    """
    if bash := shutil.which("bash"):
        return [bash, "-o", "pipefail", "-c", script]
    return ["/bin/sh", "-c", script]


def command_of(script: str) -> list[str]:
    """The argument list that runs a script given as one string: a path, else a command with arguments, else a shell.

    Raises:
        UnusableSourceError: it is empty, holds a NUL, or its quotes are not closed.
    """
    if "\0" in script:
        raise UnusableSourceError("a path cannot hold a NUL character")
    # Absolute, since a bare name would be looked up on PATH and not in this directory.
    if os.access(script, os.F_OK):
        return [str(Path(script).absolute())]
    if _SHELL_SYNTAX.intersection(script) or "=" in script.partition(" ")[0]:
        return shell_command(script)
    try:
        words = shlex.split(script)
    except ValueError as error:
        raise UnusableSourceError(f"is neither a file nor a command: {error}") from error
    if not words:
        raise UnusableSourceError(f"is empty: give the path of {SCRIPT_DESCRIPTION}")
    return words


async def run_script(command: Sequence[str], seconds: float) -> bytes:
    """Run a command once and return what it wrote to stdout.

    Args:
        command: the program, an absolute path or a name on PATH, and its arguments. No shell is involved.
        seconds: how long it may take.

    Raises:
        DiscoveryError: it took longer, or wrote more than MAX_OUTPUT_BYTES.
        ScriptFailedError: it exited with anything but 0.
        OSError: it could not be started.
    """
    script = _Script(command)
    timed_out = False
    try:
        await _wait_for_output(script, seconds)
    except TimeoutError:
        timed_out = True
    finally:
        await _end(script)
    _check_ending(script, seconds if timed_out else None)
    return bytes(script.output)


async def _wait_for_output(script: _Script, seconds: float) -> None:
    """Wait until the script has exited and its output is in, or it wrote too much.

    Raises:
        TimeoutError: it has not exited by then.
    """
    async with asyncio.timeout(seconds):
        await script.finished.wait()
    if script.exited.is_set():
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(DRAIN_TIMEOUT):
                await script.drained.wait()


async def _end(script: _Script) -> None:
    """Kill what is left of the script's process group and reap the script."""
    script.kill()
    try:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_REAP_TIMEOUT):
                await script.exited.wait()
    finally:
        script.close()


def _check_ending(script: _Script, exceeded: float | None) -> None:
    """Raise a DiscoveryError unless the script ended well; `exceeded` is the time limit that it broke."""
    left = "" if script.exited.is_set() else " but has not ended: see what it is stuck in"
    stderr_text = _last_lines(bytes(script.errors))
    if exceeded is not None:
        raise DiscoveryError(f"did not exit within {exceeded:g} s and was killed{left}{stderr_text}")
    if script.overflowed:
        limit = f"{MAX_OUTPUT_BYTES // (1024 * 1024)} MiB"
        raise DiscoveryError(f"printed more than {limit} and was killed{left}; expected one line per host{stderr_text}")
    if script.code:
        message = f"{exit_text(script.code)}{stderr_text or '; its stderr is empty'}"
        raise ScriptFailedError(message, script.code, bytes(script.output), _lines(bytes(script.errors)))


def _lines(errors: bytes) -> list[str]:
    return [line.strip() for line in errors.decode("utf-8", "replace").splitlines() if line.strip()]


def _last_lines(errors: bytes) -> str:
    """The end of stderr, for a message; control characters as escapes: they must not act on a terminal."""
    shown = [line[:_ERROR_LINE_CHARACTERS] for line in _lines(errors)[-_ERROR_LINES:]]
    return f"; the last of its stderr: {printable(' | '.join(shown))}" if shown else ""


class _Script:
    """A script that runs: what it writes, stdout up to the limit, of stderr the end; reaped when it is closed.

    Args:
        command: as for run_script.

    Raises:
        OSError: it cannot be started.
    """

    def __init__(self, command: Sequence[str]) -> None:
        self.output = bytearray()
        self.errors = bytearray()
        self.overflowed = False
        self.finished = asyncio.Event()  # it exited, or wrote too much to continue
        self.exited = asyncio.Event()
        self.drained = asyncio.Event()
        self._closed = False
        self._child = Child(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, tethered=True)
        stdout, stderr = self._child.stdout, self._child.stderr
        assert stdout is not None
        assert stderr is not None
        self._open_pipes = {stdout, stderr}
        self._loop = asyncio.get_running_loop()
        try:
            self._child.watch(self._note_exit)
        except OSError:
            self.close()
            raise
        self._listen_to(stdout, self._add_output)
        self._listen_to(stderr, self._add_errors)

    @property
    def code(self) -> int | None:
        """How it ended, as of Child; None: it has not, or was not closed."""
        return self._child.code

    def kill(self) -> None:
        """Kill its process group."""
        self._child.signal_group(signal.SIGKILL)

    def close(self) -> None:
        """Stop reading, and reap it: now, or when it exits."""
        self._closed = True
        for pipe in list(self._open_pipes):
            self._close_pipe(pipe)
        if self.exited.is_set():
            self._child.reap()

    def _note_exit(self) -> None:
        """Until it is closed the rest of its group may write on."""
        self.exited.set()
        self.finished.set()
        if self._closed:
            self._child.reap()

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
            self.finished.set()
        else:
            self.output += data

    def _add_errors(self, data: bytes) -> None:
        self.errors += data
        del self.errors[:-_ERROR_TAIL_BYTES]
