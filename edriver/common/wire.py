"""Round ids, versions and places, to and from their messages."""

from __future__ import annotations

from edriver.common.ids import RoundId, Version
from edriver.v1 import rounds_pb2


def round_id_message(round_id: RoundId) -> rounds_pb2.RoundId:
    """A round id as it goes over the wire."""
    return rounds_pb2.RoundId(incarnation=round_id.incarnation, n=round_id.n)


def round_id_of(message: rounds_pb2.RoundId) -> RoundId:
    """The round id that a message names."""
    return RoundId(message.incarnation, message.n)


def version_message(version: Version) -> rounds_pb2.Version:
    """A version as it goes over the wire."""
    return rounds_pb2.Version(round_id=round_id_message(version.round_id), boundaries=version.boundaries)


def version_of(message: rounds_pb2.Version) -> Version:
    """The version that a message names."""
    return Version(round_id_of(message.round_id), message.boundaries)
