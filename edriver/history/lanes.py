"""What stood in each slot, and from when on; pure."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Collection
from enum import IntEnum
from typing import Any, Final

from edriver.history.changes import Changes
from edriver.v1 import status_pb2

MOST_LANES: Final = 10_000
"""Slots that are remembered; of more, those whose last worker has been gone for longest are forgotten."""

MOST_STEPS: Final = 60_000
"""Changes of state that are remembered, of all slots together."""

MOST_OF_A_LANE, LEAST_OF_A_LANE = 1000, 16
"""Of one slot; the second, however many slots there are."""


class SlotState(IntEnum):
    """What stands in a slot."""

    EMPTY = 0
    BOOTING = 1
    WAITING = 2
    TRAINING = 3
    LEAVING = 4
    LOST = 5


_STATES: Final = {
    status_pb2.WORKER_STATE_BOOTING: SlotState.BOOTING,
    status_pb2.WORKER_STATE_WAITING: SlotState.WAITING,
    status_pb2.WORKER_STATE_TRAINING: SlotState.TRAINING,
    status_pb2.WORKER_STATE_DONE: SlotState.WAITING,
    status_pb2.WORKER_STATE_FINISHED: SlotState.LEAVING,
    status_pb2.WORKER_STATE_STOPPING: SlotState.LEAVING,
    status_pb2.WORKER_STATE_GONE: SlotState.EMPTY,
}


class Lane:
    """One slot.

    Attributes:
        steps: (time, state, worker_id): what holds from then on.
    """

    def __init__(self) -> None:
        self.steps: list[tuple[float, SlotState, int]] = []
        self._versions: list[int] = []

    @property
    def state(self) -> SlotState:
        """What stands in it now."""
        return self.steps[-1][1] if self.steps else SlotState.EMPTY

    def change(self, version: int, time: float, state: SlotState, worker_id: int) -> bool:
        """From this time on it is so; returns whether that is news."""
        if self.steps and self.steps[-1][1:] == (state, worker_id):
            return False
        self.steps.append((max(time, self.steps[-1][0]) if self.steps else time, state, worker_id))
        self._versions.append(version)
        return True

    def thin(self, version: int, most: int) -> None:
        """Of more than so many steps, count the shortest of the older half to those before them."""
        if len(self.steps) <= most:
            return
        lengths = sorted((self.steps[place + 1][0] - self.steps[place][0], place) for place in range(1, most // 2))
        dropped = {place for _, place in lengths[: 1 + most // 8]}
        kept = [step for place, step in enumerate(self.steps) if place not in dropped]
        self.steps = [step for place, step in enumerate(kept) if not place or step[1:] != kept[place - 1][1:]]
        self._versions = [version] * len(self.steps)

    def since(self, version: int) -> tuple[int, list[tuple[float, int, int]]]:
        """The steps that are new since then, and the number of the first of them: who has more forgets those."""
        first = bisect_right(self._versions, version)
        return first, [(time, int(state), worker_id) for time, state, worker_id in self.steps[first:]]


class Lanes:
    """All slots that ever had a worker."""

    def __init__(self) -> None:
        self.of_slots: dict[tuple[str, int], Lane] = {}
        self._changed: Changes[tuple[str, int]] = Changes()
        self._whole = 0

    def worker(self, version: int, time: float, told: status_pb2.WorkerStatus, loss: bool, on: bool) -> None:
        """A worker stands so now.

        Args:
            version: of the change.
            time: of the change.
            told: the worker.
            loss: whether somebody says that it was lost.
            on: whether a round is on: a member that stops in one is lost, after its end one may leave.
        """
        place = (told.host, told.slot)
        lane = self.of_slots.get(place)
        state = _STATES.get(told.state, SlotState.EMPTY)
        if lane is None:
            if state is SlotState.EMPTY:
                return
            lane = self.of_slots[place] = Lane()
        before, of = (lane.steps[-1][1], lane.steps[-1][2]) if lane.steps else (SlotState.EMPTY, told.worker_id)
        if of > told.worker_id:
            return  # its slot has another worker already
        if state in (SlotState.LEAVING, SlotState.EMPTY) and of == told.worker_id:
            torn_out = on and before is SlotState.TRAINING and told.state != status_pb2.WORKER_STATE_FINISHED
            if loss or before is SlotState.LOST or torn_out:
                state = SlotState.LOST
        self._change(version, time, place, state, told.worker_id)

    def assigned(self, version: int, time: float, members: list[status_pb2.Member]) -> None:
        """These train from now on."""
        for member in members:
            place = (member.host, member.slot)
            self.of_slots.setdefault(place, Lane())
            self._change(version, time, place, SlotState.TRAINING, member.worker_id)

    def end(self, version: int, time: float, left: Collection[int] = ()) -> None:
        """No other workers than these are left; what was lost stays so."""
        for place, lane in self.of_slots.items():
            if lane.state is not SlotState.LOST and lane.steps[-1][2] not in left:
                self._change(version, time, place, SlotState.EMPTY, 0)

    def since(self, version: int) -> dict[str, Any]:
        """What has changed since then, as it goes to the page."""
        whole = self._whole > version
        told = []
        for place in self._changed if whole else self._changed.since(version):
            first, steps = self.of_slots[place].since(0 if whole else version)
            told.append({"host": place[0], "slot": place[1], "from": first, "steps": steps})
        return {"whole": whole, "lanes": told} if told or whole else {}

    def _change(self, version: int, time: float, place: tuple[str, int], state: SlotState, worker_id: int) -> None:
        lane = self.of_slots[place]
        if not lane.change(version, time if math.isfinite(time) else 0.0, state, worker_id):
            return
        lane.thin(version, min(MOST_OF_A_LANE, max(LEAST_OF_A_LANE, MOST_STEPS // len(self.of_slots))))
        self._changed.note(place, version)
        if len(self.of_slots) > MOST_LANES:
            self._forget(version)

    def _forget(self, version: int) -> None:
        """Make room, a tenth of it, so that it is seldom done."""
        empty = [place for place in self._changed if self.of_slots[place].state in (SlotState.EMPTY, SlotState.LOST)]
        for place in empty[: MOST_LANES // 10]:
            del self.of_slots[place]
            self._changed.forget(place)
        if empty:
            self._whole = version
