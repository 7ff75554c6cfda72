"""Round ids, versions, addresses of stores and times, to and from their messages.

In the code a point in time is seconds since the epoch, a span is seconds; both are floats. Both ways keep microseconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp

from edriver.model.ids import RoundId, Version
from edriver.model.shards import HeldShards, Sharding
from edriver.model.store_address import StoreAddress
from edriver.v1 import notification_pb2, rounds_pb2

_MICROSECONDS: Final = 1_000_000
NANOSECONDS: Final = 1_000_000_000
"""Of a second."""

LAST_SECOND: Final = 253_402_300_799
"""Of the year 9999: the last that a Timestamp has; a Duration has more."""


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


def sharding_message(sharding: Sharding) -> rounds_pb2.Sharding:
    """A sharding as it goes over the wire."""
    return rounds_pb2.Sharding(round_id=round_id_message(sharding.round_id), size=sharding.size)


def sharding_of(message: rounds_pb2.Sharding) -> Sharding:
    """The sharding that a message names."""
    return Sharding(round_id_of(message.round_id), message.size)


def held_shards_message(held: HeldShards) -> rounds_pb2.HeldShards:
    """A worker's shards as they go over the wire."""
    return rounds_pb2.HeldShards(sharding=sharding_message(held.sharding), positions=held.positions)


def held_shards_of(message: rounds_pb2.HeldShards) -> HeldShards:
    """The shards that a message names."""
    return HeldShards(sharding_of(message.sharding), tuple(message.positions))


def store_address_message(address: StoreAddress) -> rounds_pb2.StoreAddress:
    """A store's address as it goes over the wire."""
    return rounds_pb2.StoreAddress(host=address.host, port=address.port)


def store_address_of(message: rounds_pb2.StoreAddress) -> StoreAddress:
    """The address that a message names."""
    return StoreAddress(message.host, message.port)


def timestamp(seconds: float) -> Timestamp:
    """A point in time, from seconds since the epoch.

    Raises:
        OverflowError, ValueError: the seconds are infinite, or not a number.
    """
    message = Timestamp()
    message.FromMicroseconds(round(seconds * _MICROSECONDS))
    return message


def epoch_seconds(message: Timestamp) -> float:
    """Seconds since the epoch; 0 for a Timestamp that is absent.

    Raises:
        ValueError: it is out of range.
    """
    seconds, nanos = message.seconds, message.nanos
    if 0 <= seconds <= LAST_SECOND and 0 <= nanos < NANOSECONDS:  # twice as fast, for thousands at once
        return (seconds * NANOSECONDS + nanos) / NANOSECONDS
    return message.ToNanoseconds() / NANOSECONDS


def duration(seconds: float) -> Duration:
    """A span of time, from seconds.

    Raises:
        OverflowError, ValueError: the seconds are infinite, or not a number.
    """
    message = Duration()
    message.FromMicroseconds(round(seconds * _MICROSECONDS))
    return message


def span_seconds(message: Duration) -> float:
    """Seconds; 0 for a Duration that is absent."""
    return (message.seconds * NANOSECONDS + message.nanos) / NANOSECONDS


def round_times_of(message: notification_pb2.RoundTimes) -> dict[str, float]:
    """The content of a message, by the names of its fields: seconds since the epoch, seconds, or bytes."""
    times: dict[str, float] = {}
    for field, value in message.ListFields():
        match value:
            case Timestamp():
                times[field.name] = epoch_seconds(value)
            case Duration():
                times[field.name] = span_seconds(value)
            case _:
                times[field.name] = value
    return times


def round_times_message(times: Mapping[str, float]) -> notification_pb2.RoundTimes:
    """The same, as it goes over the wire."""
    message = notification_pb2.RoundTimes()
    for name, value in times.items():
        kind = message.DESCRIPTOR.fields_by_name[name].message_type
        if kind is None:
            setattr(message, name, value)
        else:
            getattr(message, name).CopyFrom(timestamp(value) if kind is Timestamp.DESCRIPTOR else duration(value))
    return message
