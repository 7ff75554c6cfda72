"""What kinds of training end with, after kills in the backward pass and in the optimizer, a shrink and a grow.

Each ends with the bits of an undisturbed run, and goes back no further than to the last boundary.
"""

from __future__ import annotations

import pytest

from edriver.model.ids import RoundId, Version
from tests.torch.elastic_world import GATE, Death, ordeal, undisturbed, world
from tests.torch.kinds_of_training import EXPOSED, KINDS, sharded, validates


@pytest.mark.parametrize(("kind", "size"), [*((kind, 2) for kind in KINDS), ("adam", 4)])
def test_nothing_is_lost(kind: str, size: int) -> None:
    expected = undisturbed(KINDS[kind])
    with world(KINDS[kind], GATE) as one:
        assert ordeal(one, size) == [expected] * size
        assert one.from_versions[1] == Version(RoundId(1, 1), 4), "the boundary before the step that was interrupted"
        assert one.from_versions[2] >= Version(RoundId(1, 2), 4), "or the one after it, if its gradients had arrived"


@pytest.mark.parametrize("kind", EXPOSED)
def test_what_is_lost_is_bounded_and_said(kind: str) -> None:
    expected = undisturbed(EXPOSED[kind])
    with world(EXPOSED[kind]) as one:
        one.form(one.start(None, Death(13, "late")))
        one.form([*one.await_death(), *one.start(None)])
        assert one.finish() == [expected] * 2
        boundary = one.from_versions[1].boundaries
        assert boundary > 0, "the state has committed by itself"
        assert one.lost[1] == (6 if kind == "cadence" else 13) - boundary


def test_a_loss_in_a_validation_leaves_none_of_its_modes_and_a_newcomer_has_those_of_the_others() -> None:
    expected = undisturbed(validates)
    with world(validates) as one:
        one.form(one.start(None, Death(6, "validation")))
        one.form([*one.await_death(), *one.start(None)])
        assert one.finish() == [expected] * 2


def test_a_model_that_is_sharded_inside_the_function_is_refused_at_the_first_boundary() -> None:
    with world(sharded) as one:
        one.form(one.start(None, None))
        with pytest.raises(AssertionError, match=r"Use edriver\.ShardedState.*, DistributedDataParallel"):
            one.finish()
