"""Hugging Face Accelerate in edriver's rounds: `ElasticAccelerator`, an Accelerator that lives for one round.

    @edriver.run
    def train(state):
        accelerator = ElasticAccelerator()
        loader = DataLoader(dataset, batch_size=8, sampler=state.sampler)
        model, optimizer, loader = accelerator.prepare(state.model, state.optimizer, loader)
        ...

Accelerate keeps a process's place among the others in objects that are shared by the whole process (`PartialState`,
`AcceleratorState`, `GradientState`) and are filled once. A new round has another group, rank and size: they are emptied
and filled again.

With `global_batch=True` a step is one of a GlobalBatch. Accelerate's loop knows batches only, so its loader yields this
worker's micro-batches of one step after the other, and `backward` ends each of them.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import torch.distributed as dist
from accelerate import Accelerator
from accelerate.data_loader import DataLoaderStateMixin
from accelerate.state import AcceleratorState, GradientState, PartialState
from accelerate.utils import patch_environment, send_to_device
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

from edriver.worker import context
from edriver.worker.accumulation.global_batch import GlobalBatch, Step
from edriver.worker.sampler.elastic_sampler import ElasticSampler

_SHARDING = {
    "deepspeed_plugin": "ACCELERATE_USE_DEEPSPEED",
    "deepspeed_plugins": "ACCELERATE_USE_DEEPSPEED",
    "fsdp_plugin": "ACCELERATE_USE_FSDP",
    "megatron_lm_plugin": "ACCELERATE_USE_MEGATRON_LM",
    "parallelism_config": "ACCELERATE_USE_PARALLELISM_CONFIG",
    "torch_tp_plugin": "",
}
"""Arguments of Accelerator that shard the model, and the variables by which `accelerate config` sets them."""


class ElasticAccelerator(Accelerator):
    """An Accelerator for one round: create it inside the function that `edriver.run` wraps.

    Args:
        scaler: the state's GradScaler, for mixed_precision="fp16", so that its scale survives the round.
        global_batch: whether `gradient_accumulation_steps` is the number of micro-batches in a step of all workers
            together, which they share, so that a step consists of the same samples whatever their number: see
            GlobalBatch. It takes the loader that has an ElasticSampler; its steps are recorded there by themselves.
        kwargs: Accelerator's arguments.

    Raises:
        RuntimeError: called outside of a round.
        ValueError: an argument, or a setting of `accelerate config`, shards the model or the batches; or with
            `global_batch` and mixed_precision="fp16" there is no `scaler`.

    Attributes:
        under_way: with `global_batch`, the step of the current batch.
        weight: with `global_batch`, the current batch's, where `backward` is called by a library that knows of none.
    """

    scaler: torch.amp.GradScaler | None

    def __init__(
        self, *, scaler: torch.amp.GradScaler | None = None, global_batch: bool = False, **kwargs: Any
    ) -> None:
        _refuse_sharding(kwargs)
        enter_round(kwargs.get("cpu", False))
        super().__init__(**kwargs)
        if global_batch and self.scaler is not None and scaler is None:
            raise ValueError(
                "with global_batch=True gradients may outlive the round, so the scale they have must, too: give the "
                "state a scaler=torch.amp.GradScaler(), and pass ElasticAccelerator(scaler=state.scaler, ...)"
            )
        self._begin(scaler, self.gradient_accumulation_steps if global_batch else None)

    @classmethod
    def adopt(
        cls, accelerator: Accelerator, scaler: torch.amp.GradScaler | None, micro_batches: int | None = None
    ) -> None:
        """Make an ElasticAccelerator of an Accelerator that a library has made since `enter_round`.

        Args:
            accelerator: it.
            scaler: see ElasticAccelerator.
            micro_batches: in a step of all workers together; None: each worker has its own, as usual.
        """
        accelerator.__class__ = cls
        accelerator._begin(scaler, micro_batches)

    def _begin(self, scaler: torch.amp.GradScaler | None, micro_batches: int | None) -> None:
        self._wrapped: list[DistributedDataParallel] = []
        self._micro_batches = micro_batches
        self.under_way: Step | None = None
        self.weight: float | torch.Tensor | None = None
        self._backward_due = False
        if self.scaler is not None and scaler is not None:
            self.scaler = scaler

    def free_memory(self, *objects: Any) -> Any:
        """Release the prepared objects. Without any, as when Trainer begins a round, collect no garbage."""
        if objects or self._models or self._optimizers or self._schedulers or self._dataloaders:
            return super().free_memory(*objects)
        return []

    def prepare_data_loader(
        self, data_loader: DataLoader[Any], device_placement: bool | None = None, slice_fn_for_dispatch: Any = None
    ) -> Any:
        """Prepare a loader; one with an ElasticSampler is not sharded, for the sampler has split the epoch already."""
        sampler = getattr(data_loader.batch_sampler, "sampler", data_loader.sampler)
        if not isinstance(sampler, ElasticSampler):
            return super().prepare_data_loader(data_loader, device_placement, slice_fn_for_dispatch)
        placed = self.device_placement if device_placement is None else device_placement
        device = self.device if placed else None
        if self._micro_batches is not None:
            return StepsLoader(data_loader, device, self.non_blocking, self, self._micro_batches)
        return ElasticLoader(data_loader, device, self.non_blocking)

    def prepare_optimizer(self, optimizer: torch.optim.Optimizer, device_placement: bool | None = None) -> Any:
        """Prepare an optimizer. With `global_batch` its `zero_grad` may as well be called before the backward pass."""
        prepared: Any = super().prepare_optimizer(optimizer, device_placement)
        if self._micro_batches is not None:
            zero_grad = prepared.zero_grad

            def zero_after_steps(set_to_none: bool | None = None) -> None:
                if not self._backward_due:  # the loader has dropped what is not of the step
                    zero_grad(set_to_none)

            prepared.zero_grad = zero_after_steps
        return prepared

    def prepare_scheduler(self, scheduler: Any) -> Any:
        """Prepare a scheduler. With `global_batch` it makes one step with each of the optimizer's."""
        prepared = super().prepare_scheduler(scheduler)
        if self._micro_batches is not None:  # a step's samples are as many whatever the number of workers
            prepared.split_batches = True
        return prepared

    def prepare_model(
        self, model: torch.nn.Module, device_placement: bool | None = None, evaluation_mode: bool = False
    ) -> torch.nn.Module:
        """Prepare a model; what an earlier round has put around it is taken off.

        Once it is in DistributedDataParallel, it stays the same for the round.
        """
        bare = model.module if isinstance(model, DistributedDataParallel) else model
        for wrapped in self._wrapped:
            if wrapped is model or wrapped.module is bare:
                return wrapped
        if "_original_forward" in bare.__dict__:  # what an earlier Accelerator has replaced, to cast
            bare.forward = bare.__dict__.pop("_original_forward")
        bare.__dict__.pop("_is_accelerate_prepared", None)
        prepared: torch.nn.Module = super().prepare_model(bare, device_placement, evaluation_mode=True)
        if evaluation_mode or not any(parameter.requires_grad for parameter in bare.parameters()):
            return prepared
        options = {} if self.ddp_handler is None else self.ddp_handler.to_kwargs()
        # Not Accelerate's own: the state is the same on all workers already, and a GPU's number is not the local rank.
        wrapped = DistributedDataParallel(prepared, init_sync=False, **options)
        if self.ddp_handler is not None:
            self.ddp_handler.register_comm_hook(wrapped)
        self._wrapped.append(wrapped)
        return wrapped

    # ---- with global_batch

    def backward(self, loss: torch.Tensor, weight: float | torch.Tensor | None = None, **kwargs: Any) -> None:
        """Compute gradients, as Accelerator does. With `global_batch` call it once for each batch of the loader.

        Args:
            loss: of a batch.
            weight: with `global_batch`, what the loss is a mean over, if that is not the samples; see Step.scale.
            kwargs: those of `Tensor.backward`.

        Raises:
            RuntimeError: with `global_batch`: the batch has had its backward pass, or is not of a loader that has an
                ElasticSampler.
            TypeError: there is a weight, and no `global_batch`.
        """
        if self._micro_batches is None:
            if weight is not None:
                raise TypeError("backward(weight=...) is for ElasticAccelerator(global_batch=True)")
            super().backward(loss, **kwargs)
            return
        step = self.under_way
        if step is None:
            raise RuntimeError(
                "with global_batch=True batches come from a loader that has an edriver.ElasticSampler and is prepared: "
                "accelerator.prepare(DataLoader(dataset, batch_size=8, sampler=state.sampler))"
            )
        if not self._backward_due:
            raise RuntimeError(
                "with global_batch=True accelerator.backward is called once for each batch: add losses up before"
            )
        self._backward_due = False
        scaled = step.scale(loss, self.weight if weight is None else weight)
        root: Any = scaled if self.scaler is None else self.scaler.scale(scaled)
        root.backward(**kwargs)
        step.computed()

    def _begin_micro_batch(self, step: Step) -> None:
        self.under_way, self.weight, self._backward_due = step, None, True
        self.gradient_state._set_sync_gradients(step.is_last)

    def _end_micro_batch(self) -> None:
        if self._backward_due:
            raise RuntimeError(
                "with global_batch=True each batch has its accelerator.backward(loss), so that all workers take part "
                "in the step: one with nothing to learn from counts with weight=0"
            )

    def step_loss(self) -> float:
        """With `global_batch`, the mean loss of a step's samples, over all workers, with their weights.

        A collective: call it on all workers, where `sync_gradients` is true, between `backward` and `optimizer.step()`.

        Raises:
            RuntimeError: the step is not complete, or there is no `global_batch`.
        """
        if self.under_way is None:
            raise RuntimeError("step_loss() is known inside the loop over the loader, with global_batch=True")
        return self.under_way.loss()

    def no_sync(self, model: torch.nn.Module) -> AbstractContextManager[None]:
        """Reduce no gradients meanwhile. With `global_batch` the step knows which backward pass reduces them."""
        context: AbstractContextManager[None] = nullcontext() if self.under_way is not None else super().no_sync(model)
        return context

    def _do_sync(self) -> None:
        if self.under_way is None:
            super()._do_sync()

    def gather(self, tensor: Any) -> Any:
        """Gather tensors, as Accelerator does; with `global_batch`, inside a step, where `sync_gradients` is true."""
        self._refuse_within_step("gather")
        return super().gather(tensor)

    def reduce(self, tensor: Any, reduction: str = "sum", scale: float = 1.0) -> Any:
        """Reduce tensors, as Accelerator does; with `global_batch`, inside a step, where `sync_gradients` is true."""
        self._refuse_within_step("reduce")
        return super().reduce(tensor, reduction, scale)

    def clip_grad_norm_(self, parameters: Any, max_norm: float, norm_type: float = 2) -> Any:
        """Clip gradients, as Accelerator does; with `global_batch` where `sync_gradients` is true."""
        self._refuse_within_step("clip_grad_norm_")
        return super().clip_grad_norm_(parameters, max_norm, norm_type)

    def clip_grad_value_(self, parameters: Any, clip_value: float) -> None:
        """Clip gradients, as Accelerator does; with `global_batch` where `sync_gradients` is true."""
        self._refuse_within_step("clip_grad_value_")
        super().clip_grad_value_(parameters, clip_value)

    def _refuse_within_step(self, what: str) -> None:
        """Refuse what all workers have to do together, or with all gradients, where these are not complete."""
        if self.under_way is not None and not self.under_way.is_last:
            raise RuntimeError(
                f"with global_batch=True workers compute different numbers of micro-batches, and {what} is for the "
                "last one of a step: write `if accelerator.sync_gradients:` before it"
            )


class ElasticLoader(DataLoaderStateMixin):
    """A loader whose ElasticSampler has split the epoch, as `prepare` returns it: it places batches on the device.

    Other attributes are those of the loader.

    Args:
        loader: the loader.
        device: where batches go; None leaves them.
        non_blocking: whether copying may continue beside the host.
    """

    def __init__(self, loader: DataLoader[Any], device: torch.device | None, non_blocking: bool) -> None:
        self._loader = loader
        self._device = device
        self._non_blocking = non_blocking
        self.gradient_state = GradientState()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def __len__(self) -> int:
        return len(self._loader)

    def __iter__(self) -> Iterator[Any]:
        """The batches, one ahead, so that the last is known as such: `accumulate` makes a step there."""
        self.begin()
        self.remainder = 0  # gather_for_metrics would drop others than the samples that fill the epoch's last row
        try:
            batches, none = iter(self._loader), object()
            batch = next(batches, none)
            while batch is not none:
                following = next(batches, none)
                self.end_of_dataloader = following is none
                yield self._placed(batch)
                batch = following
        finally:
            self.end()

    def _placed(self, batch: Any) -> Any:
        return batch if self._device is None else send_to_device(batch, self._device, non_blocking=self._non_blocking)


class StepsLoader(ElasticLoader):
    """An ElasticLoader that yields this worker's micro-batches of the steps of a GlobalBatch.

    Args:
        loader, device, non_blocking: see ElasticLoader.
        accelerator: what has prepared it, and the models.
        micro_batches: in a step of all workers together.

    Attributes:
        step_size: the number of samples in a step.
    """

    def __init__(
        self,
        loader: DataLoader[Any],
        device: torch.device | None,
        non_blocking: bool,
        accelerator: ElasticAccelerator,
        micro_batches: int,
    ) -> None:
        super().__init__(loader, device, non_blocking)
        self._accelerator = accelerator
        self.step_size = micro_batches * (loader.batch_size or 1)
        self._length: int | None = None  # while it is iterated
        GlobalBatch(loader, (), self.step_size)  # refuses loaders that it cannot take

    def __len__(self) -> int:
        """The number of micro-batches that are left of the epoch, or were when its iteration began; of all workers."""
        return self.left if self._length is None else self._length

    @property
    def left(self) -> int:
        """The number of micro-batches that are not done yet."""
        done, length = self.sampler.progress()
        samples = length - done
        if self.drop_last:
            samples -= samples % self.step_size
        return int(-(-samples // self.batch_size))

    def __iter__(self) -> Iterator[Any]:
        """This worker's micro-batches; its last one of a step is where Accelerate synchronizes gradients."""
        accelerator, models = self._accelerator, self._accelerator._wrapped
        if not models:
            raise RuntimeError("with global_batch=True the model is prepared before the loader is iterated")
        self._length = len(self)
        self.begin()
        self.remainder = 0
        try:
            steps = GlobalBatch(self._loader, models, self.step_size)
            left = len(steps)
            for number, step in enumerate(steps, 1):
                for model in models:  # a step that was left in the middle has them, or a script that never drops them
                    model.zero_grad()
                for batch in step:
                    accelerator._begin_micro_batch(step)
                    self.end_of_dataloader = step.is_last and number == left
                    yield self._placed(batch)
                    accelerator._end_micro_batch()
        finally:
            self._length = accelerator.under_way = None
            self.end()


def enter_round(cpu: bool) -> None:
    """Fill Accelerate's shared states with this worker's place in the round.

    Args:
        cpu: whether to use the CPU although a GPU is available.

    Raises:
        RuntimeError: called outside of a round.
    """
    place = context.assignment()
    if not dist.is_initialized():
        raise RuntimeError(
            "there is no round here: create an ElasticAccelerator inside the function that edriver.run wraps"
        )
    leave_round()
    cpu = cpu or not torch.cuda.is_available()
    # By itself it would use "cpu:0", and move the model there from "cpu" in every round.
    device = {"accelerate_torch_device": "cpu"} if cpu else {}
    with patch_environment(  # which PartialState reads, and on a CPU sets
        **device,
        rank=place.rank,
        world_size=place.size,
        local_rank=place.local_rank,
        local_world_size=place.local_size,
        master_addr=place.store.host,  # it wants one where there are several hosts; the group is there already
        master_port="",
        omp_num_threads=torch.get_num_threads(),  # it would set another number
    ):
        state = PartialState(cpu=cpu)
    # Accelerate's device has the local rank as its number, but each worker sees one GPU.
    state.wait_for_everyone = dist.barrier


def leave_round() -> None:
    """Empty Accelerate's shared states; what refers to one sees what it is filled with next."""
    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()


def _refuse_sharding(kwargs: dict[str, Any]) -> None:
    for name, variable in _SHARDING.items():
        if kwargs.get(name) is not None:
            raise ValueError(refusal(f"ElasticAccelerator({name}=...)"))
        if os.environ.get(variable, "").lower() in ("true", "1"):
            raise ValueError(refusal(f"{variable}=true"))
    if getattr(kwargs.get("dataloader_config"), "split_batches", False):
        raise ValueError("split_batches=True has no meaning here: a loader's batch_size is that of one worker")


def refusal(setting: str) -> str:
    """Why a setting that shards the model cannot be used, and what to do."""
    return (
        f"{setting} splits the model or its optimizer among the workers; in elastic mode each holds them in full, so "
        "that any can be lost: leave it out, or use the library's own class in restart mode (edriver --mode restart)"
    )
