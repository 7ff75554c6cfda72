"""Whether a process still listens at an address: one that is stopped does, for the kernel takes connections for it."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, Final

PROBE_TIMEOUT: Final = 1.0
"""Seconds that an attempt may take. Silence does not count as a refusal."""


async def nothing_listens(target: str) -> bool:
    """Whether connections are refused there; what cannot be known counts as no.

    Args:
        target: as gRPC has it: `unix:PATH`, `HOST:PORT`, `ipv4:HOST:PORT` or `ipv6:[HOST]:PORT`; of several, separated
            by commas, all have to refuse.
    """
    scheme, _, rest = target.partition(":")
    if scheme == "unix":
        return await _refused(asyncio.open_unix_connection(rest))
    places = (rest if scheme in ("ipv4", "ipv6") else target).split(",")
    results = []
    for place in places:
        host, _, port = place.rpartition(":")
        results.append(await _refused(asyncio.open_connection(host.strip("[]"), int(port))))
    return all(results)


async def _refused(connecting: Coroutine[Any, Any, tuple[asyncio.StreamReader, asyncio.StreamWriter]]) -> bool:
    try:
        async with asyncio.timeout(PROBE_TIMEOUT):
            _, writer = await connecting
    except (ConnectionRefusedError, FileNotFoundError):
        return True
    except OSError:  # also TimeoutError
        return False
    writer.close()
    return False
