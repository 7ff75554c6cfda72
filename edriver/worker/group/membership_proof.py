"""How the two ends of a connection show each other that they are members of the round. Pure.

Gloo gives a connection to the process that connects first and sends the number of a pair: it asks for nothing else.
Each member of a round has a secret that came with its place over the authenticated control channel. Over each pair of
each group, both ends send a keyed hash (HMAC-SHA256, RFC 2104) of who speaks to whom, in which round and which group.

The secret is drawn for the round, and a round has no two groups of one name (`proven_pairs.py` sees to that), so
that each hash is sent once: no challenge needs to be exchanged before. What one rank has sent to another in one group
proves nothing anywhere else.
"""

from __future__ import annotations

import hmac
import struct
from dataclasses import dataclass, field
from typing import Final

from edriver.model.ids import RoundId

SECRET_BYTES: Final = 32
PROOF_BYTES: Final = 32
"""Fixed, so that received data never determines its length."""

_DOMAIN_TAG: Final = b"edriver membership of a pair, 1\0"
_CLAIM_FORMAT: Final = struct.Struct("!QQQQ")


@dataclass(frozen=True, slots=True)
class MembershipProof:
    """What members of a round prove to one another in one group.

    Attributes:
        secret: the round's.
        round_id: the round.
        group: the group's name in the round.
    """

    secret: bytes = field(repr=False)
    round_id: RoundId
    group: str

    def __post_init__(self) -> None:
        """Refuse to prove anything with less than there should be.

        Raises:
            ValueError: the secret has not the length that it should have.
        """
        if len(self.secret) != SECRET_BYTES:
            raise ValueError(f"a proof of membership needs a secret of {SECRET_BYTES} bytes, not {len(self.secret)}")

    def proof_of(self, speaker: int, listener: int) -> bytes:
        """The proof that a rank of the group sends to another one."""
        place = _CLAIM_FORMAT.pack(self.round_id.incarnation, self.round_id.n, speaker, listener)
        return hmac.digest(self.secret, _DOMAIN_TAG + place + self.group.encode(), "sha256")

    def holds(self, received: bytes, speaker: int, listener: int) -> bool:
        """Whether what the listener has received can only be the speaker's; takes the same time for every answer."""
        return hmac.compare_digest(received, self.proof_of(speaker, listener))
