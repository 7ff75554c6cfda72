"""ElasticAccelerator through kills, a shrink and a grow."""

from __future__ import annotations

import pytest

from edriver.model.ids import RoundId, Version
from tests.libraries.worlds import script
from tests.torch.elastic_world import GATE, ordeal, undisturbed, world

pytestmark = [pytest.mark.libraries, pytest.mark.timeout(900)]


def test_nothing_is_lost() -> None:
    accelerated = script("accelerated")
    expected = undisturbed(accelerated)
    with world(accelerated, GATE) as one:
        assert ordeal(one, 2) == [expected] * 2
        assert one.from_versions[1] == Version(RoundId(1, 1), 4), "the boundary before the step that was interrupted"
        assert one.from_versions[2] >= Version(RoundId(1, 2), 4), "or the one after it, if its gradients had arrived"


@pytest.mark.parametrize("name", ["loaders", "refusals", "outside"])
def test_what_a_script_may_ask_of_it(name: str) -> None:
    assert undisturbed(script(name)) is None
