"""Stalls at one place: when they are taken for work that is not announced."""

from __future__ import annotations

import math

import pytest

from edriver.driver.core.failures.long_work import MAX_PLACES, LongWork, StallVerdict
from edriver.driver.core.round import Round
from edriver.model import events
from edriver.model.ids import NO_VERSION, RoundId
from edriver.model.plan import RoundPlan
from edriver.model.script_error import ScriptError, script_place
from edriver.model.store_address import StoreAddress

STACKS = """thread MainThread:
  File "/home/me/train.py", line 90, in <module>
    train(state)
  File "/usr/lib/python3.12/site-packages/edriver/worker/rounds/run.py", line 135, in wrapper
    return rounds.run(function, state, args, kwargs)
  File "/home/me/train.py", line {line}, in {function}
    model(x)
  File "/usr/lib/python3.12/site-packages/torch/nn/modules/module.py", line 1700, in _call_impl
    return forward_call(*args, **kwargs)

thread loader:
  File "/home/me/data.py", line 7, in fetch
    sleep(1)
"""


def a_round(number: int, steps: bool = False) -> Round:
    plan = RoundPlan(RoundId(1, number), 1, NO_VERSION, (), StoreAddress("a", 1), ())
    return Round(plan, {1, 2}, 0.0, under_way={1} if steps else set())


def judged(
    work: LongWork, current: Round, function: str = "evaluate", line: int = 30, seconds: float = 600.0
) -> StallVerdict:
    stacks = STACKS.format(line=line, function=function)
    return work.judge(events.WorkerStalled(1, current.plan.round_id, "step", seconds, stacks), current).verdict


def test_a_place_is_where_the_first_thread_stands_in_what_is_the_users_own() -> None:
    assert script_place(STACKS.format(line=30, function="evaluate")) == ScriptError(
        "", "/home/me/train.py", 30, "evaluate"
    )
    assert script_place("the stacks are in its output") is None


def test_stalls_whose_place_is_not_known_are_judged_one_by_one() -> None:
    work = LongWork(1800.0)
    for number in range(9):
        current = a_round(number)
        event = events.WorkerStalled(1, current.plan.round_id, "step", 600.0, "in its output")
        assert work.judge(event, current) == (StallVerdict.STALLED, None)


@pytest.mark.parametrize(("limit", "reports"), [(1800.0, 2), (600.0, 2), (6000.0, 9)])
def test_from_the_second_stall_in_a_function_on_it_has_the_limit_of_an_evaluation(limit: float, reports: int) -> None:
    work = LongWork(limit)
    assert judged(work, a_round(1, steps=True)) is StallVerdict.STALLED
    assert judged(work, a_round(2), line=31) is StallVerdict.FIRST_OF_MANY
    verdicts = [judged(work, a_round(3, steps=True), line=32) for _ in range(reports + 1)]
    assert verdicts == [StallVerdict.PATIENCE] * reports + [StallVerdict.STALLED]
    assert judged(work, a_round(4)) is StallVerdict.PATIENCE  # a member of another round begins anew


def test_without_a_limit_it_has_none() -> None:
    work = LongWork(math.inf)
    found = [judged(work, a_round(number)) for number in range(1, 100)]
    assert found == [StallVerdict.STALLED, StallVerdict.FIRST_OF_MANY] + [StallVerdict.PATIENCE] * 97


def test_rounds_without_a_step_end_the_run_once_the_longer_limit_has_passed() -> None:
    work = LongWork(1800.0)
    judged(work, a_round(1, steps=True))
    judged(work, a_round(2))
    assert [judged(work, a_round(3)) for _ in range(3)] == [
        StallVerdict.PATIENCE,
        StallVerdict.PATIENCE,
        StallVerdict.HOPELESS,
    ]


def test_places_are_forgotten_when_there_are_many() -> None:
    work = LongWork(1800.0)
    for number in range(MAX_PLACES + 1):
        judged(work, a_round(number), function=f"f{number}")
    assert judged(work, a_round(500), function="f0") is StallVerdict.STALLED
    assert judged(work, a_round(501), function="f99") is StallVerdict.FIRST_OF_MANY
