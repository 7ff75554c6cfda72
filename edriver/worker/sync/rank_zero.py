"""Values that all members of a round take from rank 0, though each may have had its own: through the round's store."""

from __future__ import annotations

import json
from typing import Any

from edriver.model.plan import Assignment
from edriver.worker.backend import torch_groups

_KEY = "edriver/from-rank-0"


def values_of_rank_0(values: dict[str, Any], assignment: Assignment) -> dict[str, Any]:
    """What the round's source has of these values. Called once a round, by all of its members.

    Args:
        values: this worker's own: numbers, texts, bools, None, and lists and dicts of those.
        assignment: this worker's place.

    Raises:
        TypeError: one of the source's is of another type.
        RuntimeError: the connection to the store broke.
    """
    if assignment.size == 1:
        return values
    store = torch_groups.default_store()
    if assignment.rank == assignment.sources[0]:
        store.set(_KEY, json.dumps(values))
        return values
    found: dict[str, Any] = json.loads(bytes(store.get(_KEY)))
    return found
