"""Host sets: what changed between two of them, and the order of age."""

from __future__ import annotations

import pytest

from edriver.model.hosts import Host, HostSet, HostUpdateResult
from tests.unit.host_sets import hosts


def test_a_set_answers_by_name() -> None:
    both = hosts("b:4 a:2")
    assert both.names == ("b", "a")
    assert (both.slots("a"), both.slots("c")) == (2, 0)
    assert "a" in both
    assert "c" not in both
    assert (len(both), both.total_slots) == (2, 6)
    assert list(both) == [Host("b", 4), Host("a", 2)]
    assert not HostSet()


def test_equal_sets_have_equal_order_and_hash() -> None:
    assert hosts("a:2 b:4") == hosts("a:2 b:4")
    assert hash(hosts("a:2 b:4")) == hash(hosts("a:2 b:4"))
    assert hosts("a:2 b:4") != hosts("b:4 a:2")


def test_a_name_cannot_occur_twice() -> None:
    with pytest.raises(ValueError, match="host a occurs twice, as a:2 and as a:3"):
        hosts("a:2 a:3")


@pytest.mark.parametrize(
    ("old", "new", "result", "changes"),
    [
        pytest.param("a:2", "a:2", HostUpdateResult.NO_UPDATE, (), id="same"),
        pytest.param("a:2 b:2", "b:2 a:2", HostUpdateResult.NO_UPDATE, (), id="age-is-no-difference"),
        pytest.param("", "a:2", HostUpdateResult.ADDED, ("added a:2",), id="added"),
        pytest.param("a:2", "", HostUpdateResult.REMOVED, ("removed a:2",), id="removed"),
        pytest.param("a:2", "b:2", HostUpdateResult.MIXED, ("added b:2", "removed a:2"), id="replaced"),
        pytest.param("a:2", "a:4", HostUpdateResult.ADDED, ("resized a:2 to 4",), id="grown"),
        pytest.param("a:4", "a:2", HostUpdateResult.REMOVED, ("resized a:4 to 2",), id="shrunk"),
        pytest.param(
            "a:1 b:2",
            "a:2 b:1",
            HostUpdateResult.MIXED,
            ("resized a:1 to 2", "resized b:2 to 1"),
            id="one-grown-one-shrunk",
        ),
    ],
)
def test_delta(old: str, new: str, result: HostUpdateResult, changes: tuple[str, ...]) -> None:
    delta = hosts(old).delta(hosts(new))
    assert delta.result is result
    assert delta.changes == changes


@pytest.mark.parametrize(
    ("known", "answer", "aged"),
    [
        pytest.param("a:1 b:1", "b:1 a:1", "a:1 b:1", id="known-keep-their-order"),
        pytest.param("a:1 b:1", "d:1 b:1 c:1 a:1", "a:1 b:1 d:1 c:1", id="newcomers-follow-as-answered"),
        pytest.param("a:1 b:1 c:1", "c:1 a:1", "a:1 c:1", id="the-gone-are-gone"),
        pytest.param("a:1 b:1", "b:3 a:2", "a:2 b:3", id="slots-are-the-answers"),
        pytest.param("", "b:1 a:1", "b:1 a:1", id="first-answer"),
    ],
)
def test_aged_by(known: str, answer: str, aged: str) -> None:
    assert hosts(known).aged_by(hosts(answer)) == hosts(aged)


@pytest.mark.parametrize(
    ("host", "text"),
    [
        pytest.param(Host("a", 2), "a:2", id="name"),
        pytest.param(Host("::1", 2), "[::1]:2", id="ipv6"),
    ],
)
def test_a_host_prints_as_it_is_written(host: Host, text: str) -> None:
    assert str(host) == text
