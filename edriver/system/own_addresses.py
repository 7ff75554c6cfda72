"""This machine's own addresses, and what kind an address is."""

from __future__ import annotations

import ipaddress
import socket
from typing import TypeAlias

Where: TypeAlias = "tuple[str | int | bytes, ...]"
"""A socket's address, as the socket module has it."""


def own_addresses() -> list[str]:
    """All addresses by which other machines may reach this one, IPv4's first."""
    every = [address for addresses in addresses_by_interface().values() for address in addresses]
    mine = [address for address in every if not is_loopback(address) and not is_link_local(address)]
    return sorted(mine, key=lambda address: ":" in address)


def addresses_by_interface() -> dict[str, list[str]]:
    """The addresses of each network interface, IPv4's first."""
    import psutil  # a local run has no use for it

    return {
        interface: [
            entry.address for family in (socket.AF_INET, socket.AF_INET6) for entry in entries if entry.family == family
        ]
        for interface, entries in psutil.net_if_addrs().items()
    }


def is_own(family: int, where: Where) -> bool:
    """Whether an address is this machine's: a socket can be bound to it."""
    address = ipaddress.ip_address(str(where[0]).partition("%")[0])
    # A bind to these succeeds, although they belong to no machine.
    if address.is_unspecified or address.is_multicast or where[0] == "255.255.255.255":
        return False
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        try:
            probe.bind(where)
        except OSError:
            return False
    return True


def bound_at(address: str, port: int = 0) -> socket.socket:
    """A TCP socket that is bound to an address, and does not listen yet.

    Args:
        address: the address.
        port: the port; 0: any that is free.

    Raises:
        OSError: the address is not an address of this host, or another process listens at the port.
    """
    family, kind, protocol, _, where = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM)[0]
    bound = socket.socket(family, kind, protocol)
    try:
        if port:  # connections that have been closed there do not count
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(where)
    except OSError:
        bound.close()
        raise
    return bound


def is_loopback(address: str) -> bool:
    """Whether only this machine can be reached by an address; of names, localhost alone counts."""
    try:
        return ipaddress.ip_address(address.partition("%")[0]).is_loopback
    except ValueError:
        return address == "localhost"


def is_link_local(address: str) -> bool:
    """Whether IPv6 gives such an address to each interface: it needs a scope, and leads to that link's hosts only."""
    return ipaddress.ip_address(address.partition("%")[0]).is_link_local
