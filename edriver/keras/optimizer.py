"""DistributedOptimizer: gradients are averaged over the members before a Keras optimizer applies them.

Keras's trainer calls `optimizer.apply(gradients, variables)`. An object takes that method's place, in the optimizer
itself: its class, its variables and what is saved of it stay what they were, so a model that is saved here loads
anywhere. A peer that is lost while gradients are averaged leaves all variables as they were.

The statistics that a forward pass has written are averaged before the step begins, too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import keras
import torch

from edriver.horovod import basics
from edriver.horovod.collectives.reductions import Average, ReduceOp, chosen_op, grouped_allreduce
from edriver.horovod.compression import Compression, Compressor

Gradients = Sequence[torch.Tensor | None]


class Apply:
    """Takes the place of an optimizer's `apply`.

    Args:
        optimizer: the optimizer.

    Attributes:
        average: averages gradients first; None: they are applied as they are.
        statistics: answers with tensors that are averaged as well, so that they are the same on all members.
        before_step: called once all that is averaged, before anything is changed.
    """

    def __init__(self, optimizer: Any) -> None:
        self._apply = optimizer.apply
        self.average: GradientAverage | None = None
        self.statistics: Callable[[], list[torch.Tensor]] = list
        self.before_step: Callable[[], None] = lambda: None

    @torch.compiler.disable  # type: ignore[untyped-decorator]  # no graph can have a collective in it
    def __call__(self, grads: Gradients, trainable_variables: Any = None) -> None:
        """Average the gradients and apply them. Raises HorovodInternalError where a member is gone."""
        statistics: list[torch.Tensor] = []
        averages: list[torch.Tensor] = []
        if self.average is not None and basics.size() > 1:
            grads = self.average(grads)
            if statistics := self.statistics():
                averages = grouped_allreduce(statistics, name="statistics", op=Average)
        self.before_step()
        with torch.no_grad():
            for tensor, average in zip(statistics, averages, strict=True):
                tensor.copy_(average)
        self._apply(grads, trainable_variables)


class GradientAverage:
    """Reduces the gradients of one step, those of one type together.

    Args:
        op: Average or Sum.
        compression: how they travel.
    """

    def __init__(self, op: ReduceOp, compression: type[Compressor]) -> None:
        self._op = op
        self._compression = compression

    def __call__(self, grads: Gradients) -> Gradients:
        """Combine the members' gradients; one that is None must be None on all members.

        Raises:
            MismatchError: the members have different gradients; the message names the ranks.
            HorovodInternalError: a member is lost.
        """
        own = [grad for grad in grads if grad is not None]
        if not own:
            return grads
        reduced = iter(grouped_allreduce(own, name="gradients", compression=self._compression, op=self._op))
        return [None if grad is None else next(reduced) for grad in grads]


def apply_of(optimizer: Any) -> Apply:
    """The object in the place of this optimizer's `apply`; installed if it is not there yet."""
    if not isinstance(optimizer.apply, Apply):
        optimizer.apply = Apply(optimizer)
    apply: Apply = optimizer.apply
    return apply


def DistributedOptimizer(  # noqa: N802  Horovod's name
    optimizer: Any,
    name: str | None = None,
    compression: type[Compressor] = Compression.none,
    op: ReduceOp = Average,
    backward_passes_per_step: int = 1,
    average_aggregated_gradients: bool = False,
) -> Any:
    """Make a Keras optimizer average gradients over the members before it applies them; returns the same optimizer.

    Pass it to model.compile inside or outside of the training function; if model.compile wraps it in a
    LossScaleOptimizer, gradients are averaged before the wrapper checks them.

    Args:
        optimizer: a keras.optimizers.Optimizer.
        name: ignored; an argument of Horovod.
        compression: how to compress gradients while they are sent.
        op: Average or Sum.
        backward_passes_per_step: must be 1; Keras's optimizers accumulate gradients themselves.
        average_aggregated_gradients: ignored; an argument of Horovod.

    Raises:
        TypeError: `optimizer` is not a Keras optimizer, or is wrapped already.
        ValueError: op is neither Average nor Sum.
        NotImplementedError: backward_passes_per_step is not 1, or op is Adasum.
    """
    del name, average_aggregated_gradients
    if not isinstance(optimizer, keras.optimizers.Optimizer):
        raise TypeError(f"DistributedOptimizer takes a keras.optimizers.Optimizer, not a {type(optimizer).__name__}")
    if backward_passes_per_step != 1:
        raise NotImplementedError(
            f"backward_passes_per_step={backward_passes_per_step} is not supported: give the optimizer "
            f"gradient_accumulation_steps={backward_passes_per_step}"
        )
    if chosen_op(op, None) not in (ReduceOp.AVERAGE, ReduceOp.SUM):
        raise ValueError(f"gradients are combined by hvd.Average or hvd.Sum, not by {op.value}")
    apply = apply_of(optimizer)
    if apply.average is not None:
        raise TypeError(f"this {type(optimizer).__name__} averages gradients already: call DistributedOptimizer once")
    apply.average = GradientAverage(op, compression)
    return optimizer


def average_before_scaling(optimizer: Any) -> None:
    """Move the averaging from an optimizer to the LossScaleOptimizer that model.compile has put around it.

    That one decides by the gradients whether to make the step: all members have to decide alike.
    """
    if isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        inner = apply_of(optimizer.inner_optimizer)
        if inner.average is not None:
            outer = apply_of(optimizer)
            outer.average, inner.average = inner.average, None
