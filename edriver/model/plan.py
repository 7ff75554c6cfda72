"""A round as it is planned: the candidates that it is made of, and the seat that each member gets. Pure data."""

from __future__ import annotations

from dataclasses import dataclass, field

from edriver.model.ids import RoundId, Version
from edriver.model.store_address import StoreAddress


@dataclass(frozen=True, slots=True)
class Candidate:
    """A waiting worker, as far as its rank depends on it.

    Attributes:
        worker_id: grows with every worker started, so it is also the order of age.
        host: its host's name.
        slot: its place on the host.
        version: what it offers.
        store: where its store listens.
        checkpoint: the steps of the newest checkpoint that it can load; 0: there is none, or it holds state.
        place: what goes before age where no worker is older than its round: its host's place in discovery's order, and
            its slot. Rank 0 then stays where its checkpoint is.
    """

    worker_id: int
    host: str
    slot: int
    version: Version
    store: StoreAddress
    checkpoint: int = 0
    place: tuple[int, int] = (0, 0)

    @property
    def age(self) -> tuple[tuple[int, int], int]:
        """The oldest is the smallest."""
        return self.place, self.worker_id


@dataclass(frozen=True, slots=True)
class Seat:
    """One member's place in a round; ranks with Horovod's meanings, and its host's place among the round's hosts."""

    worker_id: int
    host: str
    slot: int
    rank: int
    local_rank: int
    local_size: int
    cross_rank: int
    cross_size: int
    host_rank: int = 0
    host_count: int = 1


@dataclass(frozen=True, slots=True)
class RoundPlan:
    """A round as the driver assigns it. As an action: begin it; every member learns its place.

    Attributes:
        round_id: the round.
        ordinal: which `run` call of the script it belongs to.
        version: the highest version offered: what rank 0 holds.
        seats: the members in order of rank.
        store: where rank 0's store listens.
        receivers: the ranks that receive rank 0's state, ascending.
        checkpoint: the steps of the checkpoint that rank 0 loads first; 0: it loads none.
        failures: how many rounds have ended by a failure before it.
        steps_lost: steps beyond that version that its holders had made, and cannot go back to,
        torn: and why; empty: that has been reported already.
        fallback_size: with how many workers, fewer than these, the run goes on if the script fails with so many; 0:
            with none, or it has trained with so many before.
        guarded: whether its members name their connections to one another before any byte of them is read.
        workers: the members' worker_ids in order of rank.
    """

    round_id: RoundId
    ordinal: int
    version: Version
    seats: tuple[Seat, ...]
    store: StoreAddress
    receivers: tuple[int, ...]
    checkpoint: int = 0
    failures: int = 0
    steps_lost: int = 0
    torn: str = ""
    fallback_size: int = 0
    guarded: bool = False
    workers: tuple[int, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Find the members."""
        object.__setattr__(self, "workers", tuple(seat.worker_id for seat in self.seats))
