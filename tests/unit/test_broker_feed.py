"""What a broker learns of a run, and what becomes of its failures."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Sequence

import pytest

from edriver.driver.core.demand import Demand, demand_of
from edriver.driver.feeds.broker_feed import BrokerFeed, UnusedHosts
from edriver.driver.feeds.inbound import Inbound
from edriver.driver.feeds.mailbox import Mailbox
from edriver.driver.launch.broker import BrokerError, UnusableBrokerError
from edriver.model import events
from tests.unit.event_story import Story, connected

DEMAND = Demand(slots=4, needed=2)


class ScriptedBroker:
    """Raises one thing after the other; cancels the feed when it has no more."""

    def __init__(self, steps: Sequence[Exception | None]) -> None:
        self._steps = iter(steps)
        self.asked: list[Demand] = []

    async def reconcile(self, demand: Demand) -> None:
        for step in self._steps:
            self.asked.append(demand)
            if step:
                raise step
            return
        raise asyncio.CancelledError

    async def close(self) -> None:
        raise BrokerError("job 7 is left: scancel 7")


def fed(*steps: Exception | None, proven: bool = False) -> tuple[ScriptedBroker, list[Inbound]]:
    """A feed, run to its end and closed."""

    async def run() -> tuple[ScriptedBroker, list[Inbound]]:
        inbox: Mailbox[Inbound] = Mailbox(100)
        broker = ScriptedBroker(steps)
        feed = BrokerFeed(broker, lambda: DEMAND, inbox, proven, lambda _: asyncio.sleep(0))
        with contextlib.suppress(asyncio.CancelledError):
            await feed.run()
        await feed.close()
        return broker, inbox.drain()

    return asyncio.run(run())


def test_it_is_asked_again_whatever_it_raises(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "edriver.driver"):
        full = BrokerError("the queue is full")
        broker, reported = fed(None, full, full, KeyError(3), None)
    assert broker.asked == [DEMAND] * 5
    assert reported == []
    logged = [record.getMessage() for record in caplog.records]
    assert logged == [
        "the queue is full",
        "the broker raised KeyError(3): this is a bug in the broker",
        "job 7 is left: scancel 7",
    ]
    assert [bool(record.exc_info) for record in caplog.records] == [False, True, False]


def test_one_that_can_never_work_ends_the_run_at_once() -> None:
    broker, reported = fed(UnusableBrokerError("there is no partition 'gpus'"), None)
    assert len(broker.asked) == 1
    assert reported == [events.SourceUnusable("there is no partition 'gpus'")]


def test_it_ends_no_run_that_it_has_given_hosts_before() -> None:
    broker, reported = fed(UnusableBrokerError("there is no partition 'gpus'"), None, proven=True)
    assert (len(broker.asked), reported) == (2, [])


def test_later_it_only_waits() -> None:
    broker, reported = fed(None, UnusableBrokerError("there is no partition 'gpus'"), None)
    assert (len(broker.asked), reported) == (3, [])


def test_hosts_beyond_max_np_are_unused() -> None:
    assert demand_of(connected(2, 2, 1).membership) == Demand(3, 1, ("c",))
    assert demand_of(connected(2).membership) == Demand(3, 1)


def test_a_host_that_has_not_answered_is_unused_only_if_the_run_has_all_its_workers() -> None:
    story = Story(np=1)
    story.hosts(a=2, b=2)
    story.take(events.AgentConnected("a", 1))
    assert demand_of(story.membership).unused == ()
    story.hosts(a=3, b=2)
    assert demand_of(story.membership).unused == ("b",)


def test_a_drained_host_is_unused_once_its_workers_have_left() -> None:
    story = connected(1, 1)
    story.take(events.DrainRequested("b", None, "by an operator"))
    state = story.membership
    assert demand_of(state).unused == ()
    (there,) = [worker.worker_id for worker in state.roster.on("b")]
    story.take(events.WorkerExited(there, 0))
    assert demand_of(state).unused == ("b",)


def test_the_operators_size_is_what_the_run_can_use() -> None:
    story = connected(1, 1, 1)
    story.take(events.ResizeRequested(1))
    assert demand_of(story.membership).slots == 1


def test_a_host_is_kept_for_a_while_after_its_last_use() -> None:
    now = 0.0
    kept = UnusedHosts(30.0, lambda: now)
    used, unused = Demand(4, 2), Demand(4, 2, ("a",))
    assert kept.settled(unused).unused == ()
    now = 29.0
    assert kept.settled(unused).unused == ()
    assert kept.settled(used).unused == ()
    now = 30.0
    assert kept.settled(unused).unused == (), "it was used meanwhile"
    now = 60.0
    assert kept.settled(unused) == unused


def test_without_a_timeout_it_is_given_back_at_once() -> None:
    assert UnusedHosts(0.0, lambda: 5.0).settled(Demand(4, 2, ("a", "b"))).unused == ("a", "b")
