"""Where hosts come from: a fixed list, a hostfile, or a script that is asked again and again."""

from __future__ import annotations

import errno
import os
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from edriver.discovery.errors import DiscoveryError, UnusableSourceError
from edriver.discovery.host_lines import parse_host_list, parse_hosts
from edriver.discovery.hosts import HostSet
from edriver.discovery.script_run import run_script
from edriver.text.start_failure import start_failure

_MAX_HOSTFILE_BYTES = 4 * 1024 * 1024

SCRIPT_DESCRIPTION: Final = "an executable that prints one line host:slots a host"
"""What the operator is asked for."""

_PERMANENT_ERRORS: Final = frozenset(
    {errno.ENOENT, errno.EACCES, errno.ENOEXEC, errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.ENAMETOOLONG}
)
"""Why a script cannot be started, where that is the script's own fault, and no want of processes or files."""


SOURCE_ENTRY_POINTS: Final = "edriver.discovery"
"""The entry points of host sources: each names a callable that takes a SourceContext and returns a HostSource."""


@dataclass(frozen=True, slots=True)
class SourceContext:
    """What a host source is made from.

    Attributes:
        argument: what the operator has written after the source's name and `=`; empty: nothing.
        default_slots: the slots of a host for which the source knows none.
        timeout: seconds that one answer may take.
    """

    argument: str
    default_slots: int
    timeout: float


class HostSource(Protocol):
    """Anything that can say which hosts there are now."""

    async def find(self) -> HostSet:
        """The hosts there are now, in the source's own order.

        Raises:
            DiscoveryError: the source has no usable answer this time.
        """
        ...


def script_source(context: SourceContext) -> HostSource:
    """`--discovery script=PATH`: as --host-discovery-script."""
    return HostDiscoveryScript(context.argument, context.default_slots, context.timeout)


def hostfile_source(context: SourceContext) -> HostSource:
    """`--discovery hostfile=PATH`: as --hostfile.

    Raises:
        DiscoveryError: the file cannot be read, has bad lines, or names no host.
    """
    return FixedHosts(read_hostfile(Path(context.argument), context.default_slots))


def list_source(context: SourceContext) -> HostSource:
    """`--discovery list=a:2,b:4`: as -H.

    Raises:
        DiscoveryError: it is no such list.
    """
    return FixedHosts(parse_host_list(context.argument, context.default_slots))


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
            raise type(error)(f"host discovery script {self._script!r}: {error}") from error

    async def _run(self) -> bytes:
        # Anew each time: the file may have been created, deleted or changed since the last poll.
        command = command_of(self._script)
        try:
            return await run_script(command, self._timeout)
        except OSError as error:
            kind = UnusableSourceError if error.errno in _PERMANENT_ERRORS else DiscoveryError
            raise kind(start_failure(command[0], error, SCRIPT_DESCRIPTION)) from error


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
        UnusableSourceError: it is empty, holds a NUL, or its quotes are not closed.
    """
    if "\0" in script:
        raise UnusableSourceError("a path cannot hold a NUL character")
    # Absolute, since a bare name would be looked up on PATH and not in this directory.
    if os.access(script, os.F_OK):
        return [str(Path(script).absolute())]
    try:
        words = shlex.split(script)
    except ValueError as error:
        raise UnusableSourceError(f"is neither a file nor a command: {error}") from error
    if not words:
        raise UnusableSourceError(f"is empty: give the path of {SCRIPT_DESCRIPTION}")
    return words
