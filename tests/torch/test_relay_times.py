"""How long a chain takes, over links in virtual time: the relay itself, and nothing else of a sync."""

from __future__ import annotations

import pytest

from edriver.worker.sync import relay
from tests.torch.virtual_links import VirtualLinks, relay_seconds

LENGTH = 400_000_000
BANDWIDTH = 1e9


def seconds_of(receivers: int, piece: int, latency: float = 0.0) -> float:
    return relay_seconds(LENGTH, receivers, piece, VirtualLinks(BANDWIDTH, latency))


@pytest.mark.parametrize("receivers", [2, 8, 63])
def test_a_chain_takes_at_most_a_tenth_longer_than_one_receiver(receivers: int) -> None:
    alone = seconds_of(1, relay.piece_bytes(LENGTH, 1))
    assert alone == pytest.approx(LENGTH / BANDWIDTH, rel=0.001)
    assert seconds_of(receivers, relay.piece_bytes(LENGTH, receivers)) <= 1.11 * alone


def test_pieces_of_the_usual_length_would_make_a_long_chain_slow() -> None:
    assert seconds_of(63, relay.PIECE_BYTES) > 1.6 * LENGTH / BANDWIDTH


def test_a_link_of_many_bytes_and_a_long_way_is_filled() -> None:
    """What may be under way without an acknowledgement is more than the link carries in the time of a round trip."""
    assert seconds_of(1, relay.PIECE_BYTES, latency=0.01) <= 1.1 * LENGTH / BANDWIDTH


@pytest.mark.parametrize(("length", "receivers"), [(0, 1), (1, 63), (10**6, 63), (10**12, 1023), (4 * 10**8, 8)])
def test_pieces_are_neither_tiny_nor_longer_than_usual(length: int, receivers: int) -> None:
    piece = relay.piece_bytes(length, receivers)
    assert 2**18 <= piece <= relay.PIECE_BYTES
    assert 8 <= relay.window_of(piece) <= 64
    assert piece * relay.window_of(piece) <= 2**25 + piece
