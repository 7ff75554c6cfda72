"""A script for Hugging Face's Trainer, which goes on from its newest checkpoint."""

from __future__ import annotations

import os
from typing import Any

import torch
from dies import after_step
from transformers import Trainer, TrainerCallback, TrainingArguments
from transformers.trainer_utils import get_last_checkpoint


class Model(torch.nn.Module):
    """A line through points."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(4, 1)

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        """The loss and the prediction."""
        prediction = self.linear(x).squeeze(-1)
        return {"loss": torch.nn.functional.mse_loss(prediction, labels), "logits": prediction}


class Points(torch.utils.data.Dataset[dict[str, torch.Tensor]]):
    """A few points."""

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"x": torch.full((4,), float(index % 7)), "labels": torch.tensor(float(index % 7))}


class Steps(TrainerCallback):
    """Counts them."""

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """The checkpoint has been loaded."""
        print(f"rank {os.environ['RANK']} begins at step {state.global_step}", flush=True)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """One more."""
        after_step(state.global_step)


arguments = TrainingArguments(
    output_dir="out",
    max_steps=12,
    save_steps=4,
    logging_steps=4,
    per_device_train_batch_size=2,
    use_cpu=True,
    report_to=[],
    disable_tqdm=True,
)
trainer = Trainer(model=Model(), args=arguments, train_dataset=Points(), callbacks=[Steps()])
newest = get_last_checkpoint("out") if os.path.isdir("out") else None  # noqa: PTH112
trainer.train(resume_from_checkpoint=newest)
print(f"rank {os.environ['RANK']} is done at step {trainer.state.global_step}", flush=True)
