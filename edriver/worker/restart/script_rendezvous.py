"""The store of a script that names another than its round's: by MASTER_PORT or MASTER_ADDR, or by tcp://.

With TORCHELASTIC_USE_AGENT_STORE no rank serves a store (torch/distributed/rendezvous.py), so that under torchrun all
ranks wait for one that nobody serves. Here they meet in the round's store, under the address of the script's: that port
may be taken, or still be from the round before, and `localhost` is another host for each of several.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterator, Mapping
from typing import Any, Final
from urllib.parse import parse_qs, urlsplit

import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from edriver.common.join_config import at_port
from edriver.model.store_address import StoreAddress

logger = logging.getLogger("edriver.worker")

_AGENT_STORE: Final = "TORCHELASTIC_USE_AGENT_STORE"


def lead_to_round(own: StoreAddress, size: int) -> None:
    """Make the script's groups of all workers meet in the round's store. Call it before the script begins.

    Groups of fewer workers, each at a separate address, meet where the script says: their rank 0 serves the store.

    Args:
        own: the address of the round's store.
        size: the number of workers in the round.
    """
    modules = (c10d, dist, sys.modules["torch.distributed.rendezvous"])
    torchs = modules[-1].rendezvous

    def rendezvous(url: str, rank: int = -1, world_size: int = -1, **kwargs: Any) -> Iterator[tuple[Any, int, int]]:
        address = script_address(url, os.environ) if os.environ.get(_AGENT_STORE) == str(True) else None
        if address in (None, at_port(*own)):
            return iter(torchs(url, rank, world_size, **kwargs))
        rank, world_size = _member(url, rank, world_size, os.environ)
        if world_size != size:
            return _served(torchs(url, *_unless_in(url, rank, world_size), **kwargs))
        if rank == 0:
            logger.warning(
                "edriver: the script's group uses %s, the store of this round, because there is no store at %s (from "
                "the script's MASTER_ADDR, MASTER_PORT or init_method)",
                at_port(*own),
                address,
            )
        # Not through torch's rendezvous, whose rank 0 serves every address from 2.15 on but that of MASTER_ADDR.
        bound = {name: value for name, value in kwargs.items() if name == "timeout"}
        store = dist.TCPStore(own.host, own.port, world_size, is_master=False, **bound)  # type: ignore[attr-defined]
        return iter([(dist.PrefixStore(address, store), rank, world_size)])  # type: ignore[attr-defined]  # documented

    for module in modules:
        module.rendezvous = rendezvous  # type: ignore[attr-defined]


def script_address(url: str, environ: Mapping[str, str]) -> str | None:
    """Where a script expects a store, HOST:PORT; None: nowhere, or its address is not complete."""
    parts = urlsplit(url)
    if parts.scheme == "tcp":
        return parts.netloc or None
    host, port = environ.get("MASTER_ADDR"), environ.get("MASTER_PORT", "")
    return at_port(host, int(port)) if parts.scheme == "env" and host and port.isdecimal() else None


def _member(url: str, rank: int, world_size: int, environ: Mapping[str, str]) -> tuple[int, int]:
    """A rank and the number of ranks, from the arguments, the address, or the environment; -1: not given."""
    query = parse_qs(urlsplit(url).query)
    found = []
    for given, name in ((rank, "rank"), (world_size, "world_size")):
        text = query.get(name, [""])[0] or environ.get(name.upper(), "")
        found.append(given if given != -1 else int(text) if text.isdecimal() else -1)
    return found[0], found[1]


def _unless_in(url: str, rank: int, world_size: int) -> tuple[int, int]:
    """What torch takes beside an address: not what that has already."""
    return (-1, -1) if {"rank", "world_size"} & set(parse_qs(urlsplit(url).query)) else (rank, world_size)


def _served(meeting: Iterator[tuple[Any, int, int]]) -> Iterator[tuple[Any, int, int]]:
    """The same, with a store that its rank 0 serves."""
    os.environ[_AGENT_STORE] = str(False)
    try:
        found = next(meeting)
    finally:
        os.environ[_AGENT_STORE] = str(True)
    yield found
