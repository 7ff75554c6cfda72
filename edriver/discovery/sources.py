"""Where hosts come from: a fixed list, a hostfile, or a script that is asked again and again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from edriver.discovery.errors import DiscoveryError
from edriver.discovery.hosts import parse_host_list, parse_hosts
from edriver.discovery.script import HostDiscoveryScript
from edriver.model.hosts import HostSet, Slots

_MAX_HOSTFILE_BYTES = 4 * 1024 * 1024

SOURCE_ENTRY_POINTS: Final = "edriver.discovery"
"""The entry points of host sources: each names a callable that takes a SourceContext and returns a HostSource."""


@dataclass(frozen=True, slots=True)
class SourceContext:
    """What a host source is made from.

    Attributes:
        argument: what the operator has written after the source's name and `=`; empty: nothing.
        default_slots: the slots of a host for which the source knows none.
        timeout: seconds that one answer may take.
        dialled_in: the hosts that have dialled in; None: none do.
        changed: has the source asked at once, because its answer has changed; without hosts that dial in, as usual.
    """

    argument: str
    default_slots: int
    timeout: float
    dialled_in: HostSource | None = None
    changed: Callable[[], None] = lambda: None


class HostSource(Protocol):
    """A source that knows the current hosts."""

    async def find(self) -> HostSet:
        """The current hosts, in the source's own order.

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
        DiscoveryError: it is not such a list.
    """
    return FixedHosts(parse_host_list(context.argument, context.default_slots))


class FixedHosts:
    """Hosts that stay as they were given (`-H`, `--hostfile`)."""

    def __init__(self, hosts: HostSet) -> None:
        self._hosts = hosts

    async def find(self) -> HostSet:
        """The hosts as given; never fails."""
        return self._hosts


def read_hostfile(path: Path, default_slots: Slots) -> HostSet:
    """Read a hostfile: one host a line, as `host:slots`, `host` or `host slots=n`.

    Raises:
        DiscoveryError: the file cannot be read, has bad lines, or names no host.
    """
    try:
        with path.open("rb") as file:
            data = file.read(_MAX_HOSTFILE_BYTES + 1)
        if len(data) > _MAX_HOSTFILE_BYTES:
            raise DiscoveryError(f"larger than {_MAX_HOSTFILE_BYTES // (1024 * 1024)} MiB: expected one line per host")
        hosts = parse_hosts(data, default_slots)
        if not hosts:
            raise DiscoveryError("it names no hosts: write one line per host, host:slots")
    except OSError as error:
        raise DiscoveryError(f"hostfile {str(path)!r} cannot be read: {error.strerror}") from error
    except DiscoveryError as error:
        raise DiscoveryError(f"hostfile {str(path)!r}: {error}") from error
    return hosts
