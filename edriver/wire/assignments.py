"""A round's plan on its way: a message for each host, a notice for each worker there, and the worker's place again."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from edriver.model.plan import Assignment, RoundPlan
from edriver.v1 import agent_pb2, notification_pb2, rounds_pb2
from edriver.wire.checkpoints import memory_checkpoint_message, memory_checkpoint_of
from edriver.wire.conversion import (
    round_id_message,
    round_id_of,
    sharding_message,
    sharding_of,
    store_address_message,
    store_address_of,
    version_message,
    version_of,
)

RANK_FIELDS: Final = tuple(field.name for field in rounds_pb2.Seat.DESCRIPTOR.fields if field.name != "worker_id")
"""A member's ranks and sizes, by the names that they have in Seat and Assignment as well."""


def assignments_by_host(plan: RoundPlan, secret: bytes) -> Iterator[tuple[str, agent_pb2.AssignRound]]:
    """One message per host with that host's members.

    Args:
        plan: the round.
        secret: what members of this round prove their membership with to one another.
    """
    seats: dict[str, list[rounds_pb2.Seat]] = {}
    for seat in plan.seats:
        seats.setdefault(seat.host, []).append(
            rounds_pb2.Seat(worker_id=seat.worker_id, **{name: getattr(seat, name) for name in RANK_FIELDS})
        )
    shared = rounds_pb2.RoundAssignment(
        round_id=round_id_message(plan.round_id),
        size=len(plan.seats),
        store=store_address_message(plan.store),
        source=plan.sources[0],
        sources=plan.sources,
        receivers=bits_of(plan.receivers),
        replica_size=plan.replica_size,
        version=version_message(plan.version),
        first_sync=plan.first_sync,
        gradient_norm=plan.gradient_norm,
        secret=secret,
        failures=plan.failures,
        guarded=plan.guarded,
        checkpoint_steps=plan.checkpoint,
        fallback_size=plan.fallback_size,
        memory_checkpoint=memory_checkpoint_message(plan.memory_checkpoint),
        sharding=None if plan.sharding is None else sharding_message(plan.sharding),
    )
    for host, on_host in seats.items():
        yield (host, agent_pb2.AssignRound(round=shared, seats=on_host))


def bits_of(ranks: Iterable[int]) -> bytes:
    """A set of ranks as RoundAssignment.receivers has it."""
    bits = bytearray()
    for rank in ranks:
        place = rank >> 3
        if place >= len(bits):
            bits.extend(bytes(place + 1 - len(bits)))
        bits[place] |= 1 << (rank & 7)
    return bytes(bits)


def ranks_in(bits: bytes) -> tuple[int, ...]:
    """The ranks in a set, ascending."""
    return tuple(8 * place + bit for place, byte in enumerate(bits) if byte for bit in range(8) if byte >> bit & 1)


def assignment_notices(
    message: agent_pb2.AssignRound,
) -> Iterator[tuple[rounds_pb2.Seat, notification_pb2.Notice]]:
    """Each member on this host, with the notice that assigns its place."""
    for seat in message.seats:
        assignment = notification_pb2.Assignment(round=message.round, seat=seat)
        yield seat, notification_pb2.Notice(assignment=assignment)


def assignment_of(message: notification_pb2.Assignment) -> Assignment:
    """The place in a round that a notice gives a worker."""
    shared, seat = message.round, message.seat
    one_replica = shared.HasField("sharding")
    return Assignment(
        round_id=round_id_of(shared.round_id),
        size=shared.size,
        store=store_address_of(shared.store),
        sources=tuple(shared.sources) or (shared.source,),
        receivers=ranks_in(shared.receivers),
        replica_size=shared.size if one_replica else shared.replica_size or 1,
        version=version_of(shared.version),
        first_sync=shared.first_sync,
        gradient_norm=shared.gradient_norm if shared.HasField("gradient_norm") else None,
        secret=shared.secret,
        failures=shared.failures,
        guarded=shared.guarded,
        fallback_size=shared.fallback_size,
        checkpoint=shared.checkpoint_steps,
        memory_checkpoint=memory_checkpoint_of(shared),
        sharding=sharding_of(shared.sharding) if one_replica else None,
        **{name: getattr(seat, name) for name in RANK_FIELDS},
    )
