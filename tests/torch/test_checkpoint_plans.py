"""Plans that are agreed through a store: who waits for whom, and what is skipped."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch._C._distributed_c10d import HashStore
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.planner import SavePlan

from edriver.worker.checkpoints.memory.plans import PREFIX, PlanAction, PlanExchange, Share, Skipped, next_action
from edriver.worker.checkpoints.pickles import ForgedError

SECRET = bytes(32)


def plan(**state: Any) -> SavePlan:
    planner = DefaultSavePlanner()
    planner.set_up_planner(state, is_coordinator=False)
    return planner.create_local_plan()


def exchanges(size: int, timeout: float = 30.0) -> list[PlanExchange]:
    store = HashStore()
    return [PlanExchange(store, rank, size, SECRET, timeout) for rank in range(size)]


def together(ranks: Sequence[PlanExchange], plans: Sequence[SavePlan]) -> list[Share | Skipped]:
    """All ranks save at once."""
    found: list[Any] = [None] * len(ranks)

    def save(rank: int) -> None:
        found[rank] = ranks[rank].share(plans[rank])

    threads = [threading.Thread(target=save, args=(rank,)) for rank in range(len(ranks))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


def layouts(found: Sequence[Share | Skipped]) -> set[bytes]:
    assert all(isinstance(share, Share) for share in found), found
    return {share.layout for share in found if isinstance(share, Share)}


def names(found: Sequence[Share | Skipped]) -> list[str]:
    return sorted(item.index.fqn for share in found if isinstance(share, Share) for item, _place in share.shard.tensors)


@pytest.mark.parametrize(
    ("newest", "sent", "unchanged", "shared", "step"),
    [
        (0, 0, False, 0, PlanAction.RENEW),
        (1, 0, False, 0, PlanAction.SEND),
        (1, 1, True, 0, PlanAction.AWAIT),
        (1, 1, True, 1, PlanAction.USE),
        (1, 1, False, 1, PlanAction.RENEW),
        (1, 1, False, 0, PlanAction.RENEW),
        (2, 1, True, 1, PlanAction.SEND),
        (2, 2, True, 1, PlanAction.AWAIT),
    ],
)
def test_what_a_rank_does_next(newest: int, sent: int, unchanged: bool, shared: int, step: PlanAction) -> None:
    assert next_action(newest, sent, unchanged, shared) is step


def test_the_first_save_waits_for_all_and_stores_what_they_have_in_common_once() -> None:
    ranks = exchanges(3)
    plans = [plan(a=torch.ones(2), b=torch.ones(2), c=torch.ones(2))] * 3
    first = together(ranks, plans)
    assert len(layouts(first)) == 1
    assert names(first) == ["a", "b", "c"]
    assert together(ranks, plans) == first


def test_a_structure_that_changes_on_all_at_once_costs_saves_and_never_mixes() -> None:
    ranks = exchanges(3)
    small, large = plan(a=torch.ones(2)), plan(a=torch.ones(2), b=torch.ones(3))
    (before,) = layouts(together(ranks, [small] * 3))
    saves = [together(ranks, [large] * 3) for _ in range(3)]
    (after,) = layouts(saves[-1])
    assert after != before
    for found in saves:
        assert {share.layout for share in found if isinstance(share, Share)} <= {after}
    skipped = [share for share in saves[0] if isinstance(share, Skipped)]
    assert any("the structure of the state has changed (b is new)" in share.reason for share in skipped)


def test_a_structure_that_changes_on_one_rank_alone_is_followed_by_all() -> None:
    ranks = exchanges(3)
    small, large = plan(a=torch.ones(2)), plan(a=torch.ones(2), b=torch.ones(3))
    (before,) = layouts(together(ranks, [small] * 3))
    found: list[Share | Skipped] = []
    for _ in range(3):
        found = [ranks[2].share(large), ranks[0].share(small), ranks[1].share(small)]
        assert {share.layout for share in found if isinstance(share, Share)} - {before} == {
            share.layout for share in found if isinstance(share, Share)
        }
    assert names(found) == ["a", "b"]
    assert len(layouts(found)) == 1


class CountingStore:
    """A store that counts waits, of which none is served."""

    def __init__(self) -> None:
        self.store, self.waits = HashStore(), 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.store, name)

    def wait(self, keys: list[str], timeout: Any) -> None:
        del keys, timeout
        self.waits += 1
        raise RuntimeError("timed out")


def test_a_rank_that_never_saves_is_waited_for_once_and_named() -> None:
    store = CountingStore()
    ranks = [PlanExchange(store, rank, 3, SECRET) for rank in range(3)]
    plans = [plan(a=torch.ones(2))] * 2
    for _ in range(3):
        found = together(ranks[:2], plans)
        assert {share.reason for share in found if isinstance(share, Skipped)} == {
            "not all 3 ranks have come to their first save"
        }
        assert store.waits == 2
    assert isinstance(ranks[2].share(plans[0]), Skipped)
    assert isinstance(ranks[0].share(plans[0]), Share), "it has come"
    assert isinstance(ranks[2].share(plans[0]), Share)


def test_a_state_that_the_planner_refuses_is_skipped_on_all_with_its_reason() -> None:
    ranks = exchanges(2)
    found = together(ranks, [plan(a=torch.ones(2)), plan(a=1)])
    assert all(isinstance(share, Skipped) and share.cause == "global plan" for share in found)


def test_a_plan_that_no_member_has_sent_is_not_unpickled() -> None:
    store = HashStore()
    rank = PlanExchange(store, 1, 2, SECRET, 30.0)
    store.set(f"{PREFIX}/generation", "1")
    store.set(f"{PREFIX}/1/share/1", "not a member's, though long enough to have a MAC")
    with pytest.raises(ForgedError, match="does not come from a member"):
        rank.share(plan(a=torch.ones(2)))
