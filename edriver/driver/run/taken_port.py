"""The port at which a run's hosts look for its driver. While the run has no driver, another process may take it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final

from edriver.system.private_files import account_name
from edriver.text.printable import printable_line
from edriver.wire.guarded_server import is_taken

_log = logging.getLogger("edriver.driver")

RETRY_PERIOD: Final = 1.0
"""Seconds between two tries."""

_TABLES: Final = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
_LISTENING: Final = "0A"
_ADDRESS, _STATE, _ACCOUNT = 1, 3, 7
"""Fields of proc(5), /proc/net/tcp."""


async def await_port(
    address: str,
    port: int,
    bound: float,
    pause: Callable[[float], Awaitable[bool]],
    clock: Callable[[], float],
) -> bool:
    """Wait until no other process has the port at which a run's hosts look for their driver.

    Args:
        address: see `is_taken`.
        port: the port.
        bound: seconds to wait at most: --driver-timeout.
        pause: waits for so many seconds; answers whether the operator wants to wait no longer.
        clock: seconds, monotonic.

    Returns:
        whether the port is free.
    """
    deadline, said = clock() + bound, ""
    while await asyncio.to_thread(is_taken, address, port):
        if (holder := await asyncio.to_thread(holder_of, port)) != said or not said:
            said = holder
            _log.warning(
                "port %s, at which this run's hosts look for its driver, is taken by %s. End that process, or ask its "
                "owner to: this driver tries again each second, for %g s (--driver-timeout)",
                port,
                holder,
                max(0.0, round(deadline - clock())),
            )
        if clock() >= deadline or await pause(RETRY_PERIOD):
            return False
    return True


def holder_of(port: int) -> str:
    """Which process has a TCP port of this machine, or at least whose it is, in words."""
    import psutil  # a run whose port is free has no use for it

    try:
        found = next((one.pid for one in psutil.net_connections("tcp") if one.laddr[1:] == (port,) and one.pid), None)
        if found is not None:
            process = psutil.Process(found)
            return printable_line(f"process {found} ({process.name()}) of account {process.username()}")
    except (psutil.Error, OSError, IndexError):
        pass
    owner = _owner_of(port)
    return "another process" if owner is None else f"a process of {account_name(owner)}"


def _owner_of(port: int) -> int | None:
    """The account whose socket has a port, one that listens first; None: no such socket can be seen."""
    owners: list[tuple[bool, int]] = []
    for table in _TABLES:
        with contextlib.suppress(OSError):  # there is no IPv6
            rows = [line.split() for line in table.read_text().splitlines()[1:]]
            at_port = [row for row in rows if int(row[_ADDRESS].rpartition(":")[2], 16) == port]
            owners += [(row[_STATE] != _LISTENING, int(row[_ACCOUNT])) for row in at_port]
    return min(owners)[1] if owners else None
