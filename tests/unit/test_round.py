"""What the driver remembers of a round, whose size does not depend on how long the round lasts."""

from __future__ import annotations

from edriver.driver.core.round import MAX_COMPARED_BOUNDARIES, MAX_LEFT_AT, Round
from edriver.driver.core.selection import plan_round
from edriver.model import events
from edriver.model.cause import Digests
from edriver.model.ids import NO_VERSION, RoundId
from edriver.model.plan import Candidate
from edriver.model.script_error import ScriptError
from edriver.model.store_address import StoreAddress

FIRST = RoundId(1, 1)


def round_of(size: int) -> Round:
    members = [Candidate(n, "a", n - 1, NO_VERSION, StoreAddress("", 0)) for n in range(1, size + 1)]
    plan = plan_round(FIRST, 1, members, first=True)
    return Round(plan, set(plan.workers), newcomers_start_at=0.0)


def test_of_later_digests_those_of_the_latest_boundaries_are_compared() -> None:
    current = round_of(2)
    boundaries = [2**n for n in range(1, 40)]
    for boundary in boundaries:
        current.note(events.StateDigest(1, FIRST, boundary, f"step={boundary}"), now=0.0)
    assert sorted(current.later_digests) == boundaries[-MAX_COMPARED_BOUNDARIES:]
    assert current.unequal is None
    current.note(events.StateDigest(2, FIRST, boundaries[-2], "step=7"), now=0.0)
    assert current.unequal is not None
    assert isinstance(current.unequal.detail, Digests)
    assert current.unequal.detail.version == (FIRST, boundaries[-2])


def test_some_of_the_places_at_which_members_left_it_are_known() -> None:
    current = round_of(20)
    for worker_id in range(1, 21):
        current.note_left(worker_id, ScriptError("", "train.py", (worker_id + 1) // 2, "train"))
    assert [(name.worker_id, place.line) for name, place in current.places_left] == [
        (2 * line - 1, line) for line in range(1, MAX_LEFT_AT + 1)
    ]
