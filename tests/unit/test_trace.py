"""A run as a trace: it is in Trace Event Format, and what happened can be seen in it."""

from __future__ import annotations

import itertools
import json
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from edriver.driver.observe.records.recorder import Recorder, writers_of
from edriver.driver.observe.records.trace import REMARKS_TRACK, Trace
from edriver.model import events
from edriver.model.ids import RoundId, Version
from edriver.v1 import status_pb2
from edriver.wire.conversion import epoch_seconds, timestamp
from tests.unit.event_story import Story

Entry = dict[str, Any]
Slice = tuple[str, float, float]

BEGAN = 100.0
FOR_EVER = 1e9


class Told(Story):
    """A run that starts at 100 s, and its trace."""

    def __init__(self) -> None:
        super().__init__()
        self.all: list[status_pb2.Event] = []

    def take(self, event: events.Event) -> list[status_pb2.Event]:
        reported = super().take(event)
        self.all += reported
        return reported

    @property
    def trace(self) -> list[Entry]:
        trace = Trace("r", BEGAN)
        return [entry for event in self.all for entry in trace.entries(event)]


def slices(entries: Iterable[Entry]) -> dict[tuple[str, str], list[Slice]]:
    """By process and thread: each slice with its beginning and end, in seconds; in order.

    Refuses what Trace Event Format does not allow, and what lies in another slice.
    """
    entries = list(entries)
    processes, threads = {}, {}
    found: dict[tuple[int, int], list[Slice]] = defaultdict(list)
    begun: dict[tuple[int, int], tuple[str, int]] = {}
    for entry in entries:
        track = (entry["pid"], entry["tid"])
        assert {type(entry[name]) for name in ("pid", "tid", "ts")} == {int}
        match entry["ph"]:
            case "M" if entry["name"] == "process_name":
                processes[entry["pid"]] = entry["args"]["name"]
            case "M" if entry["name"] == "thread_name":
                threads[track] = entry["args"]["name"]
            case "B":
                assert track not in begun, f"{entry} begins inside of another slice"
                begun[track] = (entry["name"], entry["ts"])
            case "E":
                name, start = begun.pop(track)
                assert start <= entry["ts"]
                found[track].append((name, start / 1e6, entry["ts"] / 1e6))
            case "X":
                assert entry["dur"] > 0
                found[track].append((entry["name"], entry["ts"] / 1e6, (entry["ts"] + entry["dur"]) / 1e6))
            case "i":
                assert entry["s"] == "t"
            case other:
                assert other == "M"
    for track, (name, at) in begun.items():
        found[track].append((name, at / 1e6, FOR_EVER))
    named = {}
    for track, its in found.items():
        its.sort(key=lambda each: each[1:])
        assert all(first[2] <= second[1] for first, second in itertools.pairwise(its)), its
        named[processes[track[0]], threads[track]] = its
    return named


def instants(entries: Iterable[Entry], track: tuple[int, int]) -> list[str]:
    return [entry["name"] for entry in entries if entry["ph"] == "i" and (entry["pid"], entry["tid"]) == track]


def test_a_start() -> None:
    story = Told()
    story.begun()  # the hosts at 101, agents at 102, workers wait at 103 and 104
    story.steps(1, 1, waiting=103.0, built=104.5, synced=104.6, stepped=105.5)
    story.steps(2, 1, waiting=104.0, built=104.4, synced=104.7, stepped=105.0)
    shown = slices(story.trace)
    assert shown["a", "slot 0"] == [
        ("booting", 2.0, 3.0),
        ("waiting", 3.0, 4.0),
        ("rendezvous", 4.0, 4.5),
        ("sync", 4.5, 4.6),
        ("first_step", 4.6, 5.5),
        ("training", 5.5, FOR_EVER),
    ]
    assert shown["a", "slot 1"][0] == ("booting", 2.0, 4.0)
    assert shown["run r", "rounds"] == [("round 1.1", 4.0, FOR_EVER)]
    assert shown["run r", "recovery"] == [
        ("wait", 0.0, 4.0),
        ("rendezvous", 4.0, 4.5),
        ("sync", 4.5, 4.7),
        ("first_step", 4.7, 5.5),
    ]


def killed() -> Told:
    """Worker 2 of two is killed in round 1.1; worker 1 goes on in round 1.2 and a newcomer boots."""
    story = Told()
    story.begun()
    story.steps(1, 1, stepped=105.0)
    story.steps(2, 1, stepped=106.0)
    story.says(1, 1, 7, 106.0)
    story.take(events.WorkerExited(2, -9, "", 106.5))  # received at 107
    story.waits(1, Version(RoundId(1, 1), 7))
    story.steps(1, 2, stopped=107.25, waiting=107.75, built=108.2, synced=108.2, stepped=109.0)
    return story


def test_a_kill_shows() -> None:
    story = killed()
    shown = slices(story.trace)
    assert shown["a", "slot 0"][-5:] == [
        ("training", 5.0, 7.0),
        ("abort", 7.0, 8.0),
        ("rendezvous", 8.0, 8.2),
        ("first_step", 8.2, 9.0),
        ("training", 9.0, FOR_EVER),
    ]
    assert ("training", 6.0, 7.0) in shown["a", "slot 1"]
    assert shown["run r", "rounds"] == [("round 1.1", 4.0, 7.0), ("round 1.2", 8.0, FOR_EVER)]
    assert shown["run r", "recovery"][-6:] == [
        ("unnoticed", 6.0, 6.5),
        ("detect", 6.5, 7.0),
        ("abort", 7.0, 7.75),
        ("wait", 7.75, 8.0),
        ("rendezvous", 8.0, 8.2),
        ("first_step", 8.2, 9.0),
    ]
    assert any("worker 2" in text and "killed by SIGKILL" in text for text in instants(story.trace, REMARKS_TRACK))
    begun = next(e for e in story.trace if e["ph"] == "B" and e["name"] == "round 1.2")
    assert (begun["args"]["kind"], begun["args"]["size"]) == ("failure", 1)


def test_a_recovery_with_a_round_that_failed_is_shown_as_one() -> None:
    story = Told()
    story.begun()
    story.steps(1, 1, stepped=105.0)
    story.steps(2, 1, stepped=106.0)
    story.says(1, 1, 7, 106.0)
    story.take(events.WorkerExited(2, -9, "", 106.5))  # received at 107
    story.waits(1, Version(RoundId(1, 1), 7))  # round 1.2 is assigned
    story.take(events.CollectiveRaised(1, RoundId(1, 2), ""))  # at 109
    story.waits(1, Version(RoundId(1, 1), 7))  # at 110
    story.steps(1, 3, stopped=109.25, waiting=109.75, built=110.2, synced=110.2, stepped=111.0)
    shown = slices(story.trace)
    recovery = shown["run r", "recovery"]
    recovery = recovery[recovery.index(("unnoticed", 6.0, 6.5)) :]
    assert recovery[1] == ("detect", 6.5, 7.0)
    assert recovery[-2:] == [("rendezvous", 10.0, 10.2), ("first_step", 10.2, 11.0)]
    assert all(first[2] == second[1] for first, second in itertools.pairwise(recovery))


def test_a_clock_that_is_wrong_moves_nothing_out_of_its_place() -> None:
    story = Told()
    story.begun()
    story.steps(1, 1, built=10.0, synced=5000.0, stepped=20.0)
    story.steps(2, 1, built=9000.0, synced=1.0, stepped=9001.0)
    shown = slices(story.trace)
    assert shown["a", "slot 0"][-2:] == [("sync", 4.0, 6.0), ("training", 6.0, FOR_EVER)]
    assert shown["a", "slot 1"][-2:] == [("rendezvous", 4.0, 6.0), ("training", 6.0, FOR_EVER)]


def test_time_that_goes_back_is_taken_to_stand_still() -> None:
    story = killed()
    for event in story.all[len(story.all) // 2 :]:
        event.time.CopyFrom(timestamp(epoch_seconds(event.time) - 50.0))
    shown = slices(story.trace)
    assert shown["run r", "rounds"] == [("round 1.1", 4.0, 4.0), ("round 1.2", 4.0, FOR_EVER)]
    assert shown["a", "slot 1"] == [("booting", 2.0, 4.0), ("training", 4.0, 4.0), ("booting", 4.0, FOR_EVER)]


@pytest.mark.parametrize("end", [False, True], ids=["killed-driver", "ended"])
def test_the_file_opens_at_any_time(tmp_path: Path, end: bool) -> None:
    story = killed()
    recorder = Recorder(writers_of(tmp_path, "r", BEGAN), BEGAN, delay=0.0)
    recorder.start()
    recorder.events(story.all)
    if end:
        done = status_pb2.RunEnded(end=status_pb2.RUN_END_DONE)
        recorder.events([status_pb2.Event(time=timestamp(120.0), text="all done", run_ended=done)])
    recorder.close()
    text = (tmp_path / "trace.json").read_text()
    shown = slices(json.loads(text if end else f"{text}]"))
    last = shown["run r", "rounds"][-1]
    assert last == ("round 1.2", 8.0, 20.0 if end else FOR_EVER)
