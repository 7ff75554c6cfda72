"""Where this host is reached, and through which interface.

The agent dials the driver at the address from which ssh connected, or, because ssh may have used a jump host, at one of
the driver's own addresses. The driver answers with the address that it saw; workers are reached there if it is one of
the host's own.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Mapping, Sequence

from edriver.common.join_config import at_port
from edriver.system.own_addresses import addresses_by_interface, is_link_local


def drivers_by_ssh(environment: Mapping[str, str], drivers: Sequence[str]) -> tuple[str, ...]:
    """Where the driver may be reached; the address from which ssh connected comes first.

    Args:
        environment: the agent's; sshd has set SSH_CONNECTION in it (sshd(8)): the client's address and port, then ours.
        drivers: what the driver itself thinks.
    """
    came_from = environment.get("SSH_CONNECTION", "").split()[:1]
    ports = {driver.rpartition(":")[2] for driver in drivers}
    return tuple(dict.fromkeys([*(at_port(came_from[0], int(port)) for port in ports if came_from), *drivers]))


def own_address(observed_address: str, interface: str = "") -> str:
    """The address at which this host's workers are reached: the one that the driver sees, if it belongs to this host.

    Behind network address translation it does not; then the local address from which that one is reached.

    Args:
        observed_address: the address that the driver sees.
        interface: the network interface whose address to use; empty: any.

    Raises:
        OSError: there is no route to the address.
        ValueError: the interface does not exist, or has no address of that kind.
    """
    family = _family(observed_address)
    if interface:
        return min(addresses_of(interface, family), key=is_link_local)
    with contextlib.suppress(OSError), socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.bind((observed_address, 0))
        return observed_address
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect((observed_address, 9))  # sends nothing
        return str(probe.getsockname()[0])


def addresses_of(interface: str, *families: int) -> list[str]:
    """The addresses of an interface of this host.

    Raises:
        ValueError: the interface does not exist, or has no address of these kinds.
    """
    every = addresses_by_interface().get(interface, [])
    found = [address for address in every if not families or _family(address) in families]
    if not found:
        raise ValueError(f"no network interface {interface!r} with an address exists here (--network-interface)")
    return found


def _family(address: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in address else socket.AF_INET


def interface_of(address: str) -> str | None:
    """The name of the interface that has an address; None if none has."""
    for name, addresses in addresses_by_interface().items():
        if any(own.partition("%")[0] == address for own in addresses):
            return name
    return None
