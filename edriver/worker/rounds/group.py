"""What a worker's rounds need of the process group."""

from __future__ import annotations

from typing import Protocol

from edriver.model.ids import RoundId
from edriver.model.plan import Assignment
from edriver.model.store_address import StoreAddress


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

    def part(self, assignment: Assignment, timeout: float) -> None:
        """Meet all members, and then join the group of those that train, unless this worker is a guest; raises as
        `build` does.
        """

    def sever(self, round_id: RoundId) -> int:
        """Break the round's connections, from any thread; returns their number."""

    def settle(self) -> None:
        """Wait until the device has finished the round's work; raises PeerLostError if the round is severed."""

    def teardown(self) -> None:
        """Forget the group."""
