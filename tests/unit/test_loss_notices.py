"""Notices of a source that hosts will be lost."""

from __future__ import annotations

import pytest

from edriver.discovery.errors import DiscoveryError
from edriver.discovery.hosts import parse_hosts
from edriver.driver.feeds.loss_notices import REASON, LossNotices
from edriver.model import events
from edriver.model.hosts import Host, HostSet


def drain(name: str, within: float) -> events.DrainRequested:
    return events.DrainRequested(name, None, REASON, within=within, notice=True)


class Answers:
    """What follows from answers, at a time each."""

    def __init__(self) -> None:
        self.notices = LossNotices()

    def at(self, now: float, text: str, in_force: str | None = None) -> list[events.Event]:
        known = text if in_force is None else in_force
        return list(self.notices.accept(parse_hosts(text, 1), parse_hosts(known, 1), now))


def test_a_notice_is_given_once_while_its_time_runs_out() -> None:
    answers = Answers()
    assert answers.at(0.0, "a:2\nb:2") == []
    assert answers.at(1.0, "a:2\nb:2 leaving=120") == [drain("b", 120.0)]
    assert answers.at(2.0, "a:2\nb:2 leaving=119") == []
    assert answers.at(3.0, "a:2\nb:2 leaving=120") == []
    assert answers.at(4.0, "a:2\nb:2 leaving=30") == [drain("b", 30.0)]


def test_a_notice_that_is_withdrawn_is_undone_and_that_of_a_host_that_is_gone_is_forgotten() -> None:
    answers = Answers()
    answers.at(0.0, "a:2 leaving=60\nb:2 leaving=60")
    assert answers.at(1.0, "a:2", in_force="a:2\nb:2") == [events.UndrainRequested("a", None)]
    assert answers.at(2.0, "a:2\nb:2 leaving=58") == []
    assert answers.at(3.0, "a:2") == []
    assert answers.at(4.0, "a:2\nb:2 leaving=120") == [drain("b", 120.0)]


def test_a_notice_waits_until_its_host_is_known() -> None:
    answers = Answers()
    assert answers.at(0.0, "a:2\nb:2 leaving=60", in_force="a:2") == []
    assert answers.at(1.0, "a:2\nb:2 leaving=59") == [drain("b", 59.0)]


@pytest.mark.parametrize(
    ("line", "host"),
    [
        pytest.param("a:4 leaving=120", Host("a", 4, 120.0), id="slots"),
        pytest.param("a leaving=0.5", Host("a", 1, 0.5), id="host-alone"),
        pytest.param("a slots=4 leaving=0", Host("a", 4, 0.0), id="mpiruns"),
        pytest.param("[::1]:2 leaving = 90", Host("::1", 2, 90.0), id="ipv6"),
    ],
)
def test_a_line_may_end_with_a_notice(line: str, host: Host) -> None:
    found = parse_hosts(line, 1)
    assert (found, [each.leaving for each in found]) == (HostSet((host,)), [host.leaving])


@pytest.mark.parametrize("seconds", ["", "soon", "-1", "1e3", "inf"])
def test_a_notice_is_a_number_of_seconds(seconds: str) -> None:
    with pytest.raises(DiscoveryError, match="leaving takes the seconds after which the host will be lost"):
        parse_hosts(f"a:4 leaving={seconds}", 1)
