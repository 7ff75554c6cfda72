"""Lightning takes steps of the same samples whatever the number of workers, through losses in the middle of a step."""

from __future__ import annotations

import functools
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.libraries.worlds import in_lightning
from tests.torch.elastic_world import Death, world
from tests.torch.global_batch_training import MICRO_BATCH, SAMPLES, SIZE, STEPS, Kind
from tests.torch.global_batch_training import Trained as ByHand

pytestmark = [pytest.mark.libraries, pytest.mark.timeout(900)]

Options = tuple[tuple[str, Any], ...]
PLAIN: Options = ()


@functools.cache
def undisturbed(size: int, kind: Options = PLAIN) -> tuple[Any, ...]:
    with world(in_lightning(**dict(kind))) as one:
        one.form(one.start(*[None] * size))
        return tuple(one.finish())


def resized(kind: Options) -> list[Any]:
    """4 workers, then 3, 1, 2 and 3: by losses, and by an agreement of all members."""
    with world(in_lightning(**dict(kind)), gate_at=7) as one:
        one.form(one.start(None, Death(6, "micro-batch 0"), Death(3, "micro-batch 1"), Death(1, "micro-batch 2")))
        one.form(one.await_death())
        one.form(one.await_death())
        one.form([*one.await_death(), *one.start(None)])
        one.form([*one.interrupt(), *one.start(None)])
        return one.finish()


def assert_as(found: list[Any], expected: Any, tolerance: float = 1e-10) -> None:
    for one in found:
        assert one.parameters == pytest.approx(expected.parameters, rel=tolerance, abs=tolerance * 1e-2)


KINDS: dict[str, Options] = {
    "plain": PLAIN,
    "ignored labels": (("ignored", True),),
    "clipping": (("options", (("max_epochs", 2), ("gradient_clip_val", 0.1))), ("scheduled", True)),
}


@functools.cache
def by_hand(kind: str) -> ByHand:
    """A loop over GlobalBatch, which one worker runs."""
    with world(Kind(ignored=kind == "ignored labels")) as one:
        one.form(one.start(None))
        (result,) = one.finish()
        assert isinstance(result, ByHand)
        return result


@pytest.mark.parametrize("kind", ["plain", "ignored labels"])
def test_a_step_is_that_of_a_loop_written_by_hand(kind: str) -> None:
    (alone,) = undisturbed(1, KINDS[kind])
    assert_as([alone], by_hand(kind))


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("kind", KINDS)
def test_any_number_of_workers_trains_the_same(kind: str, size: int) -> None:
    (alone,) = undisturbed(1, KINDS[kind])
    found = undisturbed(size, KINDS[kind])
    assert_as(list(found), alone)
    for step in range(STEPS):
        samples = [n for one in found for at, numbers in one.computed if at == step for n in numbers]
        assert sorted(samples) == sorted(n for at, numbers in alone.computed if at == step for n in numbers)
        assert len(samples) == len(set(samples)) == (SIZE if step % 5 < 4 else SAMPLES % SIZE)
        logged = {"samples_step": len(samples), "last_step": max(samples), "first": min(samples)}
        for one in found:
            for name, value in (alone.steps[step] | logged).items():
                assert one.steps[step][name] == pytest.approx(value, rel=1e-6), (name, step)
    for one in found:
        assert one.events == alone.events
        assert one.rates == alone.rates
        for epoch, metrics in enumerate(one.epochs):
            assert metrics == pytest.approx(alone.epochs[epoch], rel=1e-6)
            assert (metrics["samples_epoch"], metrics["last_epoch"]) == (SAMPLES, SAMPLES - 1)


@pytest.mark.parametrize("kind", KINDS)
def test_losses_and_resizes_change_nothing(kind: str) -> None:
    (alone,) = undisturbed(1, KINDS[kind])
    found = resized(KINDS[kind])
    assert_as(found, alone)
    assert found[0].events[-1] == alone.events[-1]
    assert found[0].rates[-1] == alone.rates[-1]


def test_a_loss_between_micro_batches_costs_what_the_lost_worker_had_computed() -> None:
    with world(in_lightning(lost_at=(2, 1))) as one:
        one.form(one.start(None, None, Death(2, "micro-batch 2")))
        one.form(one.await_death())
        found = one.finish()
    (alone,) = undisturbed(1)
    assert_as(found, alone)
    computed = [numbers for trained in found for step, numbers in trained.computed if step == 2]
    # Of 12 micro-batches these two had computed 2 each: the other 8 follow, none of them twice.
    assert len(computed) == 12
    assert len({number for numbers in computed for number in numbers}) == 12 * MICRO_BATCH == SIZE


def test_a_newcomer_takes_a_share_of_the_step_that_was_interrupted() -> None:
    with world(in_lightning(lost_at=(2, 1))) as one:
        one.form(one.start(None, None, Death(2, "micro-batch 2")))
        one.form([*one.await_death(), *one.start(None, None)])
        found = one.finish()
    (alone,) = undisturbed(1)
    assert_as(found, alone)
    assert [sum(step == 2 for step, _ in trained.computed) for trained in found] == [4, 4, 2, 2]


@pytest.mark.parametrize("place", ["micro-batch 3", "reduced"])
def test_a_loss_later_begins_the_step_anew(place: str) -> None:
    """In the reduction, or after it."""
    with world(in_lightning()) as one:
        one.form(one.start(None, None, Death(2, place)))
        one.form(one.await_death())
        found = one.finish()
    (alone,) = undisturbed(1)
    assert_as(found, alone)


@pytest.mark.parametrize("plugin", ["bfloat16", "float16"])
def test_mixed_precision(plugin: str) -> None:
    """Micro-batches are computed alike; sums of gradients, in float32, are rounded in another order."""
    kind = (("plugin", plugin), ("ignored", True), ("options", (("max_epochs", 2), ("gradient_clip_val", 0.1))))
    (alone,) = undisturbed(1, kind)
    for size in (2, 3):
        assert_as(list(undisturbed(size, kind)), alone, 1e-4)
    assert_as(resized(kind), alone, 1e-4)


def test_more_workers_than_micro_batches() -> None:
    """Some compute one that does not count, in what is logged neither."""
    kind = (("micro_batches", 2), ("options", (("max_epochs", 1),)))
    (alone,) = undisturbed(1, kind)
    found = undisturbed(3, kind)
    assert_as(list(found), alone)
    assert len(found[0].steps) == math.ceil(SAMPLES / 2 / MICRO_BATCH)
    for one in found:
        for step, metrics in one.steps.items():
            assert metrics == pytest.approx(alone.steps[step], rel=1e-6)
        assert one.epochs == [pytest.approx(alone.epochs[0], rel=1e-6)]


def test_what_lightning_counts_it_counts_in_steps_of_all_workers(tmp_path: Path) -> None:
    options: Options = (
        ("max_steps", 11),
        ("limit_train_batches", 4),
        ("val_check_interval", 2),
        ("log_every_n_steps", 3),
    )
    found = {}
    for size in (1, 2, 3):
        kind = in_lightning(folder=tmp_path / str(size), options=options, scheduled=True, saves=True)
        with world(kind) as one:
            one.form(one.start(*[None] * size))
            found[size] = one.finish()
    (alone,) = found[1]
    expected: list[tuple[str, int]] = []
    for step in range(11):
        expected += [(f"batch {step % 4} of 4", step), (f"batch {step % 4} ends", step + 1)]
        expected += [("checkpoint", step + 1), ("validation", step + 1)] if step % 2 else []
        expected += [("checkpoint", step + 1)] if step % 4 == 3 or step == 10 else []
    assert alone.events == expected
    assert alone.rates == [0.01 * 0.5 ** (2 * (step // 4) + step % 4 // 2) for step in range(11)]
    for size, all_of_them in found.items():
        for one in all_of_them:
            assert (one.events, one.rates, one.logged) == (alone.events, alone.rates, [2, 5, 8])
            assert_as([one], alone)
        saved = sorted(path.name for path in (tmp_path / str(size)).glob("*.ckpt"))
        assert saved == ["epoch.ckpt", *(f"step={step}.ckpt" for step in (10, 2, 4, 6, 8))]


def test_a_checkpoint_is_continued_by_another_number_of_workers(tmp_path: Path) -> None:
    first = in_lightning(folder=tmp_path, options=(("max_epochs", 1),), saves=True)
    with world(first) as one:
        one.form(one.start(None, None))
        one.finish()
    with world(in_lightning(folder=tmp_path, resumed=True)) as one:
        one.form(one.start(None, None, None))
        found = one.finish()
    (alone,) = undisturbed(1)
    assert_as(found, alone)
    for one_of_them in found:
        assert one_of_them.steps.keys() == set(range(5, STEPS))
        assert one_of_them.epochs == [pytest.approx(alone.epochs[1], rel=1e-6)]


REFUSALS = """
import torch
from lightning.pytorch import LightningModule
from lightning.pytorch.callbacks import GradientAccumulationScheduler
from torch.utils.data import DataLoader, TensorDataset
import edriver
from edriver.integrations.lightning import ElasticTrainer

class Model(LightningModule):
    def __init__(self, layer=torch.nn.Linear(1, 1), optimizer=torch.optim.SGD, manual=False):
        super().__init__()
        self.layer, self.optimizer = layer, optimizer
        self.automatic_optimization = not manual
        self.none = False
    def training_step(self, batch, index):
        return None if self.none else self.layer(batch[0]).sum()
    def configure_optimizers(self):
        return self.optimizer(self.parameters(), 0.1)

class Fetching(Model):
    def training_step(self, dataloader_iter):
        pass

class Estimating(Model):
    def configure_optimizers(self):
        self.trainer.estimated_stepping_batches

data = TensorDataset(torch.ones(8, 1))
sampler = edriver.ElasticSampler(data)

def trainer(**options):
    return ElasticTrainer(accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
                          enable_model_summary=False, global_batch=True, max_epochs=1, **options)

def refused(what, error):
    try:
        what()
    except error as said:
        print(said)
    else:
        raise SystemExit("not refused")

refused(trainer, ValueError)
refused(lambda: trainer(accumulate_grad_batches=0), ValueError)
for model in (Model(manual=True), Fetching(), Model(optimizer=torch.optim.LBFGS), Model(torch.nn.SyncBatchNorm(1)),
              Estimating()):
    refused(lambda: trainer(accumulate_grad_batches=2).elastic_state(model, sampler), ValueError)
changing = trainer(accumulate_grad_batches=2, callbacks=[GradientAccumulationScheduler({1: 2})])
refused(lambda: changing.elastic_state(Model(), sampler), ValueError)
model, right = Model(), trainer(accumulate_grad_batches=2)
state = right.elastic_state(model, sampler)

@edriver.run
def train(state):
    batches = torch.utils.data.BatchSampler(sampler, 2, False)
    refused(lambda: right.fit(model, DataLoader(data, batch_sampler=batches)), TypeError)
    model.none = True
    refused(lambda: right.fit(model, DataLoader(data, batch_size=2, sampler=sampler)), RuntimeError)
    model.none = False
    right.fit(model, DataLoader(data, batch_size=2, sampler=sampler))
    print("alone to step", right.global_step)

train(state)
"""


def alone_in(folder: Path, *command: str) -> list[str]:
    """Run a script without a driver; returns the lines that it printed."""
    environ = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2]), "CUDA_VISIBLE_DEVICES": ""}
    result = subprocess.run(
        [sys.executable, *command], cwd=folder, env=environ, capture_output=True, text=True, timeout=600
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout.splitlines()


def test_what_cannot_work_is_refused_with_the_way_out(tmp_path: Path) -> None:
    (tmp_path / "refusals.py").write_text(REFUSALS)
    for line, part in zip(
        alone_in(tmp_path, "refusals.py"),
        [
            *["such as accumulate_grad_batches=16"] * 2,
            "Use automatic optimization, or edriver.GlobalBatch in a loop of your own",
            "training_step(self, batch, batch_idx)",
            "use another optimizer",
            "use BatchNorm",
            "configure_optimizers is called before fit",
            "GradientAccumulationScheduler changes",
            "batch size of None",
            "so return a loss",
            "alone to step 2",
        ],
        strict=True,
    ):
        assert part in line
