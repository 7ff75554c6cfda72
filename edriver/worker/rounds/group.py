"""What a worker's rounds need of the process group."""

from __future__ import annotations

from typing import Protocol

from edriver.model.ids import RoundId
from edriver.model.plan import Assignment
from edriver.model.store_address import StoreAddress
from edriver.worker.backend.gloo.cutting import Cut


class Group(Protocol):
    """The process group of one round after the other: see group.RoundGroup."""

    @property
    def store(self) -> StoreAddress:
        """Where this worker's store listens."""

    @property
    def gloo_only(self) -> bool:
        """Whether no collective can wait for a GPU."""

    def build(self, assignment: Assignment, timeout: float) -> None:
        """Join the round's group; raises PeerLostError if the others do not come."""

    def sever(self, round_id: RoundId, spare_replica: bool = False) -> Cut:
        """Break the round's connections between messages, from any thread: to be called again while any is left.

        Args:
            round_id: the round.
            spare_replica: whether to leave those within this worker's replica alone, as long as all are there.
        """

    def settle(self) -> None:
        """Wait until the device has finished the round's work; raises PeerLostError if the round is severed."""

    def teardown(self) -> None:
        """Forget the group."""
