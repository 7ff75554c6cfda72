"""What of TrainingArguments cannot be used in elastic mode, and what to do instead."""

from __future__ import annotations

from typing import Any

from edriver.integrations.accelerate import refusal


def refuse_settings(args: Any) -> None:
    """Refuse what splits the model or the data in a way that a lost worker would tear.

    Raises:
        ValueError: names the setting, and what to use.
    """
    for name in ("deepspeed", "fsdp", "parallelism_config"):
        if getattr(args, name):
            raise ValueError(refusal(f"TrainingArguments({name}=...)"))
    if args.auto_find_batch_size:
        raise ValueError(
            "auto_find_batch_size=True starts training again on the one worker that is out of memory: set "
            "per_device_train_batch_size, or use Trainer in restart mode (edriver --mode restart)"
        )
    if args.train_sampling_strategy not in ("random", "sequential"):
        raise ValueError(
            f"train_sampling_strategy={args.train_sampling_strategy!r} makes an order for a fixed number of workers: "
            "use 'random' or 'sequential', or Trainer in restart mode (edriver --mode restart)"
        )
    if args.enable_jit_checkpoint:
        raise ValueError(
            "enable_jit_checkpoint=True saves at SIGTERM, before a process ends; in elastic mode the others continue "
            "with the state: leave it out, or use Trainer in restart mode (edriver --mode restart)"
        )
    if args.accelerator_config.split_batches:
        raise ValueError("split_batches=True has no meaning here: per_device_train_batch_size is that of one worker")
