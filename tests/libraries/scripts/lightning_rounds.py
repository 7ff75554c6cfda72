"""Leaves a Lightning training at each of its boundaries, and in its steps; goes on, and compares how it ends.

What edriver does between two rounds is done here by hand, in a world of one. A newcomer is a second trainer that takes
over what the first one's state would send it.
"""

from __future__ import annotations

import csv
import itertools
import logging
import pickle
import shutil
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightning
import torch
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from torch.utils.data import DataLoader, TensorDataset

import edriver
from edriver.integrations.lightning import ElasticTrainer
from edriver.worker.errors import HostsUpdatedInterrupt, PeerLostError
from edriver.worker.group.round_group import RoundGroup

warnings.simplefilter("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
RoundGroup(None).build_alone()

generator = torch.Generator().manual_seed(1)
x = torch.randn(18, 4, generator=generator)
dataset, held_out = TensorDataset(x[:14], x[:14].sum(1)), TensorDataset(x[14:], x[14:].sum(1))

KINDS: dict[str, dict[str, Any]] = {
    "clipping": {"gradient_clip_val": 0.1, "max_epochs": 2},
    "accumulation": {"accumulate_grad_batches": 3, "max_epochs": 2},
    "shared": {"accumulate_grad_batches": 3, "global_batch": True, "max_epochs": 2},
    "manual": {"max_epochs": 2},
    "bf16": {"precision": "bf16-mixed", "max_epochs": 2},
    "steps": {"max_steps": 10, "max_epochs": -1},
    "intervals": {"val_check_interval": 0.5, "max_epochs": 2},
    "plateau": {"max_epochs": 3},
    "limited": {"limit_train_batches": 5, "max_epochs": 2},
    "early": {"max_epochs": 9},
}


class Line(lightning.LightningModule):
    """A line through points, which calls `trouble` where a peer may be lost."""

    def __init__(self, kind: str, trouble: Callable[[str], None]) -> None:
        super().__init__()
        torch.manual_seed(2)
        self.net = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 1))
        self.automatic_optimization = kind != "manual"
        self.kind = kind
        self.trouble = trouble
        self.hooks: list[str] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The sums."""
        return self.net(x).squeeze(-1)

    def training_step(self, batch: Any, index: int) -> torch.Tensor | None:
        """The loss; in manual optimization the whole step."""
        assert self.training
        loss = torch.nn.functional.mse_loss(self(batch[0]), batch[1])
        self.log("loss", loss.detach(), on_step=True, on_epoch=True, sync_dist=True)
        self.trouble("step")
        if self.automatic_optimization:
            return loss
        optimizer = self.optimizers()
        optimizer.zero_grad()
        self.manual_backward(loss)
        optimizer.step()
        return None

    def validation_step(self, batch: Any, index: int) -> None:
        """The loss there."""
        assert not self.training
        self.trouble("validation")
        self.log("val", torch.nn.functional.mse_loss(self(batch[0]), batch[1]), sync_dist=True)
        self.log("constant", 1.0)

    def on_validation_epoch_end(self) -> None:
        """Once for each validation."""
        self.hooks.append("sanity" if self.trainer.sanity_checking else f"validation {self.global_step}")

    def on_train_epoch_end(self) -> None:
        """Once for each epoch."""
        self.trouble("epoch")
        self.hooks.append(f"epoch {self.current_epoch} {self.global_step}")

    def configure_optimizers(self) -> Any:
        """AdamW, with a scheduler."""
        optimizer = torch.optim.AdamW(self.parameters(), lr=0.05)
        if self.kind == "plateau":
            plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0)
            return [optimizer], [{"scheduler": plateau, "monitor": "constant"}]
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.9)
        return [optimizer], [{"scheduler": schedule, "interval": "step", "frequency": 2}]


class Training:
    """One process of a training.

    Args:
        kind: of KINDS.
        folder: of its logs and checkpoints.
        trouble: called by the module.
    """

    def __init__(self, kind: str, folder: Path, trouble: Callable[[str], None]) -> None:
        self.folder = folder
        self.stopping = EarlyStopping("constant", patience=1 if kind == "early" else 99)
        self.checkpoint = ModelCheckpoint(folder / "saved", monitor="val", save_top_k=2)
        self.trainer = ElasticTrainer(
            accelerator="cpu",
            logger=CSVLogger(folder, version=0),
            log_every_n_steps=1,
            enable_progress_bar=False,
            enable_model_summary=False,
            callbacks=[self.stopping, self.checkpoint],
            **KINDS[kind],
        )
        self.model = Line(kind, trouble)
        self.sampler = edriver.ElasticSampler(dataset)
        self.state = self.trainer.elastic_state(self.model, self.sampler)

    def fit(self) -> None:
        """One round."""
        loader = DataLoader(dataset, batch_size=2, sampler=self.sampler)
        self.trainer.fit(self.model, loader, DataLoader(held_out, batch_size=2))

    def outcome(self, gathered: bool) -> dict[str, Any]:
        """What must not depend on how often it was left."""
        (log,) = self.folder.glob("**/metrics.csv")
        metrics = {name: value.item() for name, value in self.trainer.callback_metrics.items()}
        return {
            "weights": [value.tolist() for value in self.model.state_dict().values()],
            "lr": self.state.optimizer.param_groups[0]["lr"],
            "at": (self.trainer.global_step, self.trainer.current_epoch, self.trainer.fit_loop.batch_idx),
            "wait": self.stopping.wait_count,
            "best": (self.checkpoint.best_model_score.item(), Path(self.checkpoint.best_model_path).name),
            "kept": sorted(Path(path).name for path in self.checkpoint.best_k_models),
            "metrics": {name: value for name, value in metrics.items() if gathered or "loss" not in name},
            "sampler": self.sampler.state_dict(),
            "logged": [int(row["step"]) for row in csv.DictReader(log.read_text().splitlines()) if row["loss_step"]],
        }


class Rounds:
    """Ends a round at one boundary: all members stop there, or one is lost."""

    def __init__(self, end_at: int | None, lost: bool) -> None:
        self.passed = 0
        self._end_at = end_at
        self._lost = lost

    def boundary(self, committed: bool) -> None:
        """Count one."""
        self.passed += 1
        if self.passed == self._end_at and not self._lost:
            raise HostsUpdatedInterrupt

    def check(self) -> None:
        """Nothing is ever wrong."""


Result = tuple[dict[str, Any], list[str], int, list[tuple[int, str]]]


def train(kind: str, end_at: int | None, lost_in: str | None, newcomer: bool) -> Result:
    """Train to the end; returns the outcome, the hooks in their order, the number of boundaries, and where a
    peer may be lost, by the number of boundaries before that.

    Args:
        kind: of KINDS.
        end_at: the boundary at which the round ends, or behind which a peer is lost.
        lost_in: where that peer is lost; None: all members stop at the boundary.
        newcomer: go on in a second process.
    """
    folder = Path("rounds")
    shutil.rmtree(folder, ignore_errors=True)
    rounds = Rounds(end_at, lost_in is not None)
    places: list[tuple[int, str]] = []

    def trouble(where: str) -> None:
        places.append((rounds.passed, where))
        if (rounds.passed, where) == (end_at, lost_in) and places.count((end_at, where)) == 1:
            raise PeerLostError("gone")

    training = Training(kind, folder, trouble)
    hooks = training.model.hooks
    training.state.bind(rounds)
    training.state.sync()
    try:
        training.fit()
    except (HostsUpdatedInterrupt, PeerLostError) as error:
        if isinstance(error, PeerLostError):
            assert training.state.clean, training.state.why_torn
            training.state.return_to_boundary()
        if newcomer:
            sent = pickle.loads(pickle.dumps(training.state._capture()))
            training = Training(kind, folder, trouble)
            training.model.hooks = hooks
            training.state.bind(rounds)
            training.state._load(sent)
        training.state.sync()
        del error
        training.fit()
    return training.outcome(gathered=not newcomer), hooks, rounds.passed, list(dict.fromkeys(places))


def same(kind: str, end_at: int, lost_in: str | None, newcomer: bool, reference: Result) -> None:
    """Compare one training with one that was not left."""
    outcome, hooks, *_ = train(kind, end_at, lost_in, newcomer)
    what = f"{kind}, {'newcomer' if newcomer else 'survivor'}, boundary {end_at}, {lost_in or 'stopped'}"
    for key, value in outcome.items():
        expected = reference[0][key]
        if key == "metrics":
            expected = {name: expected[name] for name in value}
        assert value == expected, f"{what}: {key} is {value}, not {expected}"
    assert hooks == reference[1], f"{what}: {hooks}, not {reference[1]}"


for kind in sys.argv[1:] or KINDS:
    reference = train(kind, None, None, False)
    _, _, boundaries, places = reference
    for newcomer, end_at in itertools.product((False, True), range(1, boundaries + 1)):
        same(kind, end_at, None, newcomer, reference)
    losses = [(end_at, where) for end_at, where in places if end_at]
    for count, (end_at, where) in enumerate(losses):
        same(kind, end_at, where, bool(count % 2), reference)
    print(f"{kind}: left at {boundaries} boundaries and in {len(losses)} other places", flush=True)
