"""What a process knows of a run's state at the server. All backends of the run in the process share it."""

from __future__ import annotations

import datetime
import threading
from collections.abc import Mapping

from torch.distributed.elastic.rendezvous.dynamic_rendezvous import _NodeDesc

from edriver.rendezvous.torchrun.engine_state import EngineState, Snapshot, node_of
from edriver.v1.rendezvous_pb2 import StateChange, StateToken


class Replica:
    """A copy of the state that follows its changes. Its lock stands around all of it.

    Attributes:
        lock: to be held while anything else is used.
        refreshing: to be held while the server is asked for news.
        refreshed_at: when it was asked last, in seconds, monotonic.
    """

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.refreshing = threading.Lock()
        self.refreshed_at = float("-inf")
        self._token: StateToken | None = None
        self._header = StateChange()
        self._participants: dict[_NodeDesc, int] = {}
        self._waiting: set[_NodeDesc] = set()
        self._redundant: set[_NodeDesc] = set()
        self._expired: set[_NodeDesc] = set()
        self._snapshot: Snapshot | None = None  # of what is above, once it was asked for

    @property
    def token(self) -> StateToken | None:
        """The token of the state that it has; None: it has none."""
        return self._token

    def take(self, token: StateToken | None, change: StateChange, whole: bool) -> None:
        """Take in an answer of the server. One that is older than what is known changes nothing.

        Args:
            token: of the state; None if there is none.
            change: the header, and nodes.
            whole: whether these are all.
        """
        if token is None:
            self._token = None
            return
        known = self._token
        if known is not None and (token.incarnation, token.version) <= (known.incarnation, known.version):
            return
        if whole:
            for nodes in (self._participants, self._waiting, self._redundant, self._expired):
                nodes.clear()
        self.apply(change)
        self._token = token

    def apply(self, change: StateChange) -> None:
        """Make a change: the header, and nodes."""
        self._snapshot = None
        for entry in change.nodes:
            node = node_of(entry.node)
            if entry.participant:
                self._participants[node] = entry.rank
            else:
                self._participants.pop(node, None)
            for nodes, member in (
                (self._waiting, entry.waiting),
                (self._redundant, entry.redundant),
                (self._expired, entry.expired),
            ):
                if member:
                    nodes.add(node)
                else:
                    nodes.discard(node)
        self._header = change
        self._header.ClearField("nodes")

    def state(self, own: Mapping[_NodeDesc, datetime.datetime], last: EngineState | None = None) -> EngineState:
        """The state, for an engine to change.

        Args:
            own: the last heartbeats of the nodes of the backend that asks.
            last: what the backend has returned before, with the same heartbeats: this again, if nothing has changed.
        """
        if self._snapshot is None:
            lists = map(frozenset, (self._waiting, self._redundant, self._expired))
            self._snapshot = Snapshot(self._header, dict(self._participants), *lists)
        if last is not None and last.is_still(self._snapshot):
            return last
        return EngineState(self._snapshot, own)

    def same(self, change: StateChange) -> bool:
        """Whether a change would change nothing: it is a heartbeat."""
        header = self._header
        if (change.round, change.complete, change.closed, change.deadline) != (
            *(header.round, header.complete, header.closed),
            header.deadline,
        ):
            return False
        for entry in change.nodes:
            node = node_of(entry.node)
            if (
                *(self._participants.get(node, -1), node in self._waiting),
                *(node in self._redundant, node in self._expired),
            ) != (entry.rank if entry.participant else -1, entry.waiting, entry.redundant, False):
                return False
        return True
