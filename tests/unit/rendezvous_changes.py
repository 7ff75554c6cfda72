"""What nodes ask of a rendezvous's state."""

from __future__ import annotations

from google.protobuf.duration_pb2 import Duration

from edriver.rendezvous.server.run_state import RunState
from edriver.v1.rendezvous_pb2 import NodeEntry, RendezvousNode, SetStateRequest, StateChange, StateToken


def entry(name: str, **lists: bool) -> NodeEntry:
    return NodeEntry(node=RendezvousNode(address=name, pid=1), **lists)


def change(
    token: StateToken | None,
    *entries: NodeEntry,
    count: int,
    nodes: tuple[int, int] = (3, 5),
    **header: bool | int,
) -> SetStateRequest:
    return SetStateRequest(
        token=token,
        change=StateChange(nodes=entries, **header),  # type: ignore[arg-type]
        participants=count,
        min_nodes=nodes[0],
        max_nodes=nodes[1],
        keep_alive=Duration(seconds=15),
    )


def names(state: RunState) -> list[str]:
    return sorted(node.node.address for node in state.nodes)
