"""The limits of everything that comes from outside: over the network, from discovery, from flags. All in one place.

What applies them to messages is message_limits.py.
"""

from __future__ import annotations

import ipaddress
import re
from typing import Final

MAX_HOST_SLOTS: Final = 4096
"""Slots of one host."""

MAX_NAMED: Final = 16
"""Hosts or workers that a message names: a run may have thousands."""

MAX_TOTAL_SLOTS: Final = 65_536
"""Slots of all hosts of a run together, and so its workers."""

MAX_HOST_NAME_LENGTH: Final = 253
"""Characters of a host's name: what DNS allows."""

MAX_NAME_LENGTH: Final = 1024
"""Characters of any other name: an id, an address, a path, a reason."""

MAX_REPORTED_NAME_LENGTH: Final = 100
"""Characters of a name under which a script reports a value,"""

MAX_REPORTED_NAMES: Final = 100
"""and how many such names a worker has."""

MAX_MODULE_NAME_LENGTH: Final = 200
"""Characters of the full name of a Python module,"""

MAX_MODULES: Final = 10_000  # all together fit into a message of gRPC's, which takes 4 MiB
"""and how many such names are kept of a run."""

MAX_VARIABLES: Final = 100
"""Environment variables that a worker reports."""

MAX_TEXT_LENGTH: Final = 128 * 1024
"""Characters that are kept of a free text (a traceback, stacks, the last lines of output): the rest is cut out."""

MAX_ERROR_LENGTH: Final = 4000
"""Characters of the text of an error that a host source or a broker has raised."""

MAX_SECRET_BYTES: Final = 64
"""Bytes of a secret."""

MAX_LINE_BYTES: Final = 64 * 1024
"""Bytes of a line of output,"""

MAX_BATCH_LINES: Final = 1000
"""and lines of one batch."""

MAX_RENDEZVOUS_NODES: Final = 65_536
"""Nodes of one run of torchrun in a rendezvous."""

MAX_STORE_VALUE_BYTES: Final = 8 * 1024 * 1024
"""Bytes of a value in the store of a rendezvous."""

MAX_SHARD_RANGES: Final = 100_000
"""Parts of a checkpoint's shard that are read at once."""

MAX_AMOUNT: Final = 2**53
"""Most of anything that is used and counted: bytes, seconds, cores."""

MAX_LIST_ITEMS: Final = 10_000
"""Items of any other list."""

_HOST_PATTERN: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*")
_IPV6_PATTERN: Final = re.compile(r"[0-9A-Za-z:.%_-]+")


class OutOfBoundsError(ValueError):
    """Something from outside is larger, or other, than anything in its place can be; the message names it."""


def check_slots(slots: int, what: str) -> int:
    """The same number of slots of one host.

    Args:
        slots: the number.
        what: the source of the value, for the error message.

    Raises:
        OutOfBoundsError: the number is out of bounds.
    """
    if not 1 <= slots <= MAX_HOST_SLOTS:
        raise OutOfBoundsError(f"{what} is {slots}: a host has 1 to {MAX_HOST_SLOTS} slots")
    return slots


def check_host(name: str, what: str) -> str:
    """Check the name of a host, and return it.

    Args:
        name: the name, or an IP address.
        what: the source of the value, for the error message.

    Raises:
        OutOfBoundsError: it is not a valid name or address.
    """
    if len(name) > MAX_HOST_NAME_LENGTH:
        raise OutOfBoundsError(
            f"{what} has {len(name)} characters: a host's name may have at most {MAX_HOST_NAME_LENGTH}"
        )
    if not is_host_name(name):
        raise OutOfBoundsError(
            f"{what} is {name!a}, which is not a host name: letters, digits, '.', '-' and '_', alphanumeric first, "
            "or an IP address"
        )
    return name


def addresses_of(text: str) -> tuple[str, ...]:
    """Parse a comma-separated list of HOST:PORT.

    Raises:
        ValueError: an entry is not such an address; the message names it.
    """
    addresses = tuple(text.split(","))
    for address in addresses:
        host, _, port = address.rpartition(":")
        if not host or not port.isdecimal():
            raise ValueError(f"{address!r} is not HOST:PORT")
    return addresses


def is_host_name(name: str) -> bool:
    """Whether a host may be called so. A name never begins with "-": on a command line it would be an option."""
    if _HOST_PATTERN.fullmatch(name):
        return True
    try:
        ipaddress.IPv6Address(name)
    except ValueError:
        return False
    return _IPV6_PATTERN.fullmatch(name) is not None  # what stands behind a % may otherwise be anything


def is_reported_name(name: str) -> bool:
    """Whether a script may report a value under this name."""
    return len(name) <= MAX_REPORTED_NAME_LENGTH and name.isprintable()


def is_module_name(name: str) -> bool:
    """Whether this may be the full name of a Python module. Modules with other letters than ASCII's are left out."""
    return (
        len(name) <= MAX_MODULE_NAME_LENGTH and name.isascii() and all(part.isidentifier() for part in name.split("."))
    )
