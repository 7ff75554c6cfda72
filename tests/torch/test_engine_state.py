"""The state that torch's rendezvous engine gets of a process's replica: the same again while nothing has changed."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime

import pytest
from torch.distributed.elastic.rendezvous.dynamic_rendezvous import _NodeDesc

from edriver.rendezvous.torchrun.engine_state import EngineState
from edriver.rendezvous.torchrun.replica import Replica
from edriver.v1.rendezvous_pb2 import NodeEntry, RendezvousNode, StateChange, StateToken

NODE = _NodeDesc("a", 1, 0)


def change(round_number: int = 0) -> StateChange:
    entry = NodeEntry(node=RendezvousNode(address="a", pid=1), participant=True)
    return StateChange(round=round_number, nodes=[entry])


@pytest.fixture
def replica() -> Replica:
    made = Replica()
    made.take(StateToken(incarnation=1, version=1), change(), whole=True)
    return made


def test_a_state_that_is_untouched_is_handed_out_again(replica: Replica) -> None:
    first = replica.state({})
    assert replica.state({}, first) is first


def test_news_make_a_new_state(replica: Replica) -> None:
    first = replica.state({})
    replica.take(StateToken(incarnation=1, version=2), change(1), whole=False)
    second = replica.state({}, first)
    assert (first.round, second.round) == (0, 1)


@pytest.mark.parametrize(
    "touch",
    [
        lambda state: state.participants.pop(NODE),
        lambda state: state.wait_list.add(NODE),
        lambda state: state.redundancy_list.add(NODE),
        lambda state: state.last_heartbeats.update({NODE: datetime.now(UTC)}),
        lambda state: setattr(state, "complete", True),
        lambda state: setattr(state, "closed", True),
        lambda state: setattr(state, "deadline", datetime.now(UTC)),
        lambda state: setattr(state, "round", 7),
    ],
    ids=["participant", "waits", "redundant", "heartbeat", "complete", "closed", "deadline", "round"],
)
def test_what_an_engine_has_changed_is_not_handed_out_again(
    replica: Replica, touch: Callable[[EngineState], object]
) -> None:
    first = replica.state({})
    touch(first)
    second = replica.state({}, first)
    assert second is not first
    assert (second.round, second.complete, second.closed, second.deadline) == (0, False, False, None)
    assert (dict(second.participants), set(second.wait_list), dict(second.last_heartbeats)) == ({NODE: 0}, set(), {})
