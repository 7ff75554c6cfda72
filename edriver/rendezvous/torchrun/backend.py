"""torch's RendezvousBackend on `edriver rendezvous`: get_state and set_state with compare-and-set tokens.

Only what the engine has touched is written, and only what has changed since is read. A change that is made is answered
by that alone: of n agents that join at once none reads what the others have written meanwhile, until it polls. Its
token stays what it was, so a decision that rests on what it has not read is refused like any other that is stale.

While the server is away, agents continue with the last state that they know, and their heartbeats do not fail, or torch
would end their workers.
"""

from __future__ import annotations

import datetime
import pickle
import time
from typing import Any, Final

from torch.distributed.elastic.rendezvous.api import RendezvousConnectionError, RendezvousStateError
from torch.distributed.elastic.rendezvous.dynamic_rendezvous import RendezvousBackend, _NodeDesc, _RendezvousState

from edriver.rendezvous.torchrun.client import RendezvousClient
from edriver.rendezvous.torchrun.engine_state import EngineState, change_of, touched
from edriver.rendezvous.torchrun.replica import Replica
from edriver.v1.rendezvous_pb2 import (
    GetStateRequest,
    GetStateResponse,
    SetStateRequest,
    SetStateResponse,
    StateChange,
    StateToken,
)

NAME: Final = "edriver"
"""The name of the backend."""

REFRESH_INTERVAL: Final = 0.02
"""Seconds for which the server's answer is reused: for processes with many backends of one run."""


class EdriverBackend(RendezvousBackend):
    """The state of a run, at a server. The bytes that it takes and returns are for torch's engine in this process;
    those that it has returned are of use until its next call.

    Args:
        client: to the server.
        replica: what this process knows of the state.
        run_id: the run.
        nodes: --nnodes, as (minimum, maximum).
        keep_alive: seconds after its last heartbeat at which a node expires.
        limit: seconds for which a server that is away is waited for.

    Raises:
        ValueError: the run has no name.
    """

    def __init__(
        self,
        client: RendezvousClient,
        replica: Replica,
        run_id: str,
        nodes: tuple[int, int],
        keep_alive: float,
        limit: float,
    ) -> None:
        if not run_id:
            raise ValueError("The run id must be a non-empty string.")
        self._client = client
        self._replica = replica
        self._run_id = run_id
        self._min_nodes, self._max_nodes = nodes
        self._keep_alive = keep_alive
        self._limit = limit
        self._heartbeats: dict[_NodeDesc, datetime.datetime] = {}
        self._last: EngineState | None = None

    @property
    def name(self) -> str:
        return NAME

    def get_state(self) -> tuple[bytes, Any] | None:
        """See base class. While the server is away, this is the last state that was known."""
        replica = self._replica
        with replica.refreshing:
            began = time.monotonic()
            if began - replica.refreshed_at >= REFRESH_INTERVAL:
                try:
                    self._refresh(0.0 if replica.token is not None else self._limit)
                except RendezvousConnectionError:
                    if self._is_out_of_date(began):
                        raise
        return self._known()

    def set_state(self, state: bytes, token: Any | None = None) -> tuple[bytes, Any, bool] | None:
        """See base class.

        A heartbeat neither waits for a server that is away nor fails: torch's agent would end its workers. A server
        that comes back waits for each node's heartbeats again.
        """
        if token and not isinstance(token, StateToken):
            return self._refused()
        wanted = _unpickled(state)
        nodes, whole = touched(wanted)
        change = change_of(wanted, nodes)
        request = SetStateRequest(
            run_id=self._run_id,
            token=token or None,
            change=change,
            whole=whole,
            participants=len(wanted.participants),
            min_nodes=self._min_nodes,
            max_nodes=self._max_nodes,
            brief=not whole,
        )
        request.keep_alive.FromMicroseconds(int(self._keep_alive * 1e6))
        with self._replica.lock:
            if self._replica.token is not None:
                request.known.CopyFrom(self._replica.token)
            heartbeat = not whole and self._replica.same(change)
        call = self._client.rendezvous.SetState
        asked_at = time.monotonic()
        try:
            answer: SetStateResponse = self._client.call(call, request, 0.0 if heartbeat else self._limit)
        except RendezvousConnectionError:
            if not heartbeat or self._is_out_of_date(asked_at):
                raise
            done = True
        else:
            done = answer.done
            if done and not answer.HasField("token"):
                self._apply(change, request.known)
            else:
                self._take(answer, asked_at)
        self._last = None
        if done:
            for node in nodes:
                if node in wanted.last_heartbeats:
                    self._heartbeats[node] = wanted.last_heartbeats[node]
                else:
                    self._heartbeats.pop(node, None)
        known = self._known()
        return known and (*known, done)

    def _refresh(self, limit: float) -> None:
        call = self._client.rendezvous.GetState
        request = GetStateRequest(run_id=self._run_id, known=self._replica.token)
        asked_at = time.monotonic()
        answer: GetStateResponse = self._client.call(call, request, limit)
        self._take(answer, asked_at)

    def _is_out_of_date(self, now: float) -> bool:
        """Whether the state that this process knows is too old to use."""
        return self._replica.token is None or now - self._replica.refreshed_at > self._limit

    def _refused(self) -> tuple[bytes, Any, bool] | None:
        known = self.get_state()
        return known and (*known, False)

    def _take(self, answer: GetStateResponse | SetStateResponse, asked_at: float) -> None:
        with self._replica.lock:
            self._replica.refreshed_at = max(asked_at, self._replica.refreshed_at)
            self._replica.take(answer.token if answer.HasField("token") else None, answer.change, answer.whole)

    def _apply(self, change: StateChange, known: StateToken) -> None:
        """The server has made a change of the state that was known. What else has changed is not known yet, so the
        token stays: a change that is decided on this is refused where that matters.
        """
        replica, answered_at = self._replica, time.monotonic()
        with replica.lock:
            if replica.token == known:
                replica.apply(change)
                return
        with replica.refreshing:  # another thread has brought news, perhaps from before this change
            if replica.refreshed_at < answered_at:
                self._refresh(self._limit)

    def _known(self) -> tuple[bytes, StateToken] | None:
        with self._replica.lock:
            token = self._replica.token
            if token is None:
                return None
            self._last = self._replica.state(self._heartbeats, self._last)  # the ticket is for an object that lives
        return pickle.dumps(self._last), token


def _unpickled(state: bytes) -> _RendezvousState:
    """Unpickle a state that torch's engine in this process has pickled.

    Raises:
        RendezvousStateError: it is not a state.
    """
    try:
        found = pickle.loads(state)  # noqa: S301  the caller's own: nothing pickled comes over the network
    except Exception as error:
        raise RendezvousStateError("The rendezvous state is corrupt: it cannot be read.") from error
    if not isinstance(found, _RendezvousState):
        raise RendezvousStateError(f"The rendezvous state is corrupt: it is a {type(found).__name__}.")
    return found
