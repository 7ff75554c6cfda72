"""DistributedOptimizer: an optimizer whose gradients are reduced over all members, during the backward pass."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.optim import Optimizer

from edriver.horovod.collectives.reductions import Average, ReduceOp, Sum, chosen_op
from edriver.horovod.compression import Compression, Compressor
from edriver.horovod.process_sets import ProcessSet, global_process_set
from edriver.horovod.reducer import GradientReducer


class _Distributed:
    """The mixin placed before an optimizer's class."""

    _reducer: GradientReducer
    _make_reducer: Callable[[Any, int], GradientReducer]
    _synchronized: bool
    _should_synchronize: bool

    def synchronize(self) -> None:
        """Wait until all gradients are reduced: to clip them, for instance, before `step`.

        Raises:
            MismatchError: the members do different things.
            HorovodInternalError: a member is gone.
        """
        self._reducer.synchronize()
        self._synchronized = True

    @contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        """Have `step` rely on `synchronize` having been called."""
        self._should_synchronize = False
        try:
            yield
        finally:
            self._should_synchronize = True

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Reduce the gradients, unless that is to be skipped, and make a step.

        Args:
            closure: computes the loss and the gradients, which are reduced each time.

        Raises:
            MismatchError: the members do different things.
            HorovodInternalError: a member is gone; nothing has been changed.
        """
        base: Any = super()
        if closure is not None:
            function = closure

            def synchronized() -> Any:
                with torch.enable_grad():
                    loss = function()
                self._reducer.synchronize()
                return loss

            return base.step(synchronized)
        if self._should_synchronize:
            if self._synchronized:
                warnings.warn(
                    "optimizer.step() called without optimizer.skip_synchronize() context after "
                    "optimizer.synchronize(). This can cause training slowdown. You may want to consider using "
                    "optimizer.skip_synchronize() context if you use optimizer.synchronize() in your code.",
                    stacklevel=2,
                )
            self._reducer.synchronize()
        self._synchronized = False
        return base.step()

    # Else torch would run the optimizer's step hooks around the reduction as well, and edriver would take the
    # parameters for changed while it continues.
    step.hooked = True  # type: ignore[attr-defined]

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget all gradients.

        Raises:
            AssertionError: some are being reduced.
        """
        if self._reducer.under_way:
            raise AssertionError(
                "optimizer.zero_grad() was called after loss.backward() but before optimizer.step() or "
                "optimizer.synchronize(). This is prohibited as it can cause a race condition."
            )
        base: Any = super()
        base.zero_grad(set_to_none)

    def set_backward_passes_per_step(self, passes: int) -> None:
        """Change how many backward passes there are in a step."""
        self._reducer.close()
        self._reducer = self._make_reducer(self, passes)

    def set_requires_gradient_sync(self, requires_gradient_sync: bool) -> None:
        """Whether the backward passes that follow count as those of a step; else their gradients are accumulated, as
        with fully_shard's method of this name: edriver.GlobalBatch calls it.
        """
        self._reducer.accumulates = not requires_gradient_sync

    def scale_reduced(self, factor: float) -> None:
        """Multiply the gradients of this step by a factor once they are reduced."""
        self._reducer.factor = factor

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add parameters."""
        base: Any = super()
        base.add_param_group(param_group)
        self.set_backward_passes_per_step(self._reducer.passes)


def DistributedOptimizer(  # noqa: N802  Horovod's name, of what was a class
    optimizer: Optimizer,
    named_parameters: Iterable[tuple[str, torch.Tensor]] | None = None,
    compression: type[Compressor] = Compression.none,
    backward_passes_per_step: int = 1,
    op: ReduceOp = Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: Any = None,
    sparse_as_dense: bool = False,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Return an optimizer that reduces gradients over all members before each step.

    Its class is a subclass of the optimizer's class, and it shares the optimizer's state and parameter groups;
    wrapping again replaces the wrapper. A parameter without a gradient in a step gets zeros, as in Horovod.

    Args:
        optimizer: the optimizer to wrap.
        named_parameters: `model.named_parameters()`, for names in errors.
        compression: how to compress gradients while they are sent.
        backward_passes_per_step: the number of backward passes before each `step`, whose gradients are accumulated.
        op: hvd.Average or hvd.Sum.
        gradient_predivide_factor: the divisor before gradients are summed; the rest of the division follows the sum.
        num_groups: ignored: gradients are grouped by size.
        groups: ignored: gradients are grouped by size.
        sparse_as_dense: whether to convert sparse gradients to dense ones; else their rows are gathered.
        process_set: the ranks that take part.

    Raises:
        ValueError: names are missing or not unique, or a divisor is given for an operation other than Average.
        NotImplementedError: op is Adasum.
    """
    del num_groups, groups
    op = chosen_op(op, None)
    if op not in (Average, Sum):
        raise ValueError(f"DistributedOptimizer reduces gradients by hvd.Average or hvd.Sum, not {op.value}")
    if gradient_predivide_factor != 1.0 and op is not Average:
        raise ValueError("gradient_predivide_factor not supported with op != Average")
    given = None if named_parameters is None else list(named_parameters)

    def make_reducer(of: Optimizer, passes: int) -> GradientReducer:
        names = {id(param): name for name, param in given or ()}
        params = [param for group in of.param_groups for param in group["params"]]
        named = [(names.get(id(param), f"allreduce.noname.{place}"), param) for place, param in enumerate(params)]
        return GradientReducer(
            named, op, compression, passes, gradient_predivide_factor, sparse_as_dense, process_set
        )  # fmt: skip

    base: Any = type(optimizer)
    if isinstance(optimizer, _Distributed):
        optimizer._reducer.close()
        base = base.__mro__[2]
    if given is not None:
        _check_names(optimizer, given)
    cls: Any = type(base.__name__, (_Distributed, base), {"__module__": __name__})
    distributed = cls.__new__(cls)
    # A scheduler that was made before has put a `step` of the wrapped optimizer there.
    distributed.__dict__.update({key: value for key, value in vars(optimizer).items() if key != "step"})
    distributed._make_reducer = make_reducer
    distributed._synchronized, distributed._should_synchronize = False, True
    distributed._reducer = make_reducer(distributed, backward_passes_per_step)
    return distributed


def _check_names(optimizer: Optimizer, given: list[tuple[str, torch.Tensor]]) -> None:
    """Check that each parameter has a unique name.

    Raises:
        ValueError: names are missing or not unique.
    """
    if any(not isinstance(pair, tuple) for pair in given):
        raise ValueError(
            "named_parameters should be a sequence of tuples (name, parameter), usually produced by "
            "model.named_parameters()."
        )
    if twice := [name for name, count in Counter(name for name, _ in given).items() if count > 1]:
        raise ValueError(
            f"Parameter names in named_parameters must be unique. Found duplicates: {', '.join(sorted(twice))}"
        )
    named = {id(param) for _, param in given}
    params = [param for group in optimizer.param_groups for param in group["params"]]
    if unnamed := [place for place, param in enumerate(params) if id(param) not in named]:
        raise ValueError(
            "named_parameters was specified, but one or more model parameters were not named: those at "
            f"{', '.join(map(str, unnamed[:5]))} of the optimizer's {len(params)}"
        )
