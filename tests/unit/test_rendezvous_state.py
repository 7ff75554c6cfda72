"""Compare-and-set on a rendezvous's state: what passes though others have written, and what does not."""

from __future__ import annotations

import pytest

from edriver.model.limits import OutOfBoundsError
from edriver.rendezvous.server import run_state
from edriver.rendezvous.server.run_state import RunState
from edriver.v1.rendezvous_pb2 import StateToken
from tests.unit.rendezvous_changes import change, entry, names


def joined(*names: str, nodes: tuple[int, int] = (3, 5)) -> RunState:
    state = RunState(incarnation=7)
    entries = [entry(name, participant=True) for name in names]
    assert state.set(change(None, *entries, count=len(names), nodes=nodes), now=0.0) == (True, True)
    return state


def test_the_first_writer_creates_the_state_and_the_second_is_refused() -> None:
    state = joined("a")
    assert state.set(change(None, entry("b", participant=True), count=1), now=0.0) == (False, False)
    assert names(state) == ["a"]


def test_a_token_of_another_incarnation_is_stale() -> None:
    state = joined("a")
    stale = StateToken(incarnation=6, version=state.version)
    assert state.set(change(stale, entry("b", participant=True), count=2), now=0.0) == (False, False)


def test_two_nodes_that_join_at_once_both_get_in() -> None:
    state = joined("a", nodes=(8, 9))
    seen = state.token
    for name in ("b", "c"):
        assert state.set(change(seen, entry(name, participant=True), count=2, nodes=(8, 9)), now=0.0)[0]
    assert names(state) == ["a", "b", "c"]
    assert state.participants == 3


@pytest.mark.parametrize(
    ("present", "nodes"),
    [
        pytest.param(["a"], (3, 9), id="it-would-have-set-the-deadline"),
        pytest.param(["a", "b", "c"], (2, 5), id="it-would-have-completed-the-round"),
    ],
)
def test_one_that_would_have_decided_otherwise_is_refused(present: list[str], nodes: tuple[int, int]) -> None:
    """torch's engine sets a deadline at exactly the minimum, and completes at exactly the maximum."""
    state = joined(*present, nodes=nodes)
    seen, count = state.token, len(present) + 1
    assert state.set(change(seen, entry("x", participant=True), count=count, nodes=nodes), now=0.0)[0]
    assert not state.set(change(seen, entry("y", participant=True), count=count, nodes=nodes), now=0.0)[0]
    again = change(state.token, entry("y", participant=True), count=count + 1, nodes=nodes)
    assert state.set(again, now=0.0)[0]


def test_a_change_of_the_header_needs_the_present_token_and_makes_older_ones_stale() -> None:
    state = joined("a", "b", "c", "d")
    seen = state.token
    assert state.set(change(seen, entry("e", participant=True), count=5, complete=True), now=0.0)[0]
    assert not state.set(change(seen, entry("f", participant=True), count=5), now=0.0)[0]
    assert not state.set(change(seen, closed=True, count=4), now=0.0)[0]


def test_two_changes_of_one_node_do_not_both_pass() -> None:
    state = joined("a", "b", nodes=(8, 9))
    seen = state.token
    assert state.set(change(seen, entry("b"), count=1, nodes=(8, 9)), now=0.0)[0]
    assert not state.set(change(seen, entry("b", participant=True), count=2, nodes=(8, 9)), now=0.0)[0]


def test_a_heartbeat_is_no_change() -> None:
    state = joined("a")
    version = state.version
    assert state.set(change(state.token, entry("a", participant=True), count=1), now=9.0) == (True, False)
    assert state.version == version


def test_a_node_without_heartbeats_expires_and_comes_back_with_one() -> None:
    state = joined("a", "b")
    seen = state.token
    state.set(change(seen, entry("a", participant=True), count=2), now=10.0)
    state.expire(now=16.0)
    assert {node.node.address: node.expired for node in state.nodes} == {"a": False, "b": True}
    assert [node.node.address for node in state.since(seen)[0].nodes] == ["b"]
    state.set(change(state.token, entry("b", participant=True), count=2), now=17.0)
    assert not any(node.expired for node in state.nodes)


def test_what_has_changed_since_a_token_includes_who_has_left() -> None:
    state = joined("a", "b", "c")
    seen = state.token
    state.set(change(seen, entry("b"), count=2, nodes=(3, 5)), now=0.0)
    found, whole = state.since(seen)
    assert not whole
    assert list(found.nodes) == [entry("b")]


def test_who_has_left_is_forgotten_in_the_end_and_old_tokens_get_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_state, "MIN_KEPT_DEPARTURES", 2)
    state = joined("a", nodes=(50, 60))
    seen = state.token
    for number in range(10):
        for lists in ({"participant": True}, {}):
            name = entry(f"n{number}", **lists)
            state.set(change(state.token, name, count=1 + len(lists), nodes=(50, 60)), now=0.0)
    found, whole = state.since(seen)
    assert whole
    assert [node.node.address for node in found.nodes] == ["a"]
    assert not state.set(change(seen, entry("z", participant=True), count=2, nodes=(50, 60)), now=0.0)[0]


def test_nodes_have_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_state, "MAX_RENDEZVOUS_NODES", 2)
    state = joined("a", "b")
    with pytest.raises(OutOfBoundsError, match="a run has 2 nodes at most"):
        state.set(change(state.token, entry("c", waiting=True), count=2), now=0.0)
