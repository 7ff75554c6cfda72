"""Rounds of several ranks over NCCL, which share one GPU: each is a host of its own to NCCL (workload.share_the_gpu).

As in test_kinds_of_training.py: after kills, a shrink and a grow, scripts end with the bits of an undisturbed run.
"""

from __future__ import annotations

import functools
import os

import pytest
import torch

from benchmarks.workload import share_the_gpu
from edriver.agent.workers.worker_environment import NCCL_DEFAULTS
from tests import needs
from tests.torch import kinds_of_training as kinds
from tests.torch.elastic_world import GATE, Death, Fate, Script, ordeal, undisturbed, world

pytestmark = pytest.mark.needs(needs.GPU)


def on_the_gpu(kind: Script, fate: Fate) -> object:
    """A kind of training, in a worker's process."""
    share_the_gpu()
    os.environ |= {kinds.DEVICE_VARIABLE: "cuda", **NCCL_DEFAULTS}
    return kind(fate)


def fused(fate: Fate) -> str:
    """Adam whose step is one kernel; bfloat16."""
    return kinds.scaled(fate, torch.amp.GradScaler("cuda", enabled=False), torch.bfloat16, fused=True)


def behind(fate: Fate) -> str:
    """The host runs ahead: each step leaves the device with a tenth of a second of work."""
    return kinds.adam(fate, after=lambda: torch.cuda._sleep(200_000_000))  # type: ignore[no-untyped-call]


LOSSLESS = [kinds.adam, kinds.closure, kinds.scaler_fp16, fused, kinds.torchrun]


@pytest.mark.parametrize("kind", LOSSLESS, ids=lambda kind: kind.__name__)
def test_nothing_is_lost(kind: Script) -> None:
    script = functools.partial(on_the_gpu, kind)
    expected = undisturbed(script)
    with world(script, GATE) as one:
        assert ordeal(one, 2) == [expected] * 2


@pytest.mark.parametrize("kind", [kinds.metric, behind], ids=lambda kind: kind.__name__)
def test_what_may_be_lost_is_trained_again(kind: Script) -> None:
    """Where the device had not reached the last boundary, or all are torn, a round begins from a commit."""
    script = functools.partial(on_the_gpu, kind)
    expected = undisturbed(script)
    with world(script) as one:
        one.form(one.start(None, Death(13, "late" if kind is kinds.metric else "backward")))
        one.form([*one.await_death(), *one.start(None)])
        assert one.finish() == [expected] * 2


def test_four_ranks() -> None:
    script = functools.partial(on_the_gpu, kinds.adam)
    expected = undisturbed(script)
    with world(script, GATE) as one:
        assert ordeal(one, 4) == [expected] * 4
