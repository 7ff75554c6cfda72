"""Hosts that share a network which can be cut: network namespaces, each with one link to a bridge.

A cut link is silent: no FIN, no RST, no error, as when a cable is pulled behind a switch. The hosts' neighbour entries
are permanent: otherwise ARP would fail within seconds, and the kernel would report the host as unreachable.
Requires root and iproute2.
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import os
import signal
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from tests.needs import NAMESPACES, require
from tests.session_guard import namespace_prefix

INTERFACE = "link"
"""What the link is called inside each host."""

IPV4, IPV6 = "10.213.0.", "fd00:213::"
"""How the hosts' addresses begin."""

_CLONE_NEWNET = 0x40000000
_numbers = itertools.count()


@dataclass(frozen=True, slots=True)
class LinkedHost:
    """A network namespace with one address.

    Attributes:
        namespace: its name, for `ip netns exec`.
        address: where the others reach it.
        hardware_address: the link's.
        hub: the namespace of the bridge,
        port: and the link's end there.
    """

    namespace: str
    address: str
    hardware_address: str
    hub: str
    port: str

    def cut(self) -> None:
        """Pull the cable."""
        _ip("-n", self.hub, "link", "set", "dev", self.port, "down")

    def heal(self) -> None:
        """Put the cable back."""
        _ip("-n", self.hub, "link", "set", "dev", self.port, "up")

    def processes(self) -> set[int]:
        """The processes on this host."""
        return {int(pid) for pid in _ip("netns", "pids", self.namespace).split()}

    def enter(self) -> None:
        """Move the calling thread, and all that it starts from now on, to this host."""
        with Path(f"/var/run/netns/{self.namespace}").open() as namespace:
            if ctypes.CDLL(None, use_errno=True).setns(namespace.fileno(), _CLONE_NEWNET) != 0:
                raise OSError(ctypes.get_errno(), f"cannot enter {self.namespace}")


@contextlib.contextmanager
def linked_hosts(count: int, prefix: str = IPV4) -> Iterator[list[LinkedHost]]:
    """Hosts with the addresses 1, 2, ... of a network: nothing else is on it.

    Args:
        count: how many.
        prefix: how the addresses begin; with IPV6 they have no other.
    """
    require(NAMESPACES)
    mark = f"{namespace_prefix()}{next(_numbers)}"
    with contextlib.ExitStack() as made:
        hub = make_namespace(f"{mark}-hub", made)
        _ip("-n", hub, "link", "add", "bridge", "type", "bridge")
        _ip("-n", hub, "link", "set", "dev", "bridge", "up")
        hosts = []
        for number in range(1, count + 1):
            namespace = make_namespace(f"{mark}-{number}", made)
            hardware_address = f"02:00:00:00:00:{number:02x}"
            hosts.append(LinkedHost(namespace, f"{prefix}{number}", hardware_address, hub, f"port{number}"))
            _link(hosts[-1])
        for host, other in itertools.permutations(hosts, 2):
            _introduce(host, other)
        yield hosts


def link_again(hosts: Sequence[LinkedHost], interface: str, prefix: str) -> list[str]:
    """Give these hosts another network, by an interface of this name; answers their addresses there, in order."""
    _ip("-n", hosts[0].hub, "link", "add", f"bridge-{interface}", "type", "bridge")
    _ip("-n", hosts[0].hub, "link", "set", "dev", f"bridge-{interface}", "up")
    addresses = []
    for number, host in enumerate(hosts, start=1):
        addresses.append(f"{prefix}{number}")
        there = replace(
            host, address=addresses[-1], hardware_address=f"02:00:00:01:00:{number:02x}", port=f"{host.port}b"
        )
        _link(there, interface, f"bridge-{interface}")
    return addresses


def make_namespace(name: str, made: contextlib.ExitStack) -> str:
    """A network namespace that is deleted when `made` is closed, with what still runs in it; answers its name."""
    _ip("netns", "add", name)
    made.callback(_delete_namespace, name)
    _ip("-n", name, "link", "set", "dev", "lo", "up")
    return name


def end_all_in(namespace: str) -> None:
    """Kill every process that runs in it."""
    for pid in _ip("netns", "pids", namespace).split():
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(pid), signal.SIGKILL)


def _delete_namespace(name: str) -> None:
    end_all_in(name)
    _ip("netns", "delete", name)


def give_address(namespace: str, address: str, interface: str = "lo") -> None:
    """Make an address that of a namespace's interface, at once."""
    at_once = ["nodad"] if ":" in address else []
    _ip("-n", namespace, "address", "add", address, "dev", interface, *at_once)


def _link(host: LinkedHost, interface: str = INTERFACE, bridge: str = "bridge") -> None:
    _ip(
        *("-n", host.hub, "link", "add", host.port, "type", "veth"),
        *("peer", "name", interface, "address", host.hardware_address, "netns", host.namespace),
    )
    give_address(host.namespace, f"{host.address}/{64 if ':' in host.address else 24}", interface)
    _ip("-n", host.namespace, "link", "set", "dev", interface, "up")
    _ip("-n", host.hub, "link", "set", "dev", host.port, "master", bridge, "up")


def _introduce(host: LinkedHost, other: LinkedHost) -> None:
    _ip(
        *("-n", host.namespace, "neighbour", "add", other.address, "lladdr", other.hardware_address),
        *("dev", INTERFACE, "nud", "permanent"),
    )


def _ip(*arguments: str) -> str:
    return subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True, timeout=120).stdout
