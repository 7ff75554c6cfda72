"""A digest of a worker's shards, for scripts under test: it imports nothing that a worker has not imported."""

from __future__ import annotations

import hashlib

import edriver


def shard_digest(state: edriver.ShardedState) -> str:
    """Of this worker's shards of the parameters, and of all that the optimizer keeps of them."""
    found = hashlib.sha256()
    for parameter in state.model.parameters():
        for tensor in (parameter, *state.optimizer.state[parameter].values()):
            part = tensor.to_local() if hasattr(tensor, "to_local") else tensor
            found.update(part.detach().numpy().tobytes())
    return found.hexdigest()[:16]
