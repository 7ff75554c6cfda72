"""Permutation: an epoch's shuffle, computed place by place instead of drawn and kept.

A Feistel network permutes the integers of b bits, with any round function (M. Luby and C. Rackoff, "How to
construct pseudorandom permutations from pseudorandom functions", 1988; where b is odd one half has a bit more). The one
over the smallest such range that covers range(length) is walked until it leads back inside (the "cycle-walking cipher"
of J. Black and P. Rogaway, "Ciphers with arbitrary finite domains", 2002): a permutation of range(length), at fewer
than two walks a value on average.

It is for shuffling and keeps no secrets: the round function is a multiply-and-shift hash.

The seed and the epoch are its key. Each place is computed when it is needed, so 10^9 samples take no memory, and no
time before the first one.
"""

from __future__ import annotations

import hashlib

import torch

FEISTEL_ROUNDS = 6
"""Four suffice with perfect round functions; ours is weaker."""

SMALL_RANGE_ROUNDS = 12
"""With few bits a round mixes little: of 6 elements, 6 rounds bring neighbours to some pairs of places too often.

Both are even, so that the halves end as wide as they began."""

SMALL_RANGE_BITS = 16

_MULTIPLIERS = (0x9E3779B97F4A7C15 - 2**64, 0xBF58476D1CE4E5B9 - 2**64)
"""Odd, as int64: those of SplitMix64 (G. Steele, D. Lea, C. Flood, "Fast splittable pseudorandom number generators",
2014)."""


class Permutation:
    """A permutation of range(length), the same in every process; its state is a key for each round.

    Args:
        length: at least 1, at most 2**62.
        key: selects the permutation; those of two keys have nothing in common.
    """

    def __init__(self, length: int, *key: int) -> None:
        self._length = length
        bits = (length - 1).bit_length()
        self._widths = (bits // 2, bits - bits // 2)
        rounds = FEISTEL_ROUNDS if bits > SMALL_RANGE_BITS else SMALL_RANGE_ROUNDS
        digest = hashlib.blake2b(repr(key).encode(), digest_size=4 * rounds).digest()
        self._keys = [int.from_bytes(digest[4 * i : 4 * i + 4], "big") for i in range(rounds)]

    def order(self, positions: torch.Tensor) -> torch.Tensor:
        """The values at these positions.

        Args:
            positions: int64 of shape (n,), each in range(length).

        Returns:
            int64 of shape (n,), each in range(length): different ones for different positions.
        """
        values = self._walk(positions)
        outside = (values >= self._length).nonzero().view(-1)
        while len(outside):
            walked = self._walk(values[outside])
            values[outside] = walked
            outside = outside[walked >= self._length]
        return values

    def _walk(self, values: torch.Tensor) -> torch.Tensor:
        """One application of the network."""
        left_width, right_width = self._widths
        left, right = values >> right_width, values & ((1 << right_width) - 1)
        for key in self._keys:
            left, right = right, (_hashed(right, key) & ((1 << left_width) - 1)).bitwise_xor_(left)
            left_width, right_width = right_width, left_width
        return (left << right_width).bitwise_or_(right)


def _hashed(values: torch.Tensor, key: int) -> torch.Tensor:
    """31 bits that depend on all bits of the values and of the key, which are both below 2**32."""
    product = (values ^ key).mul_(_MULTIPLIERS[0])  # wraps around
    product ^= product >> 32
    return product.mul_(_MULTIPLIERS[1]).bitwise_right_shift_(33)
