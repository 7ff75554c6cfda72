"""Requests for a checkpoint on disk: every order of what can happen to them, with the core's side and a worker's."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field

import pytest

from edriver.driver.core.save_requests import SaveRequests
from edriver.driver.run.driver_state import state_codec
from edriver.model.ids import RoundId
from edriver.worker import context

STEPS = ("ask", "boundary", "due", "written", "failed", "lost", "round", "driver")
"""An operator asks. Rank 0 passes a boundary, at which its schedule has a checkpoint due, or not. What it writes is on
disk, or could not be written. Rank 0 is lost, with what it had yet to say. A round ends, and rank 0 stays. Another
driver takes the run over.
"""

DEPTH = 5


@dataclass
class Story:
    """One order of steps.

    Attributes:
        asked_at: when each request came.
        on_disk: when each checkpoint that is on disk was begun.
        written: those of them that this rank 0 has written.
    """

    core: SaveRequests = field(default_factory=SaveRequests)
    worker: context.SaveRequests = field(default_factory=context.SaveRequests)
    round: int = 1
    now: int = 0
    asked_at: list[int] = field(default_factory=list)
    on_disk: list[int] = field(default_factory=list)
    written: list[int] = field(default_factory=list)
    orders: set[tuple[int, int]] = field(default_factory=set)
    writing: tuple[int, int] | None = None
    said: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.worker.report = self.said.append

    def take(self, step: str) -> None:
        self.now += 1
        match step:
            case "ask":
                self.core.add("", None, newer=True)
                self.asked_at.append(self.now)
            case "boundary" | "due":
                wanted = self.worker.wanted(RoundId(1, self.round))
                if self.writing is None and (wanted or step == "due"):
                    known = self.asked_at and any(began > self.asked_at[-1] for began in self.written)
                    assert step == "due" or not known, "one is begun that nobody waits for"
                    self.writing = self.worker.begin(), self.now
            case "written" if self.writing is not None:
                number, began = self.writing
                self.writing = None
                self.on_disk.append(began)
                self.written.append(began)
                self.worker.written(number)
                return  # the driver hears of it with the next step
            case "failed":
                self.writing = None
            case "lost":
                self.worker, self.writing = context.SaveRequests(), None
                self.said.clear()
                self.written.clear()
                self.worker.report = self.said.append
                self.round += 1
            case "round":
                self.round += 1
            case "driver":
                state = state_codec().save(requests=self.core)
                self.core = SaveRequests()
                state_codec().load(self.core, state, "requests")
        if self.core.ask(RoundId(1, self.round)):
            order = self.round, self.core.last
            assert order not in self.orders, "rank 0 of a round is asked again for the same"
            self.orders.add(order)
            self.worker.request(RoundId(1, self.round), self.core.last)
        for number in self.said:  # the driver may have ordered something before it hears of it
            self.core.note_written(number)
        self.said.clear()

    def check(self) -> None:
        for asked in self.asked_at[: self.core.met]:
            assert any(began > asked for began in self.on_disk), "no checkpoint is on disk that meets it"

    def calm_down(self) -> None:
        """Nothing goes wrong any more."""
        for step in ("round", "written", "boundary", "written", "boundary"):
            self.take(step)
            self.check()


@pytest.mark.parametrize("first", STEPS)
def test_a_request_is_met_whatever_happens_and_not_before_a_checkpoint_is_on_disk(first: str) -> None:
    for steps in itertools.product(STEPS, repeat=DEPTH - 1):
        if "ask" not in (first, *steps):
            continue
        story = Story()
        for step in (first, *steps):
            story.take(step)
            story.check()
        story.calm_down()
        assert not story.core.open, (first, *steps)
