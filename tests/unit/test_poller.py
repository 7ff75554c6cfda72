"""The poller against a scripted source: it survives anything, reports every poll, logs each note once."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from pathlib import Path

import pytest

from edriver.discovery.errors import DiscoveryError, UnusableSourceError
from edriver.discovery.host_lines import parse_host_list
from edriver.discovery.hosts import HostSet
from edriver.discovery.poll_filter import PollFilter, Verdict
from edriver.discovery.poller import Poller, Polls
from edriver.discovery.sources import FixedHosts, read_hostfile

A = parse_host_list("a:2")
AB = parse_host_list("a:2,b:2")


class ScriptedSource:
    """Answers or raises one thing after the other; cancels the poller when it has no more."""

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
    """A poller over scripted steps, with what it slept and reported."""

    def __init__(self, *steps: HostSet | Exception) -> None:
        self.slept: list[float] = []
        self.verdicts: list[Verdict] = []
        self.now = 100.0
        self.poller = Poller(ScriptedSource(steps), PollFilter(), 1.5, self.verdicts.append, self._sleep, self._clock)

    def _clock(self) -> float:
        """A quarter of a second passes with each look."""
        self.now += 0.25
        return self.now

    async def _sleep(self, seconds: float) -> None:
        self.slept.append(seconds)

    def run(self) -> None:
        with pytest.raises(asyncio.CancelledError):
            asyncio.run(self.poller.run())


def test_first_returns_the_hosts_and_reports_them() -> None:
    watch = Watch(A)
    assert asyncio.run(watch.poller.first()) == A
    assert [verdict.hosts for verdict in watch.verdicts] == [A]
    assert watch.slept == []


def test_first_may_find_no_hosts_yet() -> None:
    assert asyncio.run(Watch(HostSet()).poller.first()) == HostSet()


def test_first_raises_what_no_waiting_can_mend() -> None:
    watch = Watch(UnusableSourceError("chmod +x it"))
    with pytest.raises(UnusableSourceError, match="chmod"):
        asyncio.run(watch.poller.first())
    assert watch.verdicts == []


@pytest.mark.parametrize("error", [DiscoveryError("no quota \udcff"), KeyError("x")], ids=["failure", "bug"])
def test_first_may_fail_and_the_next_poll_answer(error: Exception, caplog: pytest.LogCaptureFixture) -> None:
    watch = Watch(error, error, A)
    assert asyncio.run(watch.poller.first()) == HostSet()
    watch.run()
    bug = isinstance(error, KeyError)
    said = "the host source raised KeyError('x'), which is a fault of its own code" if bug else "no quota \\udcff"
    assert [(verdict.hosts, verdict.error) for verdict in watch.verdicts] == [(HostSet(), said)] * 2 + [(A, "")]
    assert [r.levelname for r in caplog.records] == (["WARNING"] if bug else []), "why it waits is the run's to say"


def test_run_survives_every_failure_and_keeps_the_hosts() -> None:
    watch = Watch(A, DiscoveryError("bad"), KeyError("x"), OSError("disk"), AB)
    watch.run()
    assert [verdict.hosts for verdict in watch.verdicts] == [A, A, A, A, AB]
    assert [verdict.failures for verdict in watch.verdicts] == [0, 1, 2, 3, 0]
    assert watch.slept == [1.5] * 6


def test_a_note_is_logged_once_per_change(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "edriver.discovery")
    bad, worse = DiscoveryError("bad"), DiscoveryError("worse")
    Watch(A, A, bad, bad, bad, worse, A, A, bad).run()
    assert [(record.levelname, record.getMessage()) for record in caplog.records] == [
        ("INFO", "added a:2; now 1 host, 2 slots"),
        ("WARNING", "poll failed, keeping 1 host, 2 slots: bad"),
        ("WARNING", "poll failed, keeping 1 host, 2 slots: worse"),
        ("INFO", "discovery answers again: 1 host, 2 slots"),
        ("WARNING", "poll failed, keeping 1 host, 2 slots: bad"),
    ]


def test_only_a_fault_of_the_source_is_logged_with_its_traceback(caplog: pytest.LogCaptureFixture) -> None:
    Watch(A, DiscoveryError("bad"), KeyError("x")).run()
    assert [record.exc_info is not None for record in caplog.records] == [False, True]


def test_what_the_listener_raises_ends_the_poller() -> None:
    def listener(verdict: Verdict) -> None:
        raise RuntimeError("a fault of the driver")

    async def sleep(seconds: float) -> None:
        pass

    with pytest.raises(RuntimeError, match="fault of the driver"):
        asyncio.run(Poller(FixedHosts(A), PollFilter(), 1.0, listener, sleep).run())


def test_a_hostfile_is_read(tmp_path: Path) -> None:
    path = tmp_path / "hosts"
    path.write_text("# two\na slots=2\nb:2\n")
    assert read_hostfile(path, default_slots=1) == AB


@pytest.mark.parametrize(
    ("content", "message"),
    [
        pytest.param(None, "cannot be read: No such file or directory", id="missing"),
        pytest.param(b"", "it names no host", id="empty"),
        pytest.param(b"a:2\nb:zero\n", "line 2: 'b:zero'", id="bad-line"),
        pytest.param(b"#" * (4 * 1024 * 1024 + 1), "larger than 4 MiB", id="too-large"),
    ],
)
def test_a_bad_hostfile_is_refused_by_name(tmp_path: Path, content: bytes | None, message: str) -> None:
    path = tmp_path / "hosts"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(DiscoveryError) as caught:
        read_hostfile(path, default_slots=1)
    assert message in str(caught.value)
    assert str(path) in str(caught.value)


def test_polls_are_counted_and_timed() -> None:
    watch = Watch(A, DiscoveryError("no quota"), RuntimeError("a bug"), HostSet(), A, DiscoveryError("no quota"))
    asyncio.run(watch.poller.first())
    watch.run()
    # An empty answer that is not believed yet has failed, too.
    assert watch.poller.polls == Polls(answered=2, failed=4, seconds=0.25, last_answer=102.5)


def test_a_first_poll_that_fails_is_counted() -> None:
    watch = Watch(DiscoveryError("no quota"))
    asyncio.run(watch.poller.first())
    assert watch.poller.polls == Polls(failed=1, seconds=0.25)


def test_a_clock_that_is_set_back_makes_no_negative_length() -> None:
    polls = Polls()
    polls.add(100.0, 90.0, believed=True)
    assert polls.seconds == 0.0
