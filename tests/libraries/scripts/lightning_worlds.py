"""A Lightning script with steps that workers share, as workers of tests/torch/elastic_world.py run it."""

from __future__ import annotations

import csv
import dataclasses
import functools
import gc
import logging
import warnings
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule
from lightning.pytorch.callbacks import LearningRateMonitor, ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from lightning.pytorch.plugins import MixedPrecision
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

import edriver
from edriver.integrations.lightning import ElasticTrainer
from edriver.model.ids import RoundId
from edriver.worker import context
from edriver.worker.rounds.worker_rounds import WorkerRounds
from tests.torch.elastic_world import Fate
from tests.torch.global_batch_training import MICRO_BATCH, SAMPLES, Numbered
from tests.waiting import until

warnings.simplefilter("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


@dataclasses.dataclass(frozen=True)
class Trained:
    """What a worker ends with.

    Attributes:
        parameters: and the optimizer's state, in one vector.
        computed: for each step, the samples of each micro-batch that this worker has computed.
        steps: what was logged of each step.
        epochs: what was logged of each epoch.
        events: the hooks that were called, each with the step before which that was.
        logged: the steps that the logger has rows of.
        rates: the learning rate before each step.
    """

    parameters: list[float]
    computed: list[tuple[int, list[int]]]
    steps: dict[int, dict[str, float]]
    epochs: list[dict[str, float]]
    events: list[tuple[str, int]]
    logged: list[int]
    rates: list[float]


@dataclasses.dataclass(frozen=True)
class Training:
    """How a script trains.

    Attributes:
        folder: of logs and checkpoints; None: there are none.
        options: of ElasticTrainer, and their values.
        micro_batches: in a step.
        ignored: whether every third label does not count.
        plugin: the precision; in others than double precision the model is of float32.
        scheduled: whether the learning rate falls after each second step.
        lost_at: of the first round the step, and each worker's number of the micro-batch, after which all but one that
            is about to die wait until they know of that; None: they wait nowhere.
        saves: whether checkpoints are made after each second step and each epoch.
        resumed: whether it begins from the checkpoint of the last epoch.
    """

    folder: Path | None = None
    options: tuple[tuple[str, Any], ...] = (("max_epochs", 2),)
    micro_batches: int = 12
    ignored: bool = False
    plugin: str = "double"
    scheduled: bool = False
    lost_at: tuple[int, int] | None = None
    saves: bool = False
    resumed: bool = False

    def __call__(self, fate: Fate) -> Trained:
        """The script."""
        model = Numbers(self, fate)
        callbacks: list[Callback] = [Witness()]
        if self.saves:
            callbacks.append(ModelCheckpoint(self.folder, "{step}", every_n_train_steps=2, save_top_k=-1))
            callbacks.append(ModelCheckpoint(self.folder, "epoch", save_on_train_epoch_end=True))
        if self.folder is not None:
            callbacks.append(LearningRateMonitor())
        trainer = ElasticTrainer(
            accumulate_grad_batches=self.micro_batches,
            global_batch=True,
            accelerator="cpu",
            logger=CSVLogger(self.folder, version=0) if self.folder else False,
            enable_checkpointing=self.saves,
            enable_progress_bar=False,
            enable_model_summary=False,
            callbacks=callbacks,
            plugins=_plugin(self.plugin),
            **dict(self.options),
        )
        sampler = edriver.ElasticSampler(range(SAMPLES), seed=5)
        state = trainer.elastic_state(model, sampler)

        @edriver.run
        def train(state: Any) -> None:
            gc.collect()
            wrappers = [each for each in gc.get_objects() if isinstance(each, DistributedDataParallel)]
            assert not wrappers, "a round that is over must not keep its wrapper"
            loader = DataLoader(Numbered(), MICRO_BATCH, sampler=sampler)
            held_out = DataLoader(Numbered(8), MICRO_BATCH)
            path = self.folder / "epoch.ckpt" if self.resumed else None
            trainer.fit(model, loader, held_out, ckpt_path=path)

        train(state)
        values = [p.detach() for p in model.parameters()]
        values += [v for of_one in state.optimizer.state.values() for v in of_one.values()]
        rows = list(self.folder.glob("**/metrics.csv")) if self.folder else []
        logged = [int(row["step"]) for path in rows for row in csv.DictReader(path.open()) if row.get("loss_step")]
        return Trained(
            torch.cat([value.flatten().double() for value in values]).tolist(),
            model.computed,
            model.steps,
            model.epochs,
            model.events,
            logged,
            model.rates,
        )


def _plugin(name: str) -> list[Any] | None:
    if name == "float16":
        return [MixedPrecision("16-mixed", "cpu", torch.amp.GradScaler("cpu", init_scale=256.0))]
    return [MixedPrecision("bf16-mixed", "cpu")] if name == "bfloat16" else None


class Numbers(LightningModule):
    """The model of tests/torch/global_batch_training.py."""

    def __init__(self, kind: Training, fate: Fate) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.net = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 3))
        self.net.to(torch.float64 if kind.plugin == "double" else torch.float32)
        self.kind, self.fate = kind, fate
        self.at = 0
        self.computed: list[tuple[int, list[int]]] = []
        self.steps: dict[int, dict[str, float]] = {}
        self.epochs: list[dict[str, float]] = []
        self.events: list[tuple[str, int]] = []
        self.rates: list[float] = []

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """The scores."""
        return self.net(inputs.to(self.net[0].weight.dtype))

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        """A step begins."""
        self.fate.before(self.global_step)
        self.at = 0
        self.rates.append(self.optimizers().param_groups[0]["lr"])
        self.events.append((f"batch {batch_idx} of {self.trainer.num_training_batches}", self.global_step))

    def training_step(self, batch: Any, batch_idx: int) -> dict[str, torch.Tensor]:
        """The loss of a micro-batch."""
        self.fate.meets(self.global_step, f"micro-batch {self.at}")
        numbers, inputs, labels = batch
        self.computed.append((self.global_step, numbers.tolist()))
        if self.kind.ignored:
            labels = torch.where(numbers % 3 == 0, -100, labels)
        count = (labels != -100).sum()
        loss = nn.functional.cross_entropy(self(inputs), labels, reduction="sum") / count.clamp(min=1)
        self.log("loss", loss, on_step=True, on_epoch=True, sync_dist=True)
        self.log("samples", float(len(numbers)), on_step=True, on_epoch=True, sync_dist=True, reduce_fx="sum")
        self.log("last", numbers.max().double(), on_step=True, on_epoch=True, sync_dist=True, reduce_fx="max")
        self.log("first", numbers.min().double(), on_step=True, on_epoch=False, sync_dist=True, reduce_fx="min")
        return {"loss": loss, **({"loss_weight": count} if self.kind.ignored else {})}

    def on_after_backward(self) -> None:
        """A micro-batch is computed."""
        self.at += 1
        first_round = context.assignment().round_id == RoundId(1, 1)
        dies = self.fate.is_to_meet(self.global_step, f"micro-batch {self.at}")
        if first_round and self.kind.lost_at == (self.global_step, self.at - 1) and not dies:
            rounds = context.current.rounds
            assert isinstance(rounds, WorkerRounds)
            until(functools.partial(getattr, rounds, "abort_cause"), every=0.01)

    def on_before_optimizer_step(self, optimizer: Any) -> None:
        """The step's gradient is there."""
        self.fate.meets(self.global_step, "reduced")
        self.log("norm", nn.utils.get_total_norm([p.grad for p in self.parameters()]), sync_dist=True)

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        """The loss there."""
        _, inputs, labels = batch
        self.log("val", nn.functional.cross_entropy(self(inputs), labels), sync_dist=True)

    def on_validation_epoch_end(self) -> None:
        """A validation ends."""
        if not self.trainer.sanity_checking:
            self.events.append(("validation", self.global_step))

    def on_save_checkpoint(self, checkpoint: Any) -> None:
        """A checkpoint is made."""
        self.events.append(("checkpoint", self.global_step))

    def configure_optimizers(self) -> Any:
        """Adam."""
        optimizer = torch.optim.Adam(self.parameters(), lr=0.01)
        if not self.kind.scheduled:
            return optimizer
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
        return [optimizer], [{"scheduler": schedule, "interval": "step", "frequency": 2}]


class Witness(Callback):
    """Notes what was logged."""

    def on_train_batch_end(self, trainer: Any, model: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Of a step."""
        step = model.global_step - 1
        names = ("loss_step", "samples_step", "last_step", "first", "norm")
        model.steps[step] = {name: trainer.logged_metrics[name].item() for name in names}
        model.events.append((f"batch {batch_idx} ends", model.global_step))

    def on_train_epoch_end(self, trainer: Any, model: Any) -> None:
        """Of an epoch."""
        names = ("loss_epoch", "samples_epoch", "last_epoch")
        model.epochs.append({name: trainer.callback_metrics[name].item() for name in names})
