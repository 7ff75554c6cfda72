"""Each method takes thousands of inputs that nobody should send: nothing crashes, nothing happens, others are served.

`python -m tests.fuzz --inputs 100000` sends more; the seed that it prints replays a run.
"""

from __future__ import annotations

import asyncio

import pytest

from tests.fuzz.targets import TARGETS, Target

INPUTS = 600
"""Of each target."""


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.__name__)
def test_nothing_comes_of_it(target: type[Target]) -> None:
    asyncio.run(asyncio.wait_for(target(seed=1).run(INPUTS), 600))
