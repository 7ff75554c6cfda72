"""What an optimizer has in attributes of its own, beside its groups and its state: nothing of that is kept."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Mapping
from typing import Any, Final

import torch
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

from edriver.worker.backend.local_steps import REPLACED
from edriver.worker.backend.nested_steps import has_hooks

_BOUND: Final = ("state", "step", REPLACED)


def attributes(optimizer: Optimizer) -> Iterator[tuple[str, Any]]:
    """An optimizer's attributes, apart from its state, its hooks and what is bound to it."""
    return ((k, v) for k, v in vars(optimizer).items() if k not in _BOUND and not has_hooks(k))


def optimizers_around() -> Iterator[Optimizer]:
    """All optimizers of this process. It looks at all of its objects, which takes some 0.1 s."""
    return (thing for thing in gc.get_objects() if issubclass(type(thing), Optimizer))


def refuse_hidden_state(optimizer: Optimizer) -> None:
    """Refuse an optimizer of which something is neither kept nor bound to another round's mesh.

    Raises:
        TypeError: it steps with another optimizer, whose state is not its own, or has a DTensor outside of its state.
    """
    name, own = type(optimizer).__name__, _parameters(optimizer)
    for attribute, value in attributes(optimizer):
        for part in _parts_of(value):
            if isinstance(part, Optimizer) and part.state is not optimizer.state:
                what = f"steps with another optimizer, {type(part).__name__}, whose state is not its own"
            elif isinstance(part, DTensor) and part not in own:
                what = f"keeps a DTensor in its attribute {attribute!r}, and not in its state"
            else:
                continue
            raise TypeError(
                f"this {name} {what}, so a ShardedState cannot keep it: use an optimizer that keeps what it has of a "
                "parameter in `state`, as torch's do, or train in restart mode, with edriver.checkpoints in memory"
            )


def refuse_untwinned(optimizer: Optimizer) -> None:
    """Refuse an optimizer of which a second one, for other parameters, would write to those of the first.

    Raises:
        TypeError: it has parameters, or what has them, elsewhere than in its groups and its state.
    """
    own = _parameters(optimizer)
    for attribute, value in attributes(optimizer):
        if attribute == "param_groups":
            continue
        if any(isinstance(part, Optimizer | torch.nn.Module) or part in own for part in _parts_of(value)):
            raise TypeError(
                f"{type(optimizer).__name__} refers to its parameters in its attribute {attribute!r}, too, and "
                "--replica-size all needs a second one of it, for the shadow's parameters: use an optimizer that has "
                "them in its param_groups alone, as torch's AdamW does, or give --replica-size a number"
            )


def refuse_other_optimizers(optimizer: Optimizer) -> None:
    """Refuse that others train the parameters of an optimizer, too: such as one for each, in the backward pass.

    It looks at all objects of this process, which takes some 0.1 s.

    Raises:
        TypeError: one has made a step.
    """
    if not _others_of(optimizer):
        return
    gc.collect()  # one that the script has dropped, as after a search for a learning rate, may still be there
    for other in _others_of(optimizer):
        raise TypeError(
            f"another optimizer, {type(other).__name__}, trains the parameters of the state's "
            f"{type(optimizer).__name__}, and what it keeps of them is in no state: have one optimizer, which "
            "`optimizer` makes, make a step after the backward pass"
        )


def _others_of(optimizer: Optimizer) -> list[Optimizer]:
    """Optimizers that keep something of an optimizer's parameters, apart from it and what wraps it."""
    own, found = _parameters(optimizer), []
    for other in optimizers_around():
        kept = getattr(other, "state", {})
        wraps = any(value is optimizer for value in vars(other).values())
        if kept is not optimizer.state and not wraps and any(parameter in own for parameter in kept):
            found.append(other)
    return found


def _parameters(optimizer: Optimizer) -> set[torch.Tensor]:
    return {parameter for group in optimizer.param_groups for parameter in group["params"]}


def _parts_of(value: Any, seen: frozenset[int] = frozenset()) -> Iterator[Any]:
    """The tensors, modules and optimizers in a value, which may contain itself."""
    if isinstance(value, torch.Tensor | Optimizer | torch.nn.Module):
        yield value
    elif isinstance(value, Mapping | list | tuple | set | frozenset) and id(value) not in seen:
        parts = (*value.keys(), *value.values()) if isinstance(value, Mapping) else value
        for part in parts:
            yield from _parts_of(part, seen | {id(value)})
