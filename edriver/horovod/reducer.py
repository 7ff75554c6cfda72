"""Reduces gradients while the backward pass continues.

A hook on each parameter counts its gradients. Once all of a bucket are there, and the buckets before it are under way,
it is reduced, in a separate group: what a script calls meanwhile does not get in the way. All members have the same
buckets in the same order: in the first step of each round they agree on the layout, which is that of the first of them
which knows one. Where none knows one, the gradients of that step are reduced after its backward pass, and the order in
which they came is the layout from then on.

The members agree once a step, when the first gradient is there, without waiting: buckets are launched as soon as the
agreement is reached. Their group is made in the first step of each round, in some milliseconds. It keeps apart what
could get in each other's way: the order in which buckets become full, which may differ between ranks where a parameter
has no part in a rank's batch, and what the script calls between the backward pass and the step. Newcomers learn the
layout from rank 0.

The step hooks of torch, by which a state knows that an optimizer has begun a step, run after the gradients are reduced:
a peer lost in the reduction leaves the state clean.
"""

from __future__ import annotations

import json
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch

from edriver.horovod import basics
from edriver.horovod.buckets import Bucket, bucketed
from edriver.horovod.collectives.handles import UnderWay
from edriver.horovod.collectives.negotiation import CollectiveCall, Reduction, agree, outline, shared
from edriver.horovod.collectives.operations import begun_later
from edriver.horovod.collectives.reductions import Average, ReduceOp
from edriver.horovod.collectives.sparse import sparse_allreduce_async
from edriver.horovod.compression import Compressor
from edriver.horovod.process_sets import CollectiveLane, ProcessSet
from edriver.model.ids import NO_ROUND
from edriver.worker.backend import tensors

_KIND = "DistributedOptimizer's gradients"


class GradientReducer:
    """The gradients of some parameters.

    Args:
        named: the parameters, each with its name, the same on all members.
        op: how gradients are combined.
        compression: how they travel.
        passes: how many backward passes there are in a step.
        predivide: divide gradients by it before they are summed up, and by the rest after that.
        sparse_as_dense: whether sparse gradients travel as dense ones.
        members: who takes part; on a rank that is not among them nothing is reduced.

    Attributes:
        passes: as given.
        accumulates: whether a backward pass counts for none of these: another one is to follow.
        factor: by which the next step's gradients are multiplied once they are reduced.
    """

    def __init__(
        self,
        named: Sequence[tuple[str, torch.Tensor]],
        op: ReduceOp,
        compression: type[Compressor],
        passes: int,
        predivide: float,
        sparse_as_dense: bool,
        members: ProcessSet,
    ) -> None:
        self.passes = passes
        self.accumulates = False
        self.factor = 1.0
        self._named = [(name, param) for name, param in named if param.requires_grad]
        self._params = [param for _, param in self._named]
        self._op, self._compression, self._predivide = op, compression, predivide
        self._sparse_as_dense, self._members = sparse_as_dense, members
        self._left: dict[int, int] = {}
        self._arrived: list[int] = []
        self._sparse: set[int] = set()
        """Whose gradients are sparse,"""
        self._apart: set[int] = set()
        """and which of them are not in buckets."""
        self._order: list[int] | None = None
        self._buckets: list[Bucket] = []
        self._bucket_of: dict[int, tuple[Bucket, int]] = {}
        self._lane: CollectiveLane | None = None
        self._included = False
        self._launched = 0
        self._round = NO_ROUND
        self._begun = False
        self._call: CollectiveCall | None = None
        self._agreement: UnderWay | None = None
        ours = weakref.ref(self)
        self._hooks = [_hooked(param, place, ours) for place, param in enumerate(self._params)]
        self._reset()

    @property
    def under_way(self) -> bool:
        """Whether gradients have been computed that are not reduced yet."""
        return self._begun and self._round == basics.place().round_id

    def close(self) -> None:
        """Take no more notice of the parameters."""
        for hook in self._hooks:
            hook.remove()

    def computed(self, place: int) -> None:
        """A parameter's gradient has been computed, in one backward pass more.

        Raises:
            AssertionError: that is one pass too many.
            MismatchError: the members do different things.
            HorovodInternalError: a member is gone.
        """
        if self.accumulates:
            return
        self._enter_round()
        if not self._included:
            return
        self._left[place] -= 1
        if self._left[place] < 0:
            raise AssertionError(
                "Gradients were computed more than backward_passes_per_step times before call to step(). Increase "
                "backward_passes_per_step to accumulate gradients locally."
            )
        if self._left[place] or self._members.size() == 1:
            return
        self._begin()
        self._arrived.append(place)
        gradient = self._params[place].grad
        if gradient is not None and gradient.is_sparse:
            self._sparse.add(place)
        if found := self._bucket_of.get(place):
            bucket, at = found
            bucket.take(at, self._scale_before())
            self._launch_those_ready()

    def synchronize(self) -> None:
        """Wait until all gradients are reduced; those that were not computed count as zeros.

        Raises:
            MismatchError: the members do different things.
            HorovodInternalError: a member is gone.
        """
        self._enter_round()
        if not self._included:
            return
        if self._members.size() == 1:
            self._multiply()
            self._reset()
            return
        self._begin()
        self._agreed(patient=True)
        if self._order is None:
            self._learn_order()
        for bucket in self._buckets[self._launched :]:
            self._launch(bucket)
        size = self._members.size()
        after = self._predivide / size if self._op is Average and self._predivide != 1.0 else 1.0
        for bucket in self._buckets:
            bucket.finish(after, self._compression)
        for place in sorted(self._sparse):
            param = self._params[place]
            if place not in self._bucket_of:
                self._reduce_sparse(self._named[place][0], param)
            elif param.grad is not None and not param.grad.is_sparse:
                # As in Horovod: what the optimizer sees is sparse. By rows, as an embedding's gradient is.
                param.grad = param.grad.to_sparse(1)
        self._multiply()
        self._reset()

    def _multiply(self) -> None:
        tensors.scale((param.grad for param in self._params), self.factor)

    # ---- the layout

    def _enter_round(self) -> None:
        """Forget what was under way in another round."""
        if self._round == basics.place().round_id:
            return
        self._round = basics.place().round_id
        self._included = self._members.included()
        self._call = self._lane = None
        self._reset()

    def _reset(self) -> None:
        self.factor = 1.0
        self._left = dict.fromkeys(range(len(self._params)), self.passes)
        self._arrived, self._launched, self._begun, self._agreement = [], 0, False, None
        for bucket in self._buckets:
            bucket.reset()

    def _begin(self) -> None:
        """Agree with all members that a step's gradients follow."""
        if self._begun:
            return
        if self._call is None:
            known = self._agree_on_layout(self._order, self._sparse)
            if known is None:
                self._buckets, self._bucket_of, self._order = [], {}, None
            else:
                self._lay_out(*known)
        else:
            self._agreement = begun_later(self._call, self._members)
        self._begun = True

    def _agreed(self, patient: bool) -> bool:
        """Whether all members are known to be at this step; with `patient`, wait until they are."""
        if self._agreement is not None and (patient or self._agreement.done()):
            with self._resetting():
                self._agreement.result()
            self._agreement = None
        return self._agreement is None

    @contextmanager
    def _resetting(self) -> Iterator[None]:
        """Discard a step on which the members disagree: nothing has been launched, so another step may follow."""
        try:
            yield
        except Exception:
            self._reset()
            raise

    def _learn_order(self) -> None:
        """Make the order in which the gradients came, in the first step of all, the layout."""
        rest = set(range(len(self._params))) - set(self._arrived)
        known = self._agree_on_layout([*self._arrived, *sorted(rest, reverse=True)], self._sparse)
        assert known is not None, "this member has said one"
        self._lay_out(*known)

    def _agree_on_layout(self, order: list[int] | None, sparse: set[int]) -> tuple[list[int], set[int]] | None:
        outlines = tuple(f"{name}: {outline(param)}" for name, param in self._named)
        with self._resetting():
            own = agree(CollectiveCall(f"{_KIND}, first step", None, outlines, self._options()), self._members).lane
        if self._lane is None:
            self._members.prepare()
            self._lane = self._members.open_lane()
        said = [json.loads(text) for text in shared(own, json.dumps([order, sorted(sparse)]))]
        first = next((order for order, _ in said if order is not None), None)
        return None if first is None else (first, {place for _, places in said for place in places})

    def _lay_out(self, order: list[int], sparse: set[int]) -> None:
        apart = set() if self._sparse_as_dense else sparse
        if order != self._order or apart != self._apart or not self._buckets:
            self._order, self._apart = order, apart
            places = {id(param): place for place, param in enumerate(self._params)}
            self._buckets = bucketed([self._params[place] for place in order if place not in apart])
            self._bucket_of = {
                places[id(param)]: (bucket, at) for bucket in self._buckets for at, param in enumerate(bucket.params)
            }
        self._sparse |= sparse
        reductions = None
        if not apart:
            reductions = tuple(Reduction(b.flat.numel(), self._travels_as(b), self._op.value) for b in self._buckets)
        self._call = CollectiveCall(_KIND, None, (f"{len(self._params)} parameters",), self._options(), reductions)
        assert self._lane is not None, "it was opened when this was agreed on"
        self._call = replace(self._call, lane=self._lane.number)

    def _travels_as(self, bucket: Bucket) -> str:
        compressed, _ = self._compression.compress(bucket.flat[:1])
        return str(compressed.dtype).removeprefix("torch.")

    def _options(self) -> str:
        return f"op={self._op.value}, compression={self._compression.__name__}"

    # ---- the reductions

    def _launch_those_ready(self) -> None:
        if not self._agreed(patient=False):
            return  # which would keep the backward pass waiting for the slowest: with the next gradient, or at its end
        while self._launched < len(self._buckets) and self._buckets[self._launched].full:
            self._launch(self._buckets[self._launched])
            self._launched += 1

    def _launch(self, bucket: Bucket) -> None:
        assert self._lane is not None, "there are buckets: it has been opened"
        bucket.launch(self._scale_before(), self._op, self._compression, self._lane)

    def _scale_before(self) -> float:
        if self._op is not Average:
            return 1.0
        return 1.0 / (self._members.size() if self._predivide == 1.0 else self._predivide)

    def _reduce_sparse(self, name: str, param: torch.Tensor) -> None:
        gradient = param.grad
        if gradient is None:
            nothing = param.new_empty(0, *param.shape[1:])
            gradient = torch.sparse_coo_tensor(
                torch.empty(1, 0, dtype=torch.int64, device=nothing.device), nothing, param.shape
            )
        param.grad = sparse_allreduce_async(gradient, name, self._op, self._members)()


def _hooked(param: torch.Tensor, place: int, reducer: weakref.ref[GradientReducer]) -> Any:
    def hook(_param: torch.Tensor) -> None:
        if (living := reducer()) is not None:
            living.computed(place)

    return param.register_post_accumulate_grad_hook(hook)  # type: ignore[no-untyped-call]
