"""How many standbys each host is to have."""

from __future__ import annotations

import pytest

from edriver.driver.core.standby_hosts import standbys_of
from edriver.model import events
from edriver.model.ids import RoundId, Version
from edriver.model.mode import Mode
from tests.unit.event_story import Story


def trains_on_two_hosts(mode: Mode = Mode.ELASTIC) -> Story:
    """Workers 1 and 2 on host a, 3 on host b, in the first round; host c is spare."""
    story = Story(np=3, mode=mode)
    story.hosts(a=2, b=2, c=4)
    for number, name in enumerate("abc", start=1):
        story.take(events.AgentConnected(name, number))
    for worker in (1, 2, 3):
        story.waits(worker)
    return story


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [(None, {"a": 1, "b": 1, "c": 1}), (0, {"a": 0, "b": 0, "c": 0}), (3, {"a": 2, "b": 2, "c": 3})],
)
def test_each_host_has_one_or_as_many_as_asked_for_and_no_more_than_slots(
    wanted: int | None, expected: dict[str, int]
) -> None:
    assert standbys_of(trains_on_two_hosts().membership, wanted) == expected


def test_nothing_changes_while_no_round_runs() -> None:
    story = Story(np=3)
    story.hosts(a=2, b=2)
    assert standbys_of(story.membership, None) is None
    story = trains_on_two_hosts()
    story.take(events.WorkerEnding(3, 0.0))
    story.take(events.WorkerExited(3, -9))
    assert standbys_of(story.membership, None) is None, "a standby may be needed in a moment"
    version = Version(RoundId(1, 1), 0)
    story.waits(1, version)
    story.waits(2, version)
    assert standbys_of(story.membership, None) is not None


def test_a_drained_host_has_none_and_a_drained_slot_counts_no_more() -> None:
    story = trains_on_two_hosts()
    story.take(events.DrainRequested("c", None, "by an operator"))
    story.take(events.DrainRequested("b", 0, "by an operator"))
    assert standbys_of(story.membership, 2) == {"a": 2, "b": 1}


def test_in_restart_mode_each_slot_of_a_host_with_workers_has_one() -> None:
    story = trains_on_two_hosts(Mode.RESTART)
    assert standbys_of(story.membership, None) == {"a": 2, "b": 2}
    assert standbys_of(story.membership, 1) == {"a": 1, "b": 1}
