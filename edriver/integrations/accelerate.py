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
"""

from __future__ import annotations

import os
from collections.abc import Iterator
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
        kwargs: Accelerator's arguments.

    Raises:
        RuntimeError: called outside of a round.
        ValueError: an argument, or a setting of `accelerate config`, shards the model or the batches.
    """

    scaler: torch.amp.GradScaler | None

    def __init__(self, *, scaler: torch.amp.GradScaler | None = None, **kwargs: Any) -> None:
        _refuse_sharding(kwargs)
        enter_round(kwargs.get("cpu", False))
        super().__init__(**kwargs)
        self._begin(scaler)

    @classmethod
    def adopt(cls, accelerator: Accelerator, scaler: torch.amp.GradScaler | None) -> None:
        """Make an ElasticAccelerator of an Accelerator that a library has made since `enter_round`."""
        accelerator.__class__ = cls
        accelerator._begin(scaler)

    def _begin(self, scaler: torch.amp.GradScaler | None) -> None:
        self._wrapped: list[DistributedDataParallel] = []
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
        return ElasticLoader(data_loader, self.device if placed else None, self.non_blocking)

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
