"""What a round's first boundary finds out about a training function: what it has made of the state's models."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator

import torch
from torch.nn.parameter import UninitializedBuffer, UninitializedParameter
from torch.optim import Optimizer

from edriver.worker import context
from edriver.worker.state.handlers import refuse_sharded_module, refuse_sharded_optimizer
from edriver.worker.state.optimizer_attributes import optimizers_around

logger = logging.getLogger("edriver.worker")

MAX_NAMES = 5


def refuse_sharded(values: Iterable[object]) -> None:
    """Refuse models and optimizers that the training function has sharded.

    Raises:
        TypeError: names the part, and what to use instead.
    """
    for value in values:
        if isinstance(value, torch.nn.Module):
            refuse_sharded_module(value)
        elif isinstance(value, Optimizer):
            refuse_sharded_optimizer(value)


def refuse_uninitialized(name: str, value: object) -> None:
    """Refuse a model with lazy modules that have not been called, because they have no parameters to keep yet.

    Args:
        name: the name of the state's attribute.
        value: the attribute's value, a model or anything else.

    Raises:
        TypeError: the model has such a module; the message names the parameter or buffer, and the way out.
    """
    if not isinstance(value, torch.nn.Module):
        return
    for path, tensor in (*value.named_parameters(), *value.named_buffers()):
        if isinstance(tensor, UninitializedParameter | UninitializedBuffer):
            raise TypeError(
                f"the state's {name!r} has lazy modules that have not been called: {path!r} has no shape yet. Call the "
                "model once with a batch, of made-up data for example, before you give it to the state"
            )


def say_untrained(values: dict[str, object], remedy: str) -> None:
    """Warn, on rank 0, of parameters that have got gradients and are in no optimizer of the state.

    Args:
        values: the state's models and optimizers, by name.
        remedy: how to have the state's optimizers train them, as an imperative clause.

    Raises:
        TypeError: a ZeroRedundancyOptimizer that is not in the state has them.
    """
    names = dict(_learning_without_optimizer(values))
    if not names:
        return
    for optimizer in optimizers_around():
        if any(parameter in names for group in optimizer.param_groups for parameter in group["params"]):
            refuse_sharded_optimizer(optimizer)
    if context.assignment().rank == 0:
        listed = [*names.values()][:MAX_NAMES]
        more = f" and {len(names) - MAX_NAMES} more" if len(names) > MAX_NAMES else ""
        logger.warning(
            "%s%s get gradients but are in none of the state's optimizers: what trains them is neither synced nor "
            "rolled back, so ranks may diverge. %s; or freeze them with requires_grad_(False)",
            ", ".join(listed),
            more,
            remedy,
        )


def say_unheld(values: dict[str, object], attributes: Iterable[object], look_around: bool) -> None:
    """Warn, on rank 0, of parameters that an optimizer trains and the state does not have.

    Args:
        values: the state's models and optimizers, by name.
        attributes: the values of all of the state's attributes, which may be parameters.
        look_around: look for optimizers outside of a state that has neither a model nor an optimizer; some 0.1 s.
    """
    if context.assignment().rank != 0:
        return
    models = [value for value in values.values() if isinstance(value, torch.nn.Module)]
    optimizers = {name: value for name, value in values.items() if isinstance(value, Optimizer)}
    held: set[torch.Tensor] = {parameter for model in models for parameter in model.parameters()}
    held.update(tensors_in(list(attributes)))
    for name, optimizer in optimizers.items():
        if unheld := [parameter for parameter in _learning(optimizer) if parameter not in held]:
            logger.warning(
                "the state's %r trains %d parameters that the state does not have: they are neither synced nor rolled "
                "back, so ranks may diverge. Give the state their model, as in TorchState(model, optimizer)",
                name,
                len(unheld),
            )
    if look_around and not models and not optimizers:
        around = optimizers_around()
        if kinds := sorted({type(optimizer).__name__ for optimizer in around if [*_learning(optimizer)]}):
            logger.warning(
                "the script trains with %s, but the state has neither a model nor an optimizer: what is learnt is "
                "neither synced nor rolled back, so ranks may diverge. Give the state both, made before edriver.run, "
                "as in TorchState(model, optimizer)",
                " and ".join(kinds),
            )


def tensors_in(value: object) -> Iterator[torch.Tensor]:
    """The tensors in a value, of lists, tuples and dicts."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, list | tuple | dict):
        for part in value.values() if isinstance(value, dict) else value:
            yield from tensors_in(part)


def _learning(optimizer: Optimizer) -> Iterator[torch.Tensor]:
    """The parameters of an optimizer that have got gradients."""
    for group in optimizer.param_groups:
        yield from (parameter for parameter in group["params"] if parameter.grad is not None)


def _learning_without_optimizer(values: dict[str, object]) -> Iterator[tuple[torch.Tensor, str]]:
    optimizers = [value for value in values.values() if isinstance(value, Optimizer)]
    trained = {p for optimizer in optimizers for group in optimizer.param_groups for p in group["params"]}
    for name, value in values.items():
        if isinstance(value, torch.nn.Module):
            for path, parameter in value.named_parameters():
                if parameter.grad is not None and parameter not in trained:
                    yield parameter, f"{name}.{path}"
