"""A round's message for a host, taken apart into one notice per member."""

from __future__ import annotations

from collections.abc import Iterator

from edriver.v1 import agent_pb2, notification_pb2, rounds_pb2


def place_notices(
    message: agent_pb2.AssignRound,
) -> Iterator[tuple[rounds_pb2.Seat, notification_pb2.Notice]]:
    """Each member on this host, with the notice that tells it its place."""
    for seat in message.seats:
        place = notification_pb2.AssignPlace(round=message.round, seat=seat)
        yield seat, notification_pb2.Notice(assign_place=place)
