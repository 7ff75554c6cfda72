"""Hosts that share a network which can be cut: network namespaces, each with one link to a bridge.

A cut link is silence: no FIN, no RST, no error, as when a cable is pulled behind a switch. The hosts know one another's
hardware addresses for good: else the kernel would find out within seconds that nobody answers for one, and say so.
It takes root and iproute2 to make all this.
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import os
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

INTERFACE = "link"
"""What the link is called inside each host."""

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

    def enter(self) -> None:
        """Move the calling thread, and all that it starts from now on, to this host."""
        with Path(f"/var/run/netns/{self.namespace}").open() as namespace:
            if ctypes.CDLL(None, use_errno=True).setns(namespace.fileno(), _CLONE_NEWNET) != 0:
                raise OSError(ctypes.get_errno(), f"cannot enter {self.namespace}")


@contextlib.contextmanager
def linked_hosts(count: int) -> Iterator[list[LinkedHost]]:
    """Hosts with the addresses 10.213.0.1, 10.213.0.2, ...: nothing else is on their network.

    Where they cannot be made the test is skipped; where CI is set, it fails.
    """
    mark = f"edriver-{os.getpid()}-{next(_numbers)}"
    with contextlib.ExitStack() as made:
        try:
            hub = make_namespace(f"{mark}-hub", made)
            _ip("-n", hub, "link", "add", "bridge", "type", "bridge")
        except (OSError, subprocess.CalledProcessError) as error:
            if "CI" in os.environ:
                raise
            why = error.stderr.strip() if isinstance(error, subprocess.CalledProcessError) else error
            pytest.skip(f"network namespaces cannot be made here: {why}")
        _ip("-n", hub, "link", "set", "dev", "bridge", "up")
        hosts = [_make_host(mark, hub, number, made) for number in range(1, count + 1)]
        for host, other in itertools.permutations(hosts, 2):
            _introduce(host, other)
        yield hosts


def make_namespace(name: str, made: contextlib.ExitStack) -> str:
    """A network namespace that is deleted when `made` is closed, with what still runs in it; answers its name."""
    _ip("netns", "add", name)
    made.callback(_delete_namespace, name)
    _ip("-n", name, "link", "set", "dev", "lo", "up")
    return name


def _delete_namespace(name: str) -> None:
    for pid in _ip("netns", "pids", name).split():
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(pid), signal.SIGKILL)
    _ip("netns", "delete", name)


def give_address(namespace: str, address: str, interface: str = "lo") -> None:
    """Make an address that of a namespace's interface."""
    _ip("-n", namespace, "address", "add", address, "dev", interface)


def _make_host(mark: str, hub: str, number: int, made: contextlib.ExitStack) -> LinkedHost:
    namespace = make_namespace(f"{mark}-{number}", made)
    host = LinkedHost(namespace, f"10.213.0.{number}", f"02:00:00:00:00:{number:02x}", hub, f"port{number}")
    _ip(
        *("-n", hub, "link", "add", host.port, "type", "veth"),
        *("peer", "name", INTERFACE, "address", host.hardware_address, "netns", namespace),
    )
    give_address(namespace, f"{host.address}/24", INTERFACE)
    _ip("-n", namespace, "link", "set", "dev", INTERFACE, "up")
    _ip("-n", hub, "link", "set", "dev", host.port, "master", "bridge", "up")
    return host


def _introduce(host: LinkedHost, other: LinkedHost) -> None:
    _ip(
        *("-n", host.namespace, "neighbour", "add", other.address, "lladdr", other.hardware_address),
        *("dev", INTERFACE, "nud", "permanent"),
    )


def _ip(*arguments: str) -> str:
    done = subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True, timeout=20)
    return done.stdout
