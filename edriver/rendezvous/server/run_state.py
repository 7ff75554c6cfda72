"""The state of one run's rendezvous: compare-and-set that lets changes pass which do not touch one another. Pure.

torch's engine reads the whole state, decides, and writes it back on condition that nothing has changed meanwhile. Of n
nodes that join at once one succeeds and the others begin again: n * n transfers of a state of n entries. Here a change
names the nodes that it is about, and one that was decided on an older state is made if it would have been decided the
same way on the present one. What torch decides on is the header, the node's own lists, and how many participants there
are, compared with none, --nnodes' minimum and its maximum.

The header is the round, whether it is complete or closed, and the deadline. Where it, the node's own lists and the
comparison of the number of participants are as the writer saw them, its decision would be the same on the present
state, and is taken over. A change of the header passes only on the present state.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from typing import Final, TypeAlias

from edriver.model.limits import MAX_RENDEZVOUS_NODES, OutOfBoundsError
from edriver.v1.rendezvous_pb2 import NodeEntry, RendezvousNode, SetStateRequest, StateChange, StateToken

MIN_KEPT_DEPARTURES: Final = 1000
"""How many nodes that have left are remembered at least, for clients that saw them last."""

NodeKey: TypeAlias = tuple[str, int, int]


class RunState:
    """One run's state, and what has changed since when.

    Args:
        incarnation: of the server.

    Attributes:
        version: the number of changes; 0: there is no state yet.
        min_nodes: --nnodes' minimum, as in the last change,
        max_nodes: and its maximum.
        keep_alive: seconds after its last heartbeat at which a node expires.
        participants: how many there are.
    """

    def __init__(self, incarnation: int) -> None:
        self._incarnation = incarnation
        self.version = 0
        self.min_nodes = 0
        self.max_nodes = 0
        self.keep_alive = 0.0
        self.participants = 0
        self._header = StateChange()
        self._header_version = 0
        self._nodes: dict[NodeKey, NodeEntry] = {}
        self._changed: OrderedDict[NodeKey, int] = OrderedDict()  # the node that changed last is last
        self._forgotten = 0  # the last version whose departures are not in _changed any more
        self._heartbeats: OrderedDict[NodeKey, float] = OrderedDict()  # the latest is last

    @property
    def token(self) -> StateToken:
        """The present state's."""
        return StateToken(incarnation=self._incarnation, version=self.version)

    @property
    def nodes(self) -> Iterable[NodeEntry]:
        """All nodes."""
        return self._nodes.values()

    @property
    def last_heartbeat(self) -> float:
        """When a node last sent a heartbeat; 0: never."""
        return next(reversed(self._heartbeats.values()), 0.0)

    def since(self, known: StateToken | None) -> tuple[StateChange, bool]:
        """The header and the nodes that have changed since a state; and whether these are all nodes.

        Args:
            known: that state's token; None: no state is known.
        """
        change = StateChange()
        change.CopyFrom(self._header)
        if known is None or known.incarnation != self._incarnation or known.version < self._forgotten:
            change.nodes.extend(self._nodes.values())
            return change, True
        for key in reversed(self._changed):
            if self._changed[key] <= known.version:
                break
            change.nodes.append(self._nodes.get(key) or NodeEntry(node=_node(key)))
        return change, False

    def set(self, request: SetStateRequest, now: float) -> tuple[bool, bool]:
        """Make a change, if what it was decided on still holds.

        Args:
            request: the change.
            now: the time in seconds, monotonic.

        Returns:
            Whether it was made, and whether the state is another now: a heartbeat does not count.

        Raises:
            OutOfBoundsError: there would be too many nodes.
        """
        if not self._holds(request):
            return False, False
        added = sum(key_of(entry.node) not in self._nodes for entry in request.change.nodes)
        if added + (0 if request.whole else len(self._nodes)) > MAX_RENDEZVOUS_NODES:
            raise OutOfBoundsError(f"a run has {MAX_RENDEZVOUS_NODES} nodes at most")
        return True, self.enforce(request, now)

    def enforce(self, request: SetStateRequest, now: float) -> bool:
        """Make a change without a condition; returns whether the state is another now."""
        self.min_nodes, self.max_nodes = request.min_nodes, request.max_nodes
        self.keep_alive = request.keep_alive.ToTimedelta().total_seconds()
        version = self.version + 1
        changed = self.version == 0
        if _header(request.change) != _header(self._header):
            self._header.CopyFrom(request.change)
            self._header.ClearField("nodes")
            self._header_version = version
            changed = True
        named = {key_of(entry.node): entry for entry in request.change.nodes}
        if request.whole:
            named.update({key: NodeEntry(node=_node(key)) for key in self._nodes if key not in named})
        for key, entry in named.items():
            entry.expired = False
            changed |= self._put(key, entry, version)
            if is_in(entry):
                self._heartbeats[key] = now
                self._heartbeats.move_to_end(key)
        if changed:
            self.version = version
        if len(self._changed) > 2 * len(self._nodes) + MIN_KEPT_DEPARTURES:
            self._changed = OrderedDict((key, at) for key, at in self._changed.items() if key in self._nodes)
            self._forgotten = self.version
        return changed

    def expire(self, now: float) -> None:
        """Mark the nodes whose last heartbeat is too long ago."""
        for key, at in self._heartbeats.items():
            if now - at <= self.keep_alive:
                return
            entry = self._nodes[key]
            if not entry.expired:
                entry.expired = True
                self.version += 1
                self._note_change(key, self.version)

    def _holds(self, request: SetStateRequest) -> bool:
        """Whether the change would be the same, had its writer seen the present state."""
        if not request.HasField("token"):
            return self.version == 0
        seen = request.token
        if self.version == 0 or seen.incarnation != self._incarnation:
            return False
        if seen.version == self.version:
            return True
        if request.whole or seen.version < max(self._header_version, self._forgotten):
            return False
        if _header(request.change) != _header(self._header):
            return False
        present = self.participants
        for entry in request.change.nodes:
            key = key_of(entry.node)
            if self._changed.get(key, 0) > seen.version:
                return False
            before = self._nodes.get(key)
            present += entry.participant - (before is not None and before.participant)
        return self._class(present, request) == self._class(request.participants, request)

    @staticmethod
    def _class(count: int, request: SetStateRequest) -> tuple[bool, int, int]:
        """What torch's engine distinguishes in a number of participants."""
        return count == 0, _sign(count - request.min_nodes), _sign(count - request.max_nodes)

    def _put(self, key: NodeKey, entry: NodeEntry, version: int) -> bool:
        before = self._nodes.get(key)
        if before == entry or (before is None and not is_in(entry)):
            return False
        self.participants += entry.participant - (before is not None and before.participant)
        if is_in(entry):
            self._nodes[key] = entry
        else:
            del self._nodes[key], self._heartbeats[key]
        self._note_change(key, version)
        return True

    def _note_change(self, key: NodeKey, version: int) -> None:
        self._changed[key] = version
        self._changed.move_to_end(key)


def key_of(node: RendezvousNode) -> NodeKey:
    """What tells one node from another."""
    return node.address, node.pid, node.local_id


def is_in(entry: NodeEntry) -> bool:
    """Whether a node is in one of the lists."""
    return entry.participant or entry.waiting or entry.redundant


def _node(key: NodeKey) -> RendezvousNode:
    return RendezvousNode(address=key[0], pid=key[1], local_id=key[2])


def _header(change: StateChange) -> tuple[int, bool, bool, int]:
    deadline = change.deadline.ToNanoseconds() if change.HasField("deadline") else -1
    return change.round, change.complete, change.closed, deadline


def _sign(number: int) -> int:
    return (number > 0) - (number < 0)
