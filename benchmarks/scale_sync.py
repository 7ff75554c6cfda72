"""A sync to many receivers, over links in virtual time: the relay itself, and no bytes.

    python -m benchmarks.scale sync --receivers 1 8 63

400 MB through chains of so many receivers, over links of 1.25 GB/s (10 Gbit/s) that each message takes 20 us of beside
its bytes, 50 us of latency. `ratio` is over one receiver; a chain cannot have a smaller one than 1. `usual_pieces` is
the same with the pieces of a short chain.
"""

from __future__ import annotations

from typing import Any, Final

from edriver.worker.sync import relay
from tests.torch.virtual_links import VirtualLinks, relay_seconds

LENGTH: Final = 400_000_000
BANDWIDTH, LATENCY, TURN = 1.25e9, 50e-6, 20e-6


def measured(receivers: int) -> dict[str, Any]:
    """The figures of one number of receivers, as one line of the output has them."""

    def seconds(receivers: int, piece: int) -> float:
        return relay_seconds(LENGTH, receivers, piece, VirtualLinks(BANDWIDTH, LATENCY, TURN))

    piece, one = relay.piece_bytes(LENGTH, receivers), seconds(1, relay.PIECE_BYTES)
    took, usual = seconds(receivers, piece), seconds(receivers, relay.PIECE_BYTES)
    return {
        "receivers": receivers,
        "piece_bytes": piece,
        "s": round(took, 3),
        "ratio": round(took / one, 3),
        "usual_pieces_s": round(usual, 3),
        "usual_pieces_ratio": round(usual / one, 3),
    }
