"""What a worker has accumulated of a step in which another one was lost, kept from one round to the next.

Gradients that have not been reduced yet are of this worker's micro-batches alone. The state goes back to the last
boundary, from which these micro-batches were computed, so their gradients count in the next round as well: the members
tell one another which micro-batches they have, and deal out the others. As long as no member has begun the step's
reduction, only what the lost worker had computed is computed again. So it is with a sharded model, whose gradients are
reduced over its shards as well: until then each worker has those of whole parameters.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import torch
import torch.distributed as dist

from edriver.model.ids import NO_ROUND, RoundId, Version
from edriver.worker import context
from edriver.worker.accumulation.fixed_order import Vectors
from edriver.worker.accumulation.gradients import Gradients
from edriver.worker.backend import tensors


@dataclass
class Unfinished:
    """A worker's part of a step that has not been reduced.

    Attributes:
        version: of the boundary that the step follows.
        begins_at: how far the epoch was done when the step began. It need not be the first step after the boundary: one
            that GradScaler skips has none.
        factor: by which its losses were multiplied, besides their shares of the step.
        micro_batches: those that it has computed.
        gradients: their sum, for each parameter.
        vectors: in a fixed order of summation, the gradients of each micro-batch instead.
        losses: of each micro-batch, and what they count.
        weights: see Step.scale.
        moved: how far each micro-batch has moved running statistics; see running_statistics.py.
    """

    version: Version
    begins_at: object
    factor: float
    micro_batches: list[int]
    gradients: list[torch.Tensor | None]
    vectors: dict[int, Vectors]
    losses: dict[int, tuple[torch.Tensor, float | torch.Tensor]]
    weights: dict[int, torch.Tensor]
    moved: dict[int, torch.Tensor]


class Source(Protocol):
    """A sampler, or a stream."""

    def samples_done(self) -> object:
        """How far the epoch is done, and which epoch it is."""


class UnfinishedSteps:
    """Of this process, by the sampler or stream whose samples they have."""

    def __init__(self) -> None:
        self._kept: weakref.WeakKeyDictionary[Source, Unfinished] = weakref.WeakKeyDictionary()
        self._asked: weakref.WeakKeyDictionary[Source, RoundId] = weakref.WeakKeyDictionary()

    def keep(self, source: Source, unfinished: Unfinished) -> None:
        """Keep it for the next round."""
        self._kept[source] = unfinished

    def taken_up(self, source: Source, micro_batches: int, gradients: Gradients) -> Resumption:
        """At a sampler's or stream's first step of a round, what the members have of that step; later nothing. A
        collective.

        Args:
            source: the same on all members.
            micro_batches: in the step.
            gradients: that a part of it is to be put back into.
        """
        place, rounds = context.assignment(), context.current.rounds
        if self._asked.get(source, NO_ROUND) == place.round_id:
            return NOTHING_DONE
        kept = self._kept.get(source)
        if kept is not None and (
            rounds is None
            or kept.version != rounds.version
            or kept.begins_at != source.samples_done()
            or not gradients.have_room_for(kept.gradients)
        ):
            kept = None  # the round continues from another version, with another step, or with another model
        have = torch.zeros(micro_batches, dtype=torch.uint8)
        if kept is not None:
            have[kept.micro_batches] = 1
        all_have = [have]
        if place.size > 1 and dist.is_initialized():
            have = have.to(gradients.device)
            all_have = [torch.empty_like(have) for _ in range(place.size)]
            dist.all_gather(all_have, have)  # if another worker is lost here, what is kept counts in the next round
        self._kept.pop(source, None)
        self._asked[source] = place.round_id
        done = each_once([row.nonzero().flatten().tolist() for row in all_have])
        return Resumption(kept if done[place.rank] else None, done)


def each_once(done: Sequence[Sequence[int]]) -> list[Sequence[int]]:
    """What of each rank's micro-batches counts, so that none counts twice: all of them, or none.

    A worker that waited while others tried the step again may have what these have as well, and sums cannot be taken
    apart. Those that have most count first.

    Args:
        done: by rank.
    """
    counted: set[int] = set()
    found: list[Sequence[int]] = [()] * len(done)
    for rank in sorted(range(len(done)), key=lambda rank: -len(done[rank])):
        if counted.isdisjoint(done[rank]):
            found[rank] = done[rank]
            counted.update(done[rank])
    return found


@dataclass(frozen=True)
class Resumption:
    """A step that is taken up again.

    Attributes:
        own: what this worker has of it.
        done: the micro-batches that each rank has; empty: none has any.
    """

    own: Unfinished | None
    done: Sequence[Sequence[int]]

    @property
    def numbers(self) -> set[int]:
        """The micro-batches that any rank has."""
        return {number for row in self.done for number in row}

    def into(self, gradients: Gradients, factor: float) -> None:
        """Put back the gradients that this worker has, as if losses had been multiplied by this factor."""
        if self.own is not None:
            tensors.scale(self.own.gradients, factor / self.own.factor)
            gradients.put(self.own.gradients)


NOTHING_DONE: Final = Resumption(None, [])
"""No worker has any of the step."""
