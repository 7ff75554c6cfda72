"""What the driver draws at random, so that the same can be drawn again when its events are replayed.

Jitter and the secrets of rounds and agents come from a key in the journal's head and a counter, so none of them need be
written down.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from typing import Final

KEY_BYTES: Final = 32
"""Bytes of the key of a run's draws."""

_NUMBER_BYTES: Final = 6  # a float holds all of them


def new_key() -> bytes:
    """A key for a run's draws: with it, the secrets of all rounds can be computed."""
    return secrets.token_bytes(KEY_BYTES)


class KeyedRandom:
    """The draws of one run: HMAC-SHA-256 of a counter, which is a pseudorandom function (RFC 2104; NIST SP 800-108,
    counter mode).

    Args:
        key: see `new_key`. The same key yields the same draws, in the same order.

    Attributes:
        count: the number of draws so far.
    """

    def __init__(self, key: bytes) -> None:
        self._key = key
        self.count = 0

    def random(self) -> float:
        """A number from 0 up to 1."""
        return int.from_bytes(self.secret()[:_NUMBER_BYTES]) / 256**_NUMBER_BYTES

    def secret(self) -> bytes:
        """32 bytes that cannot be guessed without the key."""
        self.count += 1
        return hmac.digest(self._key, self.count.to_bytes(8), hashlib.sha256)
