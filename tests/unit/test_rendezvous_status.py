"""What `edriver rendezvous status` says of a run."""

from __future__ import annotations

from google.protobuf.timestamp_pb2 import Timestamp

from edriver.rendezvous.command import lines
from edriver.v1.rendezvous_pb2 import ListRendezvousResponse, NodeEntry, Rendezvous, RendezvousNode, StateChange


def said(nodes: list[NodeEntry], deadline: int | None = None, **header: bool | int) -> list[str]:
    state = StateChange(nodes=nodes, **header)  # type: ignore[arg-type]
    if deadline is not None:
        state.deadline.CopyFrom(Timestamp(seconds=deadline))
    run = Rendezvous(run_id="job", state=state, min_nodes=2, max_nodes=3, store_keys=1)
    return list(lines(ListRendezvousResponse(rendezvous=[run]), now=1000.0))


def node(name: str, **lists: bool | int) -> NodeEntry:
    return NodeEntry(node=RendezvousNode(address=name, pid=7), **lists)  # type: ignore[arg-type]


def test_a_complete_round_shows_ranks_and_who_waits() -> None:
    nodes = [
        node("b", participant=True, rank=1),
        node("a", participant=True, rank=0, expired=True),
        node("c", waiting=True),
        node("d", redundant=True),
    ]
    assert said(nodes, round=2, complete=True) == [
        "run job: round 2 is complete; 2 participants (2 to 3), 1 waiting, 1 redundant; 1 key in its store",
        "    rank 0: a, process 7, no heartbeat: lost",
        "    rank 1: b, process 7",
        "    waits for the next round: c, process 7",
        "    redundant: d, process 7",
    ]


def test_a_round_that_forms_shows_its_deadline() -> None:
    first, second = said([node("a", participant=True)], deadline=1010)
    assert first.startswith("run job: round 0 is complete in 10 s (00:16:50 UTC), or when full; 1 participant ")
    assert second == "    joined: a, process 7"
    assert said([])[0].startswith("run job: round 0 waits for more nodes; 0 participants ")


def test_of_a_closed_rendezvous_no_node_is_missed() -> None:
    shown = said([node("a", participant=True, expired=True)], complete=True, closed=True)
    assert shown[0].startswith("run job: closed; ")
    assert shown[1] == "    rank 0: a, process 7"
