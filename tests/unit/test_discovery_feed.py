"""The feed of a scripted source: it survives anything, tells the core what is new, and logs each note once."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

import pytest

from edriver.discovery.errors import DiscoveryError, UnusableSourceError
from edriver.discovery.hosts import parse_host_list
from edriver.discovery.poll_filter import Polls
from edriver.discovery.slot_counts import DeviceCount, SlotCounts
from edriver.discovery.steadiness import ANSWERS_CONSIDERED, MIN_CHANGES
from edriver.driver.feeds.discovery_feed import CONFIRM_INTERVAL, POLL_INTERVAL, DiscoveryFeed
from edriver.driver.feeds.inbound import Inbound
from edriver.driver.feeds.mailbox import Mailbox
from edriver.driver.observe.console.output import ROUTINE
from edriver.model import events
from edriver.model.hosts import HostSet

NONE = HostSet()
A = parse_host_list("a:2")
AB = parse_host_list("a:2,b:2")


class ScriptedSource:
    """Answers or raises one thing after the other; cancels the feed when it has no more."""

    def __init__(self, steps: Sequence[HostSet | Exception]) -> None:
        self._steps = iter(steps)

    async def find(self) -> HostSet:
        step = next(self._steps, None)
        if step is None:
            raise asyncio.CancelledError
        if isinstance(step, Exception):
            raise step
        return step


class Watch:
    """A feed of scripted steps, run to their end, with its sleeps and its events for the core."""

    def __init__(self, *steps: HostSet | Exception, counts: SlotCounts | None = None) -> None:
        self.counts = counts
        self.slept: list[float] = []
        self.now = 100.0
        self.ended = False
        self.unsteady: list[tuple[str, int]] = []
        self.failing: list[str] = []
        asyncio.run(self._run(steps))

    async def _run(self, steps: Sequence[HostSet | Exception]) -> None:
        inbox: Mailbox[Inbound] = Mailbox(100)
        feed = DiscoveryFeed(
            ScriptedSource(steps),
            inbox,
            self._clock,
            self._sleep,
            self._note_unsteady,
            self.failing.append,
            counts=self.counts,
        )
        try:
            await feed.run()
            self.ended = True
        except asyncio.CancelledError:
            pass
        self.reported, self.polls = inbox.drain(), feed.polls

    def _clock(self) -> float:
        """A quarter of a second passes with each look."""
        self.now += 0.25
        return self.now

    def _note_unsteady(self, host: str, changes: int) -> None:
        self.unsteady.append((host, changes))

    async def _sleep(self, seconds: float) -> None:
        self.slept.append(seconds)


def found(hosts: HostSet) -> events.HostsObserved:
    return events.HostsObserved(hosts)


def failed(reason: str) -> events.DiscoveryFailed:
    return events.DiscoveryFailed(reason)


@pytest.mark.parametrize(
    ("steps", "reported"),
    [
        pytest.param([A, A, AB], [found(A), found(AB)], id="what-is-new"),
        pytest.param([NONE, A], [found(A)], id="no-hosts-yet"),
        pytest.param([DiscoveryError("bad"), NONE], [failed("bad"), found(NONE)], id="it-answers-that-there-are-none"),
        pytest.param(
            [DiscoveryError("bad"), DiscoveryError("bad"), DiscoveryError("worse"), A],
            [failed("bad"), failed("worse"), found(A)],
            id="each-reason-once",
        ),
        pytest.param(
            [A, DiscoveryError("bad"), KeyError("x"), AB], [found(A), found(AB)], id="failures-keep-the-hosts"
        ),
        pytest.param([A, UnusableSourceError("gone"), AB], [found(A), found(AB)], id="unusable-for-a-while"),
    ],
)
def test_the_core_receives_changes_alone(steps: list[HostSet | Exception], reported: list[events.Event]) -> None:
    watch = Watch(*steps)
    assert watch.reported == reported
    assert watch.slept == [POLL_INTERVAL] * len(steps)
    assert not watch.ended


def test_the_answer_that_decides_about_a_removal_is_asked_for_soon_and_no_other() -> None:
    watch = Watch(AB, AB, A, A, A, NONE, NONE, NONE, A)
    assert watch.reported == [found(AB), found(A), found(NONE), found(A)]
    soon, usual = CONFIRM_INTERVAL, POLL_INTERVAL
    assert watch.slept == [usual, usual, soon, *[usual] * 6]


def test_a_source_that_has_named_a_host_again_has_the_usual_time_to_correct_itself() -> None:
    watch = Watch(AB, A, AB, A, A, A)
    assert watch.slept == [POLL_INTERVAL, CONFIRM_INTERVAL, *[POLL_INTERVAL] * 4]
    assert watch.reported == [found(AB), found(A)]


def test_a_source_that_is_unusable_at_the_start_ends_the_run(caplog: pytest.LogCaptureFixture) -> None:
    watch = Watch(UnusableSourceError("chmod +x it"), A)
    assert watch.reported == [events.SourceUnusable("chmod +x it")]
    assert watch.ended
    assert caplog.records == [], "the run's reason reports it"


@pytest.mark.parametrize("error", [DiscoveryError("no quota \udcff"), KeyError("x")], ids=["failure", "bug"])
def test_the_first_poll_may_fail_and_the_next_answer(error: Exception, caplog: pytest.LogCaptureFixture) -> None:
    bug = isinstance(error, KeyError)
    message = "the host source raised KeyError('x'): this is a bug in the host source" if bug else "no quota \\udcff"
    assert Watch(error, error, A).reported == [failed(message), found(A)]
    assert [r.levelname for r in caplog.records] == (["WARNING"] if bug else []), "why it waits is the run's to say"


def test_a_note_is_logged_once_per_change(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "edriver.discovery")
    bad, worse = DiscoveryError("bad"), DiscoveryError("worse")
    Watch(A, A, bad, bad, bad, worse, A, A, bad)
    assert [(r.levelno, r.getMessage()) for r in caplog.records if r.name == "edriver.discovery"] == [
        (ROUTINE, "added a:2; now 1 host, 2 slots"),
        (logging.WARNING, "poll failed, keeping 1 host, 2 slots: bad"),
        (logging.WARNING, "poll failed, keeping 1 host, 2 slots: worse"),
        (logging.INFO, "discovery answers again: 1 host, 2 slots"),
        (logging.WARNING, "poll failed, keeping 1 host, 2 slots: bad"),
    ]


def test_only_a_fault_of_the_source_is_logged_with_its_traceback(caplog: pytest.LogCaptureFixture) -> None:
    Watch(A, DiscoveryError("bad"), KeyError("x"))
    assert [record.exc_info is not None for record in caplog.records] == [False, True]


def test_polls_are_counted_and_timed() -> None:
    watch = Watch(A, DiscoveryError("no quota"), RuntimeError("a bug"), NONE, A, DiscoveryError("no quota"))
    # An empty answer that is not believed yet has failed, too.
    assert watch.polls == Polls(answered=2, failed=4, seconds=0.25, last_answer=102.5)


def test_a_first_poll_that_finds_the_source_unusable_is_counted() -> None:
    assert Watch(UnusableSourceError("chmod +x it")).polls == Polls(failed=1, seconds=0.25)


def test_a_clock_that_is_set_back_makes_no_negative_length() -> None:
    polls = Polls()
    polls.add(100.0, 90.0, believed=True)
    assert polls.seconds == 0.0


@pytest.mark.parametrize("period", [1, 3])
def test_a_host_that_comes_and_goes_is_named_and_each_note_is_logged_once(
    caplog: pytest.LogCaptureFixture, period: int
) -> None:
    caplog.set_level(logging.INFO, logger="edriver.discovery")
    watch = Watch(*([AB] * period + [A] * period) * 100)
    assert watch.unsteady[0] == ("b", MIN_CHANGES)
    assert {host for host, _ in watch.unsteady} == {"b"}
    assert len(caplog.messages) < 20
    observed = [event for event in watch.reported if isinstance(event, events.HostsObserved)]
    assert len(observed) == (1 if period == 1 else 200)


def test_a_host_that_has_become_steady_again_is_not_named_any_more() -> None:
    watch = Watch(*[AB, A] * MIN_CHANGES, *[AB] * (2 * ANSWERS_CONSIDERED))
    assert len(watch.unsteady) <= 2 * ANSWERS_CONSIDERED - MIN_CHANGES


def test_hosts_that_change_now_and_then_are_steady() -> None:
    assert Watch(*([AB] * 30 + [A] * 30) * 4).unsteady == []


def test_observers_are_warned_while_the_source_keeps_failing_and_hosts_are_used() -> None:
    why = DiscoveryError("line 1: bad")
    assert Watch(A, why, why, A, why, why, A).failing == []  # a hiccup
    assert Watch(A, why, why, why, why, A, A).failing == ["line 1: bad", "line 1: bad", ""]
    assert Watch(A, why, why, why, DiscoveryError("line 2: bad")).failing == ["line 1: bad", "line 2: bad"]
    assert Watch(why, why, why, why).failing == []  # the run says why it waits


async def _gpus(host: str) -> DeviceCount:
    return DeviceCount(gpus={"a": 4}.get(host, 0), cores=2)


def test_slots_are_counted_before_the_core_hears_of_hosts(caplog: pytest.LogCaptureFixture) -> None:
    both, one = parse_host_list("a:gpu,b:gpu"), parse_host_list("a:gpu")
    watch = Watch(both, both, one, one, counts=SlotCounts(_gpus, lambda: 0.0))
    assert watch.reported == [found(parse_host_list("a:4"))]
    note = "host b is not used: it has no NVIDIA GPU"
    assert [note in each for each in watch.failing] == [True, True, False]
    assert watch.failing[-1] == ""
    assert sum(note in each.message for each in caplog.records) == 1, "it is said once"


def test_a_fixed_list_with_a_host_that_has_no_such_device_ends_the_run() -> None:
    watch = Watch(parse_host_list("a:gpu,b:gpu"), counts=SlotCounts(_gpus, lambda: 0.0, needed=1))
    assert watch.ended
    assert isinstance(watch.reported[0], events.SourceUnusable)
    assert "host b is not used" in watch.reported[0].reason
