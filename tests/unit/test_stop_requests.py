"""What asks for the end of a run: signals, copies of them, operators."""

from __future__ import annotations

import asyncio
import signal

import pytest

from edriver.driver.feeds.inbound import Inbound
from edriver.driver.feeds.mailbox import Mailbox
from edriver.driver.run.stop_requests import StopRequests
from edriver.model import events


class Asked:
    """A driver that is asked to stop."""

    def __init__(self) -> None:
        self.now = 100.0
        self.inbox: Mailbox[Inbound] = Mailbox(limit=10)
        self.requests = StopRequests(self.inbox, lambda: self.now)

    def signal(self, number: signal.Signals, after: float = 0.0) -> bool:
        """A signal arrives; returns whether the run is to end at once."""
        self.now += after
        self.requests.signalled(number)
        return self.requests.hurry.is_set()


@pytest.mark.parametrize("copy", [signal.SIGINT, signal.SIGTERM], ids=lambda number: number.name)
def test_what_follows_within_half_a_second_is_one_request(copy: signal.Signals) -> None:
    async def story() -> None:
        asked = Asked()
        assert not asked.signal(signal.SIGINT)
        assert not asked.signal(copy, after=0.05)
        assert not asked.signal(copy, after=0.44)
        assert asked.inbox.take(10) == [events.StopRequested("the driver received SIGINT")]
        assert asked.requests.signal is signal.SIGINT
        assert asked.signal(copy, after=0.02)

    asyncio.run(story())


def test_after_an_operators_request_a_signal_means_at_once() -> None:
    async def story() -> None:
        asked = Asked()
        asked.requests.stop("enough", "kim")
        assert asked.signal(signal.SIGINT)

    asyncio.run(story())


def test_a_signal_while_the_run_ends_by_itself_does_not_cut_its_last_checkpoint_and_the_next_one_does() -> None:
    async def story() -> None:
        asked = Asked()
        asked.requests.note_end()
        assert not asked.signal(signal.SIGTERM)
        assert not asked.signal(signal.SIGTERM, after=0.1)  # a copy
        assert asked.signal(signal.SIGTERM, after=1.0)
        assert asked.inbox.take(10) == []

    asyncio.run(story())
