"""Round ids, versions and addresses of stores, to and from their messages."""

from __future__ import annotations

from edriver.common.ids import RoundId, Version
from edriver.common.store_address import StoreAddress
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


def store_address_message(address: StoreAddress) -> rounds_pb2.StoreAddress:
    """A store's address as it goes over the wire."""
    return rounds_pb2.StoreAddress(host=address.host, port=address.port)


def store_address_of(message: rounds_pb2.StoreAddress) -> StoreAddress:
    """The address that a message names."""
    return StoreAddress(message.host, message.port)
