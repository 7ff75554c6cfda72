"""Where a worker's store listens."""

from __future__ import annotations

from typing import NamedTuple


class StoreAddress(NamedTuple):
    """An address and a port, or the path of a unix socket and 0."""

    host: str
    port: int
