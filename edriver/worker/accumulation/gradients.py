"""The gradients that a script accumulates: taken aside, put back, and whether a backward pass reduces them."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import Any, Protocol, TypeAlias, cast

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from edriver.worker import context
from edriver.worker.backend import tensors
from edriver.worker.backend.nccl import nccl_here

Look: TypeAlias = "tuple[list[torch.Tensor | None], list[int] | None]"
"""Gradients, and how often those that are there have been written to."""


class Reducing(Protocol):
    """A part of a model that fully_shard has sharded, or hvd.DistributedOptimizer."""

    def set_requires_gradient_sync(self, requires_gradient_sync: bool, /) -> None:
        """Whether the backward passes that follow reduce gradients."""


class Reduced(Reducing, Protocol):
    """What reduces gradients and has parameters: hvd.DistributedOptimizer. Its reduction ends in its `step`."""

    param_groups: list[dict[str, Any]]

    def scale_reduced(self, factor: float) -> None:
        """Multiply the gradients of this step once they are reduced."""


class Gradients:
    """Those of all parameters that a script trains together.

    Args:
        trained: models, wrapped as they are trained, or hvd.DistributedOptimizers.
        with_others: whether this worker trains with others, so that models have to be wrapped.

    Attributes:
        models: those of the above that are models.
        sharded: whether one is sharded by fully_shard.

    Raises:
        TypeError: a model is not wrapped.
    """

    def __init__(self, trained: Iterable[nn.Module | Reduced], with_others: bool) -> None:
        self._trained = tuple(trained)
        self._wrapped = list[DistributedDataParallel]()
        self._reducing = list[Reducing]()
        self._optimizers = list[Reduced]()
        self._reduce: bool | None = None
        self.sharded = False
        self.models = [one for one in self._trained if isinstance(one, nn.Module)]
        for one in self._trained:
            before = len(self._wrapped) + len(self._reducing)
            if not isinstance(one, nn.Module):
                self._reducing.append(one)
                self._optimizers.append(one)
                continue
            for part in one.modules():
                if isinstance(part, DistributedDataParallel):
                    self._wrapped.append(part)
                elif hasattr(part, "set_requires_gradient_sync"):  # FSDPModule: to import it takes 0.2 s
                    self._reducing.append(cast(Reducing, part))
                    self.sharded = True
            if with_others and before == len(self._wrapped) + len(self._reducing):
                raise TypeError(
                    f"this {type(one).__name__} is not wrapped in DistributedDataParallel, nor sharded by fully_shard, "
                    "so that workers would train apart: give GlobalBatch the model as it is trained, the wrapper"
                )

    @property
    def in_wrappers(self) -> bool:
        """Whether DistributedDataParallel reduces all of them, or nothing does."""
        return not self._reducing

    @functools.cached_property
    def survive_losses(self) -> bool:
        """Whether those that are not reduced count in the next round.

        Where a worker has gathered parameters from others, they do only with Gloo: NCCL's collectives of a round that
        is over end without an error, and with any values. Nor do they where all workers are one replica, which each
        loss breaks.
        """
        return not self.sharded or (context.assignment().sharding is None and nccl_here() is None)

    @functools.cached_property
    def device(self) -> torch.device:
        """Where the first of them is."""
        return self.parameters()[0].device

    def parameters(self) -> list[torch.Tensor]:
        """All parameters that learn, each once, in the same order on all workers."""
        found: dict[int, torch.Tensor] = {}
        for one in self._trained:
            all_of_it = (
                one.parameters() if isinstance(one, nn.Module) else [p for g in one.param_groups for p in g["params"]]
            )
            found |= {id(parameter): parameter for parameter in all_of_it if parameter.requires_grad}
        return list(found.values())

    def reduce_in_backward(self, reduce: bool) -> None:
        """Whether the forward and backward passes that follow reduce them; else they are accumulated on this worker."""
        if reduce is self._reduce:  # an attribute of a module costs microseconds to set
            return
        self._reduce = reduce
        for wrapped in self._wrapped:
            wrapped.require_backward_grad_sync = reduce
        for one in self._reducing:
            one.set_requires_gradient_sync(reduce)

    def take(self) -> list[torch.Tensor | None]:
        """Take them aside, without a copy: the parameters have none any more."""
        taken = []
        for place, name in self._places():
            gradient: torch.Tensor | None = getattr(place, name, None)
            taken.append(gradient)
            if gradient is not None:
                setattr(place, name, None)
        return taken

    def look(self) -> Look:
        """What they are now, for `unchanged_since`."""
        found = [getattr(place, name, None) for place, name in self._places()]
        return found, tensors.writes(gradient for gradient in found if gradient is not None)

    def unchanged_since(self, look: Look) -> bool:
        """Whether nothing has dropped them, or written to them, since that look; False where writes are not counted."""
        (before, writes), (now, writes_now) = look, self.look()
        if writes is None or writes != writes_now or len(before) != len(now):
            return False
        return all(one is other for one, other in zip(before, now, strict=True))

    def put(self, taken: list[torch.Tensor | None]) -> None:
        """Put back what `take` returned; gradients that are there are dropped."""
        for (place, name), gradient in zip(self._places(), taken, strict=True):
            if place is not None:
                setattr(place, name, gradient)

    def have_room_for(self, taken: list[torch.Tensor | None]) -> bool:
        """Whether `put` can put back what `take` returned: sharded models that are made anew have no place for it."""
        places = self._places()
        return len(places) == len(taken) and all(
            place is not None or gradient is None for (place, _), gradient in zip(places, taken, strict=True)
        )

    def _places(self) -> list[tuple[object, str]]:
        """The attributes that gradients accumulate in until they are reduced, in the same order in each round."""
        if not self.sharded:
            return [(parameter, "grad") for parameter in self.parameters()]
        from edriver.worker.backend import fsdp2  # which takes 0.2 s to import, and a sharded model has done that

        found: list[tuple[object, str]] = []
        for model in self.models:
            found += fsdp2.places_of_unreduced(model)
            apart = set(fsdp2.sharded(model))
            found += [(p, "grad") for p in fsdp2.parameters(model) if p.requires_grad and p not in apart]
        return found

    def scale_reduced(self, factor: float) -> None:
        """Multiply them, after the last backward pass of a step."""
        if factor == 1.0:
            return
        later = {id(p) for optimizer in self._optimizers for group in optimizer.param_groups for p in group["params"]}
        tensors.scale((parameter.grad for parameter in self.parameters() if id(parameter) not in later), factor)
        for optimizer in self._optimizers:
            optimizer.scale_reduced(factor)
