"""What all members take from rank 0."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from edriver.model.ids import RoundId
from edriver.model.plan import SINGLE_WORKER
from edriver.worker import context
from edriver.worker.state.object_state import ObjectState
from edriver.worker.sync.rank_zero import values_of_rank_0
from tests.torch.ranks import run_ranks


def synced(rank: int) -> Any:
    place = replace(SINGLE_WORKER, round_id=RoundId(1, 1), rank=rank, size=2)
    context.current.place.enter(place)
    state = ObjectState(best=[1.5, float("inf"), "x", None] if rank == 0 else 9, own=rank, from_rank_0=("best",))
    state.sync()
    return state.best, state.own


def test_all_have_what_rank_0_had_and_keep_the_rest() -> None:
    assert run_ranks(synced, 2) == [([1.5, float("inf"), "x", None], 0), ([1.5, float("inf"), "x", None], 1)]


def test_a_world_of_one_asks_no_store() -> None:
    values = {"best": object()}
    assert values_of_rank_0(values, SINGLE_WORKER) is values


def refused(rank: int) -> str:
    if rank == 0:
        place = replace(SINGLE_WORKER, rank=rank, size=2)
        with pytest.raises(TypeError, match="not JSON serializable"):
            values_of_rank_0({"best": object()}, place)
    return "refused"


def test_what_has_no_plain_text_is_refused() -> None:
    assert run_ranks(refused, 2) == ["refused"] * 2
