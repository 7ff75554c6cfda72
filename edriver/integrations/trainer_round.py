"""How a Trainer begins a round: with the round's accelerator, and where the run is.

Trainer offers no such hooks: the methods that are overridden here and in transformers.py begin with an underscore, and
are those of transformers 5.23.
"""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

from transformers import ProgressCallback, Trainer
from transformers.trainer_callback import ExportableState, TrainerState

from edriver.integrations.accelerate import ElasticAccelerator, ElasticLoader, enter_round, refusal
from edriver.integrations.trainer_progress import TrainerProgress, planned
from edriver.worker import context
from edriver.worker.sampler.elastic_sampler import ElasticSampler
from edriver.worker.state.torch_state import TorchState


class RoundTrainer(Trainer):
    """A Trainer that can begin in the middle of its run, with another number of workers than before.

    Args:
        args: Trainer's positional arguments.
        global_batch: see ElasticTrainer.
        kwargs: Trainer's keyword arguments.

    Attributes:
        optimizer, control: Trainer's.
    """

    optimizer: Any
    control: Any
    _sampler: ElasticSampler
    _progress: TrainerProgress
    _begins_at: tuple[int, int]  # steps and epochs, before the first step of `train`
    _picked_up: bool

    def __init__(self, *args: Any, global_batch: bool, **kwargs: Any) -> None:
        self._elastic: TorchState | None = None  # while `train` is in a round
        self._global_batch = global_batch
        super().__init__(*args, **kwargs)

    def create_accelerator_and_postprocess(self) -> None:
        """Make the accelerator: called once by Trainer, and in each round."""
        refuse_settings(self.args)
        if self._elastic is not None:
            enter_round(self.args.use_cpu)
        super().create_accelerator_and_postprocess()
        if self._elastic is not None:
            micro_batches = self.args.gradient_accumulation_steps if self._global_batch else None
            ElasticAccelerator.adopt(self.accelerator, self._elastic.scaler, micro_batches)

    def _enter(self, state: TorchState) -> None:
        """Forget what belongs to the round before."""
        self._elastic = state
        self._picked_up = False
        self._sampler.set_epoch(self._under_way()[1])
        self.model_wrapped, self.optimizer = self.model, state.optimizer
        self.__dict__.pop("_eval_dataloaders", None)  # which are sharded for that round
        accumulation = self.args.accelerator_config.gradient_accumulation_kwargs
        if accumulation is not None:
            accumulation.pop("num_steps", None)  # Trainer has put it there, and would take it for the user's
        self.create_accelerator_and_postprocess()
        _close_bars(self.callback_handler.callbacks)

    def _under_way(self) -> tuple[int, int]:
        """The steps done, and the epoch that is under way."""
        values = self._progress.values
        return (values["global_step"], values["epoch"]) if values else self._begins_at

    def _go_to(self, file: Path) -> None:
        """Begin where a checkpoint was written: its state's epoch determines how much of the data is done."""
        state = TrainerState.load_from_json(str(file))
        epoch = int(state.epoch)
        done = 0 if self.args.ignore_data_skip else round((state.epoch - epoch) * len(self.train_dataset))
        self._sampler.load_state_dict({"epoch": epoch, "seed": self._sampler.seed, "offset": done})
        self._begins_at = state.global_step, epoch

    def _get_train_sampler(self, train_dataset: Any = None) -> ElasticSampler:
        del train_dataset
        return self._sampler

    def set_initial_training_values(self, args: Any, dataloader: Any) -> tuple[Any, ...]:
        """What this round is to train, in Trainer's order: of the epoch that is under way, the rest.

        Raises:
            TypeError: the loader has not been made with this trainer's sampler.
        """
        if not isinstance(dataloader, ElasticLoader):
            raise TypeError(
                "get_train_dataloader was overridden, and its loader does not split the data as the run needs it: have "
                "it return self.accelerator.prepare(DataLoader(..., sampler=self._get_train_sampler()))"
            )
        _, _, num_examples, num_train_samples, batch, _, _ = super().set_initial_training_values(args, dataloader)
        # A step of all workers together is as long as that of one which is alone.
        size, length = 1 if self._global_batch else context.assignment().size, len(self.train_dataset)
        share, each = -(-length // size), self._train_batch_size
        batches = share // each if args.dataloader_drop_last else -(-share // each)
        if self._global_batch and args.dataloader_drop_last:
            batches -= batches % args.gradient_accumulation_steps
        full = max(1, -(-batches // args.gradient_accumulation_steps))
        rest = -(-len(dataloader) // args.gradient_accumulation_steps)
        step, epoch = self._under_way()
        epochs, max_steps = planned(step, epoch, rest, full, args.max_steps, args.num_train_epochs)
        return epochs, full, num_examples, num_train_samples, batch, batches, max_steps

    def get_total_train_batch_size(self, args: Any) -> int:
        """The number of samples in a step of all workers."""
        if self._global_batch:
            return int(self._train_batch_size * args.gradient_accumulation_steps)
        return int(super().get_total_train_batch_size(args))

    def _init_training_state(
        self, max_steps: int, num_update_steps_per_epoch: int, num_train_epochs: int, resume: str | None, trial: Any
    ) -> tuple[int, int]:
        """Return a TrainerState that continues the run, the first epoch of this round, and 0 batches to skip."""
        values = self._progress.values
        resume = None if values else resume
        super()._init_training_state(max_steps, num_update_steps_per_epoch, num_train_epochs, resume, trial)
        if not values:
            self._progress.log_history[:] = self.state.log_history
        for name, value in values.get("trainer_state", {}).items():
            setattr(self.state, name, value)
        self.state.log_history = self._progress.log_history
        _set_callbacks(self.callback_handler.callbacks, values.get("callbacks", {}))
        return (num_train_epochs if values.get("over") else self._under_way()[1]), 0

    def _prepare_for_training(self, max_steps: int, train_dataloader: Any, resume: str | None) -> tuple[Any, Any]:
        values = self._progress.values
        rates = [group["lr"] for group in self.optimizer.param_groups]
        prepared: tuple[Any, Any] = super()._prepare_for_training(
            max_steps, train_dataloader, None if values else resume
        )
        if values:
            self.lr_scheduler.load_state_dict(copy.deepcopy(values["scheduler"]))
            for group, rate in zip(self.optimizer.param_groups, rates, strict=True):
                group["lr"] = rate  # a newly created schedule has set it to the rate of its first step
        return prepared

    def _state(self) -> TorchState:
        assert self._elastic is not None, "called in a round"
        return self._elastic


def callback_states(callbacks: list[Any]) -> dict[str, list[Any]]:
    """What callbacks remember, by class, in their order."""
    found: dict[str, list[Any]] = {}
    for callback in callbacks:
        if isinstance(callback, ExportableState):
            found.setdefault(type(callback).__name__, []).append(callback.state()["attributes"])
    return found


def _set_callbacks(callbacks: list[Any], kept: dict[str, list[Any]]) -> None:
    """Give callbacks what `callback_states` returned; they stay the same objects, for the script may refer to them."""
    left = {name: iter(attributes) for name, attributes in kept.items()}
    for callback in callbacks:
        if isinstance(callback, ExportableState):
            for name, value in next(left.get(type(callback).__name__, iter(())), {}).items():
                setattr(callback, name, copy.deepcopy(value))


def _close_bars(callbacks: list[Any]) -> None:
    """Close the progress bars of the previous round, next to which `on_train_begin` would open new ones."""
    for callback in callbacks:
        if isinstance(callback, ProgressCallback):
            for name in ("training_bar", "prediction_bar"):
                bar = getattr(callback, name)
                if bar is not None:
                    bar.close()
                    setattr(callback, name, None)


def refuse_settings(args: Any) -> None:
    """Refuse settings that split the model or the data in a way that a lost worker would tear.

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
