"""What both clients do, without a connection."""

from __future__ import annotations

import inspect
from typing import Any, cast

import tenacity

from edriver.client import AsyncClient, Client, core
from edriver.client.redial import REDIAL_TIMEOUT, Watching
from edriver.v1 import status_pb2


def signatures(kind: type) -> dict[str, list[str]]:
    public = {name: member for name, member in vars(kind).items() if not name.startswith("_")}
    return {name: list(inspect.signature(member).parameters) for name, member in public.items()}


def test_both_clients_have_the_same_methods() -> None:
    assert signatures(Client) == signatures(AsyncClient)


def test_events_are_asked_for_until_there_are_no_more() -> None:
    calls = core.events(since=4)
    portions = [[5, 6], [7], []]
    asked, call = [], next(calls)
    found: list[status_pb2.Event] = []
    for portion in portions:
        assert call.method == "ListEvents"
        asked.append(cast(status_pb2.ListEventsRequest, call.request).since)
        answer: Any = status_pb2.ListEventsResponse(events=[status_pb2.Event(seq=seq) for seq in portion])
        try:
            call = calls.send(answer)
        except StopIteration as end:
            found = end.value
    assert asked == [4, 6, 7]
    assert [event.seq for event in found] == [5, 6, 7]


def test_a_watch_goes_on_from_the_last_event_and_progress_counts_as_a_sign_of_life() -> None:
    now = [0.0]
    watching = Watching(since=3, progress=True, clock=lambda: now[0])
    attempt = cast(tenacity.RetryCallState, None)
    assert watching.request == status_pb2.WatchRequest(since=3, progress=True, reads_more=True)
    list(watching.parts_of(status_pb2.WatchResponse(event=status_pb2.Event(seq=8))))
    now[0] = REDIAL_TIMEOUT
    assert not watching(attempt)
    list(watching.parts_of(status_pb2.WatchResponse(progress=status_pb2.Progress(steps=1))))
    assert watching.request.since == 8
    now[0] = 2 * REDIAL_TIMEOUT
    assert not watching(attempt)
    now[0] += 0.1
    assert watching(attempt)


def test_events_that_come_together_are_watched_one_by_one() -> None:
    now = [0.0]
    watching = Watching(since=3, progress=False, clock=lambda: now[0])
    attempt = cast(tenacity.RetryCallState, None)
    events = [status_pb2.Event(seq=seq) for seq in (4, 5, 6)]
    events[-1].run_ended.SetInParent()
    parts = watching.parts_of(status_pb2.WatchResponse(event=events[0], more=events[1:]))
    for event in events:
        assert next(parts) == status_pb2.WatchResponse(event=event)
        assert (watching.request.since, watching.over) == (event.seq, event.seq == 6)
        now[0] += 2 * REDIAL_TIMEOUT  # its caller takes so long for it
    assert next(parts, None) is None
    assert not watching(attempt)
