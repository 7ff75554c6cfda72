"""When an error of the script's is taken for one that every further round would meet."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from edriver.driver.core.failures.consistency import ErrorWatch, state_lost
from edriver.driver.core.round import Round
from edriver.driver.core.selection import plan_round
from edriver.model.cause import Cause, CauseKind, RaisedByAll, RepeatedError
from edriver.model.ids import NO_VERSION, RoundId, Version
from edriver.model.plan import Candidate
from edriver.model.script_error import ScriptError
from edriver.model.store_address import StoreAddress

SAVE = ScriptError("OSError", "train.py", 88, "save")
LABEL = ScriptError("ValueError", "train.py", 17, "train")
AT_5 = Version(RoundId(1, 1), 5)


class Run:
    """A run's rounds, one after the other."""

    def __init__(self) -> None:
        self.watch = ErrorWatch()
        self._rounds = 0
        self._version = NO_VERSION

    def round(self, raised: Mapping[str, ScriptError], offered: Version, seats: str = "a:0 b:0") -> Cause | None:
        """A round with these seats ends, with these errors in some of them; returns why there is to be no other."""
        self._rounds += 1
        places = [seat.split(":") for seat in seats.split()]
        candidates = [
            Candidate(10 * self._rounds + n, host, int(slot), self._version, StoreAddress("", 0))
            for n, (host, slot) in enumerate(places)
        ]
        plan = plan_round(RoundId(1, self._rounds), 1, candidates, first=True)
        ended = Round(plan, set(), newcomers_start_at=0.0)
        ended.errors = {s.worker_id: raised[seat] for s in plan.seats if (seat := f"{s.host}:{s.slot}") in raised}
        self._version = offered
        return self.watch.repeated_failure(ended, offered)


def test_one_error_on_two_hosts_in_two_rounds_is_met_again() -> None:
    run = Run()
    assert run.round({"a:0": SAVE}, AT_5) is None
    again = RepeatedError(SAVE, 2, (("a", 0), ("b", 0)))
    assert run.round({"b:0": SAVE}, AT_5) == Cause(CauseKind.SAME_ERROR, detail=again)


def test_one_error_in_two_slots_of_the_only_host_is_met_again() -> None:
    run = Run()
    assert run.round({"a:0": SAVE}, AT_5, "a:0 a:1") is None
    assert run.round({"a:1": SAVE}, AT_5, "a:0 a:1")


@pytest.mark.parametrize(
    ("slots", "seats"),
    [
        pytest.param(["a:0", "a:0", "a:0"], "a:0 a:1", id="in-one-slot"),
        pytest.param(["a:0", "a:1", "a:0"], "a:0 a:1 b:0", id="on-one-host-of-two"),
    ],
)
def test_what_may_be_one_places_fault_is_tried_once_more(slots: list[str], seats: str) -> None:
    run = Run()
    assert [bool(run.round({slot: SAVE}, AT_5, seats)) for slot in slots] == [False, False, True]


def test_all_at_once_and_again_counts_as_two_rounds() -> None:
    run = Run()
    assert run.round({"a:0": SAVE, "b:0": SAVE}, AT_5) is None
    assert run.round({"a:0": SAVE, "b:0": SAVE}, AT_5)


def test_an_error_with_a_step_in_between_is_not_one_bug() -> None:
    run = Run()
    for n in range(1, 20):
        assert run.round({"a:0": SAVE, "b:0": SAVE}, Version(RoundId(1, n), 1)) is None


def test_an_error_is_forgotten_after_a_round_that_ended_well() -> None:
    run = Run()
    assert run.round({"a:0": SAVE}, AT_5) is None
    assert run.round({}, Version(RoundId(1, 2), 3)) is None
    assert run.round({"b:0": SAVE}, Version(RoundId(1, 2), 3)) is None


def test_a_round_that_gained_nothing_is_none() -> None:
    run = Run()
    assert run.round({"a:0": SAVE}, AT_5) is None
    assert run.round({}, AT_5) is None  # a kill, say
    assert run.round({"b:0": SAVE}, AT_5)


def test_errors_that_differ_are_not_one() -> None:
    run = Run()
    assert run.round({"a:0": SAVE}, AT_5) is None
    assert run.round({"b:0": LABEL}, AT_5) is None
    assert run.round({"a:0": SAVE}, AT_5) is None


def test_another_error_beside_it_does_not_hide_one() -> None:
    run = Run()
    assert run.round({"a:0": LABEL, "b:0": SAVE}, AT_5) is None
    again = RepeatedError(SAVE, 2, (("a", 0), ("b", 0)))
    assert run.round({"a:0": SAVE}, AT_5) == Cause(CauseKind.SAME_ERROR, detail=again)


def test_a_round_is_judged_once() -> None:
    watch = ErrorWatch()
    ended = Round(
        plan_round(RoundId(1, 1), 1, [Candidate(1, "a", 0, NO_VERSION, StoreAddress("", 0))], first=True),
        set(),
        newcomers_start_at=0,
    )
    ended.errors = {1: SAVE}
    assert [watch.repeated_failure(ended, NO_VERSION) for _ in range(9)] == [None] * 9


def test_an_error_that_arrives_after_its_round_was_judged_counts() -> None:
    run = Run()
    members = [Candidate(n, host, 0, NO_VERSION, StoreAddress("", 0)) for n, host in ((1, "a"), (2, "b"))]
    silent = Round(plan_round(RoundId(1, 1), 1, members, first=True), set(), newcomers_start_at=0.0)
    assert run.watch.repeated_failure(silent, AT_5) is None  # both hosts are out of reach, and both return
    silent.errors = {2: SAVE}
    assert run.watch.repeated_failure(silent, AT_5) is None
    run._rounds = 1
    again = RepeatedError(SAVE, 2, (("a", 0), ("b", 0)))
    assert run.round({"a:0": SAVE}, AT_5) == Cause(CauseKind.SAME_ERROR, detail=again)


@pytest.mark.parametrize("late", [Version(RoundId(1, 2), 1), AT_5], ids=["with-a-step", "without"])
def test_a_late_survivor_may_bring_a_step(late: Version) -> None:
    run = Run()
    assert run.round({"a:0": SAVE}, AT_5) is None
    assert run.round({"a:0": SAVE}, NO_VERSION) is None  # its only other member is late
    run._version = late
    assert bool(run.round({"b:0": SAVE}, late)) == (late == AT_5)


def test_the_state_is_lost_because_of_one_error_of_all_members() -> None:
    candidates = [Candidate(n, "a", n, NO_VERSION, StoreAddress("", 0)) for n in (1, 2)]
    last = Round(plan_round(RoundId(1, 1), 1, candidates, first=True), set(), newcomers_start_at=0)
    last.errors = {1: LABEL}
    assert state_lost(last) == Cause(CauseKind.STATE_LOST)
    last.errors[2] = SAVE
    assert state_lost(last) == Cause(CauseKind.STATE_LOST)
    last.errors[2] = LABEL
    assert state_lost(last) == Cause(CauseKind.STATE_LOST, detail=RaisedByAll(LABEL, 2))
