"""States of torch's rendezvous engine, as its backends keep them."""

from __future__ import annotations

import pickle
from datetime import UTC, datetime

from torch.distributed.elastic.rendezvous.dynamic_rendezvous import _NodeDesc, _RendezvousState

A, B = _NodeDesc("a", 1, 0), _NodeDesc("b", 2, 0)


def state_of(*nodes: _NodeDesc, number: int = 0) -> bytes:
    """A state of the engine's own class, pickled by the engine."""
    state = _RendezvousState()
    state.round = number
    for node in nodes:
        state.participants[node] = 0
        state.last_heartbeats[node] = datetime.now(UTC)
    return pickle.dumps(state)


def read(found: tuple[bytes, object] | tuple[bytes, object, bool] | None) -> _RendezvousState:
    """The state that a backend has returned."""
    assert found is not None
    state: _RendezvousState = pickle.loads(found[0])
    return state
