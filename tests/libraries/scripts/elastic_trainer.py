"""Hugging Face's Trainer in elastic mode. Writes down, for the test, what it takes and when."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import torch
from transformers import EarlyStoppingCallback, TrainerCallback, TrainingArguments

import edriver
from edriver.integrations.transformers import ElasticTrainer
from tests.libraries.points import Points, layers

OUT = Path(os.environ.get("OUT", "."))
OPTIONS = json.loads(os.environ.get("OPTIONS", "{}"))  # TrainingArguments
SAMPLES = int(os.environ.get("SAMPLES", "256"))
PATIENCE = int(os.environ.get("PATIENCE", "0"))
WAIT_AT = {int(step) for step in os.environ.get("WAIT_AT", "").split(",") if step}  # that fewer than FULL do not make
FULL = int(os.environ.get("FULL", "2"))
PAUSE = float(os.environ.get("PAUSE", "0"))
KILLS = os.environ.get("KILLS", "").split()  # such as "backward:3", "evaluate:4": where, and after how many steps
VICTIM = int(os.environ.get("VICTIM", "1"))  # the rank


def write(*fields: Any) -> None:
    """One line in this process's own file: a kill leaves it whole."""
    with (OUT / f"{os.getpid()}.log").open("a") as log:
        print(*fields, file=log)


def may_die(where: str, step: int) -> None:
    """The process that comes first to such a place is killed there."""
    place = f"{where}:{step}"
    if place in KILLS and edriver.rank() == VICTIM:
        with contextlib.suppress(FileExistsError):
            (OUT / f"killed_{place}").touch(exist_ok=False)
            write("killed", step, time.time())
            os.kill(os.getpid(), signal.SIGKILL)


class Model(torch.nn.Module):
    """A surface over the plane; it writes down what it is trained on, and may be killed there."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = layers()
        self.taken: list[int] = []
        self.losses: list[float] = []
        self.step = 0

    def forward(self, x: torch.Tensor, labels: torch.Tensor, index: torch.Tensor) -> dict[str, torch.Tensor]:
        """The loss and the prediction."""
        prediction = self.layers(x).squeeze(-1)
        loss = torch.nn.functional.mse_loss(prediction, labels)
        if self.training:
            time.sleep(PAUSE)
            may_die("forward", self.step)
            self.taken += index.tolist()
            self.losses.append(loss.item())
        else:
            may_die("evaluate", self.step)
        return {"loss": loss, "logits": prediction}


class Witness(TrainerCallback):
    """Writes down each step."""

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """A round begins."""
        trained.taken, trained.losses, trained.step = [], [], state.global_step
        assert args.world_size == edriver.size()
        print(
            f"rank {args.process_index} of {args.world_size} pid {os.getpid()} at step {state.global_step} "
            f"of {state.max_steps}",
            flush=True,
        )

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """A step begins."""
        while state.global_step in WAIT_AT and edriver.size() < FULL:
            time.sleep(0.02)
            trainer._state().check_host_updates()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """An optimizer step is done."""
        loss = sum(trained.losses) / len(trained.losses)
        write(
            "step",
            state.global_step,
            time.time(),
            edriver.rank(),
            edriver.size(),
            loss,
            state.epoch,
            *trained.taken,
        )
        trained.taken, trained.losses, trained.step = [], [], state.global_step
        may_die("step_end", state.global_step)

    def on_epoch_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """An epoch is over."""
        may_die("epoch_end", state.global_step)

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """A checkpoint is written."""
        may_die("save", state.global_step)

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """All is over."""
        may_die("train_end", state.global_step)


torch.manual_seed(1)
trained = Model()
arguments = TrainingArguments(
    **{
        "output_dir": str(OUT / "checkpoints"),
        "per_device_train_batch_size": 4,
        "logging_steps": 4,
        "save_strategy": "no",
        "learning_rate": 0.02,
        "disable_tqdm": True,
        "remove_unused_columns": False,
        **OPTIONS,
    }
)
callbacks: list[TrainerCallback] = [Witness()]
if PATIENCE:
    callbacks.append(EarlyStoppingCallback(early_stopping_patience=PATIENCE, early_stopping_threshold=1.0))
trainer = ElasticTrainer(
    model=trained, args=arguments, train_dataset=Points(SAMPLES), eval_dataset=Points(32), callbacks=callbacks
)
output = trainer.train()
digest = torch.cat([p.detach().reshape(-1) for p in trained.parameters()]).sum(dtype=torch.float64).item()
history = [(entry["step"], sorted(entry)) for entry in trainer.state.log_history]
write("done", json.dumps({"parameters": digest, "history": history, "state": vars(trainer.state)}, default=str))
print(
    f"rank {edriver.rank()} done at step {output.global_step} with {digest!r}; "
    f"{len(trainer.callback_handler.callbacks)} callbacks",
    flush=True,
)
