"""torch's rendezvous state, as its engine sees it and as it goes over the wire.

torch's engine (torch 2.13, dynamic_rendezvous.py) takes its state as bytes that it unpickles, changes the object in
place, and gives bytes back. Here these bytes never leave the process. What the engine is given is a ticket: unpickled,
it is an object that has been made from the server's messages; and such an object, pickled, is a ticket again. It also
knows which nodes the engine has touched: only those are sent.

Undocumented interfaces of torch that are used: `_NodeDesc` (addr, pid, local_id) and `_RendezvousState` (round,
complete, deadline, closed, participants, wait_list, redundancy_list, last_heartbeats). The engine reads heartbeats of
its own node, and of others only to find those that are too old. The server determines which ones are, by one clock.
"""

from __future__ import annotations

import datetime
import itertools
import weakref
from collections.abc import Iterable, Iterator, Mapping, MutableMapping, MutableSet
from typing import Any, Final, NamedTuple

from torch.distributed.elastic.rendezvous.dynamic_rendezvous import _NodeDesc, _RendezvousState

from edriver.v1.rendezvous_pb2 import NodeEntry, RendezvousNode, StateChange

LONG_AGO: Final = datetime.datetime.min.replace(tzinfo=datetime.UTC)
"""The last heartbeat of a node that has expired."""

_numbers = itertools.count(1)
_tickets: weakref.WeakValueDictionary[int, EngineState] = weakref.WeakValueDictionary()


class _NodeDict(MutableMapping[_NodeDesc, Any]):
    """A dictionary that is copied when it is first changed, and that records which nodes were changed."""

    def __init__(self, values: Mapping[_NodeDesc, Any], touched: set[_NodeDesc]) -> None:
        self._shared = values
        self._own: dict[_NodeDesc, Any] | None = None
        self._touched = touched

    def __getitem__(self, node: _NodeDesc) -> Any:
        return (self._shared if self._own is None else self._own)[node]

    def __contains__(self, node: object) -> bool:
        return node in (self._shared if self._own is None else self._own)

    def __iter__(self) -> Iterator[_NodeDesc]:
        return iter(self._shared if self._own is None else self._own)

    def __len__(self) -> int:
        return len(self._shared if self._own is None else self._own)

    def __setitem__(self, node: _NodeDesc, value: Any) -> None:
        self._copy()[node] = value
        self._touched.add(node)

    def __delitem__(self, node: _NodeDesc) -> None:
        del self._copy()[node]
        self._touched.add(node)

    def _copy(self) -> dict[_NodeDesc, Any]:
        if self._own is None:
            self._own = dict(self._shared)
        return self._own


class _NodeSet(MutableSet[_NodeDesc]):
    """A set that is, and does."""

    def __init__(self, nodes: frozenset[_NodeDesc], touched: set[_NodeDesc]) -> None:
        self._nodes: frozenset[_NodeDesc] | set[_NodeDesc] = nodes
        self._touched = touched

    def __contains__(self, node: object) -> bool:
        return node in self._nodes

    def __iter__(self) -> Iterator[_NodeDesc]:
        return iter(self._nodes)

    def __len__(self) -> int:
        return len(self._nodes)

    def add(self, node: _NodeDesc) -> None:
        self._nodes = {*self._nodes, node}
        self._touched.add(node)

    def discard(self, node: _NodeDesc) -> None:
        self._nodes = set(self._nodes) - {node}
        self._touched.add(node)


class Snapshot(NamedTuple):
    """A state as the server has sent it, which is not changed any more.

    Attributes:
        header: round, complete, closed and deadline.
        participants: nodes and their ranks,
        waiting: nodes,
        redundant: nodes,
        expired: nodes.
    """

    header: StateChange
    participants: Mapping[_NodeDesc, int]
    waiting: frozenset[_NodeDesc]
    redundant: frozenset[_NodeDesc]
    expired: frozenset[_NodeDesc]


class EngineState(_RendezvousState):
    """A state that torch's engine may change; its pickle is a ticket for this very object, in this process.

    Args:
        seen: the state.
        heartbeats: the last ones of nodes of this process.

    Attributes:
        touched: the nodes that the engine has changed.
    """

    def __init__(self, seen: Snapshot, heartbeats: Mapping[_NodeDesc, datetime.datetime]) -> None:
        header = seen.header
        self._seen = seen
        self.touched: set[_NodeDesc] = set()
        self.round = header.round
        self.complete = header.complete
        self.closed = header.closed
        self.deadline = header.deadline.ToDatetime(datetime.UTC) if header.HasField("deadline") else None
        self.participants: Any = _NodeDict(seen.participants, self.touched)
        self.wait_list: Any = _NodeSet(seen.waiting, self.touched)
        self.redundancy_list: Any = _NodeSet(seen.redundant, self.touched)
        beats = {**heartbeats, **dict.fromkeys(seen.expired, LONG_AGO)}
        self.last_heartbeats: Any = _NodeDict(beats, self.touched)
        self._number = next(_numbers)
        _tickets[self._number] = self
        self._made_as = self._header()

    def is_still(self, seen: Snapshot) -> bool:
        """Whether it was made of that, and the engine has changed nothing: then the engine may have it once more."""
        return self._seen is seen and not self.touched and self._header() == self._made_as

    def _header(self) -> tuple[object, ...]:
        return self.round, self.complete, self.closed, self.deadline

    def __reduce__(self) -> tuple[Any, ...]:
        """The ticket."""
        return _take, (self._number,)


def _take(number: int) -> EngineState:
    """Hand a ticket in."""
    return _tickets[number]


def touched(state: _RendezvousState) -> tuple[set[_NodeDesc], bool]:
    """The nodes that the engine has changed, and whether these are all that there are."""
    if isinstance(state, EngineState):
        return state.touched, False
    return {*state.participants, *state.wait_list, *state.redundancy_list}, True


def change_of(state: _RendezvousState, nodes: Iterable[_NodeDesc]) -> StateChange:
    """A state's header and some of its nodes, for the wire."""
    change = StateChange(round=state.round, complete=state.complete, closed=state.closed)
    if state.deadline is not None:
        change.deadline.FromDatetime(state.deadline)
    for node in nodes:
        rank = state.participants.get(node)
        change.nodes.append(
            NodeEntry(
                node=RendezvousNode(address=node.addr, pid=node.pid, local_id=node.local_id),
                participant=rank is not None,
                rank=rank or 0,
                waiting=node in state.wait_list,
                redundant=node in state.redundancy_list,
            )
        )
    return change


def node_of(message: RendezvousNode) -> _NodeDesc:
    """Torch's name for a node."""
    return _NodeDesc(message.address, message.pid, message.local_id)
