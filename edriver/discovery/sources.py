"""Where hosts come from: a fixed list, a hostfile, or a script that is asked again and again."""

from __future__ import annotations

import errno
import os
import shlex
from pathlib import Path
from typing import Protocol

from edriver.discovery.errors import DiscoveryError
from edriver.discovery.host_lines import parse_hosts
from edriver.discovery.hosts import HostSet
from edriver.discovery.script_run import run_script

_MAX_HOSTFILE_BYTES = 4 * 1024 * 1024


class HostSource(Protocol):
    """Anything that can say which hosts there are now."""

    async def find(self) -> HostSet:
        """The hosts there are now, in the source's own order.

        Raises:
            DiscoveryError: the source has no usable answer this time.
        """
        ...


class FixedHosts:
    """Hosts that stay as they were given (`-H`, `--hostfile`)."""

    def __init__(self, hosts: HostSet) -> None:
        self._hosts = hosts

    async def find(self) -> HostSet:
        """The hosts as given; never fails."""
        return self._hosts


class HostDiscoveryScript:
    """An executable that prints one line `host:slots` or `host` for each host there is now."""

    def __init__(self, script: str, default_slots: int, timeout: float) -> None:
        """A script that has not been looked at yet: all its faults come out of `find`.

        Args:
            script: the executable's path; if no such file exists, a command with arguments, split as a shell
                splits words (no shell runs it).
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
            raise DiscoveryError(f"host discovery script {self._script!r}: {error}") from error

    async def _run(self) -> bytes:
        # Anew each time: the file may have come, gone or changed since the last poll.
        command = command_of(self._script)
        try:
            return await run_script(command, self._timeout)
        except OSError as error:
            raise DiscoveryError(start_failure(command[0], error)) from error


def read_hostfile(path: Path, default_slots: int) -> HostSet:
    """Read a hostfile: one host a line, as `host:slots`, `host` or `host slots=n`.

    Raises:
        DiscoveryError: the file cannot be read, has bad lines, or names no host.
    """
    try:
        with path.open("rb") as file:
            data = file.read(_MAX_HOSTFILE_BYTES + 1)
        if len(data) > _MAX_HOSTFILE_BYTES:
            raise DiscoveryError(f"larger than {_MAX_HOSTFILE_BYTES // (1024 * 1024)} MiB: expected one line a host")
        hosts = parse_hosts(data, default_slots)
        if not hosts:
            raise DiscoveryError("it names no host: write one line a host, host:slots")
    except OSError as error:
        raise DiscoveryError(f"hostfile {str(path)!r} cannot be read: {error.strerror}") from error
    except DiscoveryError as error:
        raise DiscoveryError(f"hostfile {str(path)!r}: {error}") from error
    return hosts


def command_of(script: str) -> list[str]:
    """The argument list that runs a script given as one string: a path, else a command with arguments.

    Raises:
        DiscoveryError: it is empty, holds a NUL, or its quotes are not closed.
    """
    if "\0" in script:
        raise DiscoveryError("a path cannot hold a NUL character")
    # Absolute, since a bare name would be looked up on PATH and not in this directory.
    if os.access(script, os.F_OK):
        return [str(Path(script).absolute())]
    try:
        words = shlex.split(script)
    except ValueError as error:
        raise DiscoveryError(f"is neither a file nor a command: {error}") from error
    if not words:
        raise DiscoveryError("is empty: give the path of an executable that prints one line host:slots a host")
    return words


def start_failure(program: str, error: OSError) -> str:
    """Why a program could not be started, and what to do. Looks at the file: errno says too little."""
    exists = os.access(program, os.F_OK)
    if error.errno == errno.ENOENT and not exists:
        where = "there is no such file" if "/" in program else "there is no such file here, nor such a command on PATH"
        return f"{where}: give the path of an executable that prints one line host:slots a host"
    if error.errno == errno.ENOENT:
        return f"its interpreter does not exist; its first line is {_first_line(program)}: correct that line"
    if exists and Path(program).is_dir():
        return "is a directory: give the path of an executable file"
    if error.errno == errno.EACCES and exists and not os.access(program, os.X_OK):
        return f"is not executable: chmod +x {shlex.quote(program)}"
    if error.errno == errno.EACCES:
        return (
            "may not be executed: its directories, its interpreter (first line) or its file system (noexec) "
            "do not allow it"
        )
    if error.errno == errno.ENOEXEC:
        return (
            "is neither a program for this machine nor a script with an interpreter: "
            "make its first line #!/bin/sh or #!/usr/bin/env python3"
        )
    return f"cannot be started: {error.strerror or error}"


def _first_line(program: str) -> str:
    """A file's first line for a message, quoted, so that a Windows line end shows as \\r."""
    try:
        with Path(program).open("rb") as file:
            return repr(file.readline(128).rstrip(b"\n"))[1:]
    except OSError:
        return "unreadable"
