"""Pairs: each rank sends some bytes to some others, and receives some from them, all at the same time.

As in a relay (relay.py), what is waited for is an empty message behind the bytes, which a lost peer cannot leave half
arrived, and a send is never waited for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
import torch.distributed as dist

PART_BYTES = 256 * 2**20
"""Bytes of a message: Gloo counts them with 32 bits in places."""


class Sends:
    """Messages that are under way: keep this, and do not write to what is sent, until the receivers have all of it."""

    def __init__(self) -> None:
        self.works: list[dist.Work] = []


def exchange(outgoing: Mapping[int, Sequence[torch.Tensor]], incoming: Mapping[int, Sequence[torch.Tensor]]) -> Sends:
    """Send, and return once everything has been received.

    Args:
        outgoing: for each rank to send to, its messages, uint8 of one dimension, in host memory.
        incoming: for each rank to receive from, the memory for its messages, of the same lengths as there.

    Raises:
        RuntimeError: the connection to a peer broke.
    """
    posted = []
    for rank, messages in incoming.items():
        parts = [_started(dist.irecv(part, rank)) for part in _parts(messages)]
        posted.append((parts, _started(dist.irecv(_empty(), rank))))
    sends = Sends()
    for rank, messages in outgoing.items():
        sends.works += [_started(dist.isend(part, rank)) for part in (*_parts(messages), _empty())]
    for parts, arrived in posted:
        arrived.wait()
        for part in parts:
            part.wait()  # they arrived before: this does not block
    return sends


def _parts(messages: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    return [m[first : first + PART_BYTES] for m in messages for first in range(0, len(m), PART_BYTES)]


def _empty() -> torch.Tensor:
    return torch.empty(0, dtype=torch.uint8, device="cpu")


def _started(work: dist.Work | None) -> dist.Work:
    assert work is not None, "this rank is not in the default group"
    return work
