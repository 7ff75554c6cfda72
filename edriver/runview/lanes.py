"""What stood in each slot, and from when on; pure."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Collection
from enum import IntEnum
from typing import Any, Final

from edriver.runview.changes import Changes
from edriver.v1 import status_pb2

MAX_LANES: Final = 10_000
"""Slots that are remembered; of more, those whose last worker has been gone for longest are forgotten."""

MAX_STATE_CHANGES: Final = 60_000
"""Changes of state that are remembered, of all slots together."""

MAX_CHANGES_PER_LANE, MIN_CHANGES_PER_LANE = 1000, 16
"""Of one slot; the second, however many slots there are."""


class SlotState(IntEnum):
    """What stands in a slot."""

    EMPTY = 0
    BOOTING = 1
    WAITING = 2
    TRAINING = 3
    LEAVING = 4
    LOST = 5


_SLOT_STATES: Final = {
    status_pb2.WORKER_STATE_BOOTING: SlotState.BOOTING,
    status_pb2.WORKER_STATE_WAITING: SlotState.WAITING,
    status_pb2.WORKER_STATE_TRAINING: SlotState.TRAINING,
    status_pb2.WORKER_STATE_DONE: SlotState.WAITING,
    status_pb2.WORKER_STATE_FINISHED: SlotState.LEAVING,
    status_pb2.WORKER_STATE_STOPPING: SlotState.LEAVING,
    status_pb2.WORKER_STATE_GONE: SlotState.EMPTY,
}


class SlotTimeline:
    """One slot.

    Attributes:
        steps: (time, state, worker_id): what holds from then on.
    """

    def __init__(self) -> None:
        self.steps: list[tuple[float, SlotState, int]] = []
        self._revisions: list[int] = []

    @property
    def state(self) -> SlotState:
        """What stands in it now."""
        return self.steps[-1][1] if self.steps else SlotState.EMPTY

    def holds(self, state: SlotState, worker_id: int) -> bool:
        """Whether this worker stands in it now, in this state."""
        if not self.steps:
            return False
        _, present, of = self.steps[-1]
        return present is state and of == worker_id

    def change(self, revision: int, time: float, state: SlotState, worker_id: int) -> bool:
        """From this time on it is so; returns whether that is news."""
        if self.holds(state, worker_id):
            return False
        self.steps.append((max(time, self.steps[-1][0]) if self.steps else time, state, worker_id))
        self._revisions.append(revision)
        return True

    def thin(self, revision: int, most: int) -> None:
        """Of more than so many steps, count the shortest of the older half to those before them."""
        if len(self.steps) <= most:
            return
        lengths = sorted((self.steps[place + 1][0] - self.steps[place][0], place) for place in range(1, most // 2))
        dropped = {place for _, place in lengths[: 1 + most // 8]}
        kept = [step for place, step in enumerate(self.steps) if place not in dropped]
        self.steps = [step for place, step in enumerate(kept) if not place or step[1:] != kept[place - 1][1:]]
        self._revisions = [revision] * len(self.steps)

    def since(self, revision: int) -> tuple[int, list[tuple[float, int, int]]]:
        """The steps that are new since then, and the number of the first of them: who has more forgets those."""
        first = bisect_right(self._revisions, revision)
        return first, [(time, int(state), worker_id) for time, state, worker_id in self.steps[first:]]


class Lanes:
    """All slots that ever had a worker."""

    def __init__(self) -> None:
        self.of_slots: dict[tuple[str, int], SlotTimeline] = {}
        self._changed: Changes[tuple[str, int]] = Changes()
        self._whole = 0

    def worker(self, revision: int, time: float, message: status_pb2.WorkerStatus, loss: bool, on: bool) -> None:
        """A worker stands so now.

        Args:
            revision: of the change.
            time: of the change.
            message: the worker.
            loss: whether an event reports that it was lost.
            on: whether a round is on: a member that stops in one is lost, after its end one may leave.
        """
        place = (message.host, message.slot)
        lane = self.of_slots.get(place)
        state = _SLOT_STATES.get(message.state, SlotState.EMPTY)
        if lane is None:
            if state is SlotState.EMPTY:
                return
            lane = self.of_slots[place] = SlotTimeline()
        before, of = (lane.steps[-1][1], lane.steps[-1][2]) if lane.steps else (SlotState.EMPTY, message.worker_id)
        if of > message.worker_id:
            return  # its slot has another worker already
        if state in (SlotState.LEAVING, SlotState.EMPTY) and of == message.worker_id:
            torn_out = on and before is SlotState.TRAINING and message.state != status_pb2.WORKER_STATE_FINISHED
            if loss or before is SlotState.LOST or torn_out:
                state = SlotState.LOST
        self._change(revision, time, place, state, message.worker_id)

    def assigned(self, revision: int, time: float, members: list[status_pb2.Member]) -> None:
        """These train from now on."""
        for member in members:
            place = (member.host, member.slot)
            lane = self.of_slots.get(place)
            if lane is None:
                self.of_slots[place] = SlotTimeline()
            elif lane.holds(SlotState.TRAINING, member.worker_id):
                continue  # as nearly all of them in nearly each round
            self._change(revision, time, place, SlotState.TRAINING, member.worker_id)

    def end(self, revision: int, time: float, left: Collection[int] = ()) -> None:
        """No other workers than these are left; what was lost stays so."""
        for place, lane in self.of_slots.items():
            if lane.state is not SlotState.LOST and lane.steps[-1][2] not in left:
                self._change(revision, time, place, SlotState.EMPTY, 0)

    def since(self, revision: int) -> dict[str, Any]:
        """What has changed since then, as it goes to the page."""
        whole = self._whole > revision
        changes = []
        for place in self._changed if whole else self._changed.since(revision):
            first, steps = self.of_slots[place].since(0 if whole else revision)
            changes.append({"host": place[0], "slot": place[1], "from": first, "steps": steps})
        return {"whole": whole, "lanes": changes} if changes or whole else {}

    def _change(self, revision: int, time: float, place: tuple[str, int], state: SlotState, worker_id: int) -> None:
        lane = self.of_slots[place]
        if not lane.change(revision, time if math.isfinite(time) else 0.0, state, worker_id):
            return
        lane.thin(
            revision, min(MAX_CHANGES_PER_LANE, max(MIN_CHANGES_PER_LANE, MAX_STATE_CHANGES // len(self.of_slots)))
        )
        self._changed.note(place, revision)
        if len(self.of_slots) > MAX_LANES:
            self._forget(revision)

    def _forget(self, revision: int) -> None:
        """Free a tenth of the room, so that this is seldom needed."""
        empty = [place for place in self._changed if self.of_slots[place].state in (SlotState.EMPTY, SlotState.LOST)]
        for place in empty[: MAX_LANES // 10]:
            del self.of_slots[place]
            self._changed.forget(place)
        if empty:
            self._whole = revision
