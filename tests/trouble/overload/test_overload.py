"""A run goes on under overload and abuse, stays small, and says what has happened to it: all at once, in short.

The cases one by one, and for as long as they take, are marked long: see __main__.py.
"""

from __future__ import annotations

import asyncio
import signal
import time
from pathlib import Path

import pytest

from edriver.discovery.script import HostDiscoveryScript
from edriver.driver.core.membership import Membership
from edriver.driver.core.placement import SPARE_HOSTS
from edriver.driver.feeds.discovery_feed import DiscoveryFeed
from edriver.driver.feeds.inbound import Inbound
from edriver.driver.feeds.mailbox import Mailbox
from edriver.driver.observe.event_history import EventHistory
from edriver.driver.observe.progress import ProgressTracker
from edriver.driver.services.status import StatusServer
from edriver.model import events
from edriver.model.actions import Action, StartAgent
from edriver.model.settings import Settings
from edriver.v1 import status_pb2
from tests.needs import ROOT_USER, require
from tests.trouble.overload.__main__ import CASES
from tests.trouble.overload.cases import MAX_MEMORY, fake_clock, script, set_clock
from tests.trouble.overload.watched import watched

ALL = {"HOST_UNSTEADY", "OUTPUT_OMITTED", "OUTPUT_UNWRITTEN", "UNWRITTEN", "DRIVER_PAUSED", "CLOCK_SET"}


def test_a_run_goes_on_stays_small_and_says_what_has_happened(tmp_path: Path) -> None:
    """A host that flaps, a worker that floods, an event log on a full disk, a clock set back, a stopped driver."""
    comes_and_goes = "n=$(cat n 2>/dev/null || echo 0); echo $((n+1)) > n; [ $((n % 2)) = 1 ] || echo 127.0.0.1:1"
    source = script(tmp_path, f"echo localhost:2; {comes_and_goes}")
    flags = ["-np", "2", "--max-np", "2", "--host-discovery-script", source, "--event-log", "/dev/full"]
    flags += ["--output-filename", "/dev/null/logs"]
    with watched(tmp_path, flags, {**fake_clock(tmp_path), "FLOOD": "10e6"}) as run:
        run.wait_for_steps(5)
        set_clock(tmp_path, -3600.0)
        run.run.process.send_signal(signal.SIGSTOP)
        time.sleep(3.0)  # that is what happens to it
        run.run.process.send_signal(signal.SIGCONT)
        run.wait("all is said", lambda: {f"CAUSE_KIND_{kind}" for kind in ALL} <= run.causes().keys())
        assert set(run.warnings()) == {f"CAUSE_KIND_{kind}" for kind in ALL}
        run.wait_for_steps(5)
        rounds = run.status()["rounds"]
        code = run.end()
    assert code == 0, run.run.text[-4000:]
    assert rounds == 1
    assert max(run.most["driver"], run.most["agent"]) < MAX_MEMORY
    assert {f"CAUSE_KIND_{kind}" for kind in ALL} <= run.causes().keys()
    times = [event["time"] for event in run.events()]
    assert times == sorted(times)


class Driver:
    """The core and what observers see of it, without agents."""

    def __init__(self, max_np: int) -> None:
        self.membership = Membership(Settings(np=1, min_np=1, max_np=max_np), 0.0)
        self.history = EventHistory(self.membership, ProgressTracker(lambda: 0.0), lambda: 0.0)
        self.status = StatusServer("run", self.membership, self.history, lambda: 0.0)

    def take(self, event: events.Event) -> tuple[list[Action], list[status_pb2.Event]]:
        orders = self.membership.step(event, 0.0)
        return orders, self.history.take(event, orders, None, [])


def test_ten_thousand_hosts_at_once(tmp_path: Path) -> None:
    """A real script prints them: they are one event, few get an agent, and status has all of them in one answer."""
    (tmp_path / "hosts").write_text("".join(f"h{number}:1\n" for number in range(10_000)))
    inbox: Mailbox[Inbound] = Mailbox(10)

    async def one_poll() -> Inbound | None:
        source = HostDiscoveryScript(script(tmp_path, f"cat '{tmp_path}/hosts'"), 1, 60.0)
        polling = asyncio.create_task(DiscoveryFeed(source, inbox, lambda: 0.0).run())
        event = await inbox.get()
        polling.cancel()
        return event

    event = asyncio.run(one_poll())
    assert isinstance(event, events.HostsObserved)
    driver = Driver(max_np=8)
    orders, new_events = driver.take(event)
    assert sum(isinstance(order, StartAgent) for order in orders) == 8 + SPARE_HOSTS
    assert len(new_events) == 10_000
    answer = driver.status.answer()
    idle = [host for host in answer.run.hosts if host.state == status_pb2.HOST_STATE_IDLE]
    assert len(idle) == 10_000 - 8 - SPARE_HOSTS
    assert idle[0].obstacles[0].text == "has 1 slot idle: the run may use 8 workers (--max-np)"
    assert answer.ByteSize() < 4 * 1024 * 1024  # what gRPC takes by default


@pytest.mark.long
@pytest.mark.parametrize("case", CASES)
def test_each_case_for_as_long_as_it_takes(case: str, tmp_path: Path) -> None:
    if case.startswith("disk"):  # a small one is mounted
        require(ROOT_USER)
    assert CASES[case](tmp_path)
