"""The event log's lines."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest

from edriver.driver import actions, events
from edriver.driver.event_log import EventLog
from edriver.driver.ranks import Candidate, plan_round
from edriver.version import NO_VERSION, RoundId


class Story:
    """A log, a clock, and what has been written."""

    def __init__(self, path: Path) -> None:
        self.now = 100.0
        self.path = path
        self.log = EventLog(path, lambda: self.now)

    def take(self, event: events.Event, *step: actions.Action) -> None:
        self.now += 1
        self.log.take(event, step)

    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.path.read_text().splitlines()] if self.path.exists() else []


@pytest.fixture
def story(tmp_path: Path) -> Story:
    return Story(tmp_path / "events.jsonl")


def assign(n: int, *workers: int) -> actions.AssignRound:
    candidates = [Candidate(w, "a", w, NO_VERSION, "a", 7000 + w) for w in workers]
    return actions.AssignRound(plan_round(RoundId(1, n), 1, candidates, first=True))


def stepped(worker: int, n: int, **times: float) -> events.FirstBoundaryPassed:
    return events.FirstBoundaryPassed(worker, RoundId(1, n), times)


ABORT = actions.Abort((1,), RoundId(1, 1), "worker 2 has ended")


def test_a_round_is_written_when_all_are_under_way(story: Story) -> None:
    story.take(events.Ticked(), assign(1, 1, 2))
    story.take(stepped(1, 1, built=7.0, commit_bytes=1200))
    assert story.lines() == []
    story.take(stepped(2, 1, stepped=8.0))
    (line,) = story.lines()
    assert (line["round"], line["size"], line["cause"]) == ("1.1", 2, "the run began")
    assert (line["noticed"], line["ended"], line["assigned"]) == (None, None, 101.0)
    first, second = line["members"]
    assert (first["worker"], first["rank"], first["host"], first["built"], first["stepped"]) == (1, 0, "a", 7.0, None)
    assert (first["commit_bytes"], first["received_bytes"]) == (1200, None)
    assert (second["worker"], second["stepped"]) == (2, 8.0)


@pytest.mark.parametrize("peer_first", [False, True], ids=["agent-first", "peer-first"])
def test_a_loss_is_the_next_rounds_cause(story: Story, peer_first: bool) -> None:
    story.take(events.Ticked(), assign(1, 1, 2))
    raised, ending = events.CollectiveRaised(1, RoundId(1, 1), ""), events.WorkerEnding(2, seen=55.0)
    story.take(raised if peer_first else ending, ABORT)
    story.take(ending if peer_first else raised)
    story.take(events.WorkerExited(2, -9, reaped=56.0))
    story.take(events.Ticked(), assign(2, 1))
    story.take(stepped(1, 2))
    cut, line = story.lines()
    assert (cut["round"], cut["members"]) == ("1.1", [])
    assert (line["round"], line["cause"], line["noticed"], line["ended"]) == ("1.2", "worker 2 has ended", 55.0, 102.0)


def test_what_does_not_concern_the_round_is_left_out(story: Story) -> None:
    story.take(events.Ticked(), assign(1, 1, 2))
    story.take(events.WorkerExited(9, 1, reaped=50.0))
    story.take(stepped(9, 1))
    story.take(stepped(1, 7))
    story.take(events.Ticked(), actions.StopAt((1, 2), RoundId(1, 1), 1, 3))
    story.take(events.Ticked(), assign(2, 1))
    story.take(events.Ticked(), actions.FinishRun(True, ""))
    first, second = story.lines()
    assert first["members"] == second["members"] == []
    assert (second["cause"], second["noticed"]) == ("the set of hosts or workers changed", None)


def test_a_log_that_cannot_be_written_is_said_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    story = Story(tmp_path)
    with caplog.at_level(logging.WARNING):
        for n in (1, 2, 3):
            story.take(events.Ticked(), assign(n, 1))
    assert [record.getMessage() for record in caplog.records] == [
        f"the event log {tmp_path} cannot be written: Is a directory"
    ]
