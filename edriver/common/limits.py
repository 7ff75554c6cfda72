"""The limits of everything that comes from outside: over the network, from discovery, from flags. All in one place.

What applies them to messages is message_limits.py.
"""

from __future__ import annotations

import ipaddress
import re
from typing import Final

SLOTS: Final = 4096
"""Slots of one host."""

TOTAL_SLOTS: Final = 65_536
"""Slots of all hosts of a run together, and so its workers."""

HOST_NAME: Final = 253
"""Characters of a host's name: what DNS allows."""

NAME: Final = 1024
"""Characters of any other name: an id, an address, a path, a reason."""

REPORTED_NAME: Final = 100
"""Characters of a name under which a script reports a value,"""

REPORTED: Final = 20
"""and how many such names a worker has."""

TEXT: Final = 128 * 1024
"""Characters that are kept of a free text (a traceback, stacks, the last lines of output): the rest is cut out."""

SECRET: Final = 64
"""Bytes of a secret."""

LINE: Final = 64 * 1024
"""Bytes of a line of output,"""

LINES: Final = 1000
"""and lines of one batch."""

ITEMS: Final = 10_000
"""Items of any other list."""

_HOST: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*")
_IPV6: Final = re.compile(r"[0-9A-Za-z:.%_-]+")


class OutOfBoundsError(ValueError):
    """Something from outside is larger, or other, than anything in its place can be; the message names it."""


def check_slots(slots: int, what: str) -> int:
    """The same number of slots of one host.

    Args:
        slots: the number.
        what: who says so, for the error.

    Raises:
        OutOfBoundsError: no host has so many, or so few.
    """
    if not 1 <= slots <= SLOTS:
        raise OutOfBoundsError(f"{what} is {slots}: a host has 1 to {SLOTS} slots")
    return slots


def check_host(name: str, what: str) -> str:
    """The same name of a host.

    Args:
        name: the name, or an IP address.
        what: who says so, for the error.

    Raises:
        OutOfBoundsError: it is none.
    """
    if len(name) > HOST_NAME:
        raise OutOfBoundsError(f"{what} has {len(name)} characters: a host's name has {HOST_NAME} at most")
    if not is_host_name(name):
        raise OutOfBoundsError(
            f"{what} is {name!a}, which is no host's name: letters, digits, '.', '-' and '_', alphanumeric first, "
            "or an IP address"
        )
    return name


def is_host_name(name: str) -> bool:
    """Whether a host may be called so. A name never begins with "-": on a command line it would be an option."""
    if _HOST.fullmatch(name):
        return True
    try:
        ipaddress.IPv6Address(name)
    except ValueError:
        return False
    return _IPV6.fullmatch(name) is not None  # what stands behind a % may otherwise be anything


def is_reported_name(name: str) -> bool:
    """Whether a script may report a value under this name."""
    return len(name) <= REPORTED_NAME and name.isprintable()
