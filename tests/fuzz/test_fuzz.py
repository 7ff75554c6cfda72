"""Each method gets thousands of invalid inputs: nothing crashes, they have no effect, and other callers are served.

`python -m tests.fuzz --inputs 100000` sends more; the seed that it prints replays a run.
"""

from __future__ import annotations

import asyncio

import pytest

from tests.fuzz.targets import TARGETS, Target

INPUTS = 600
"""Of each target."""


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.__name__)
def test_invalid_input_has_no_effect(target: type[Target]) -> None:
    asyncio.run(asyncio.wait_for(target(seed=1).run(INPUTS), 600))
