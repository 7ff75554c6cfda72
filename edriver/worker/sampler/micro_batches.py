"""How the micro-batches of a step are dealt out to the workers of a round. Pure.

A step takes the next samples of the epoch's order, as many whatever the number of workers, cut into micro-batches of
consecutive samples. So what a micro-batch consists of does not depend on who computes it, and a step that has lost a
worker goes on with the micro-batches that nobody has computed yet.

All workers must take part in a step's reduction, and the positions of a replica in every forward pass. One that has
nothing to compute, or less than the others of its replica, gets *fillers*: it computes something that does not count.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from heapq import heapify, heapreplace
from typing import Final

FILLER: Final = -1
"""In a share: compute any micro-batch, with a loss that is multiplied by 0."""


@dataclass(frozen=True, slots=True)
class EpochSteps:
    """The steps that are left of an epoch.

    Args:
        first: the place in the epoch's order of the first sample that is not done.
        length: the number of samples in the epoch.
        step_size: samples in a step.
        micro_batch_size: samples in a micro-batch; it divides `step_size`.
        drop_last: whether a last step of fewer samples is left out.
    """

    first: int
    length: int
    step_size: int
    micro_batch_size: int
    drop_last: bool = False

    def __len__(self) -> int:
        left = self.length - self.first
        return left // self.step_size if self.drop_last else -(-left // self.step_size)

    def samples(self, step: int) -> range:
        """The places of a step's samples in the epoch's order; only the last step may have fewer than `step_size`."""
        start = self.first + step * self.step_size
        return range(start, min(start + self.step_size, self.length))

    def micro_batches(self, step: int) -> int:
        """The number of micro-batches in a step, of all workers together."""
        return -(-len(self.samples(step)) // self.micro_batch_size)

    def sizes(self, step: int) -> list[int]:
        """The number of samples of each micro-batch of a step."""
        return [len(self.micro_batch(step, number)) for number in range(self.micro_batches(step))]

    def micro_batch(self, step: int, number: int) -> range:
        """The places of a micro-batch's samples; the last of an epoch may be short. FILLER: the first."""
        start = max(number, 0) * self.micro_batch_size
        return self.samples(step)[start : start + self.micro_batch_size]

    def shares(
        self,
        step: int,
        workers: int,
        replica_size: int,
        done: Collection[int] = (),
        seconds: Sequence[float] | None = None,
    ) -> list[list[int]]:
        """Deal a step out: for each rank the micro-batches to compute, in this order. See `deal`.

        Args:
            step: from 0.
            workers: in the round.
            replica_size: the number of workers that make every forward pass together.
            done: micro-batches whose gradients are there.
            seconds: see `deal`.
        """
        pending = [number for number in range(self.micro_batches(step)) if number not in done]
        return deal(pending, workers, replica_size, seconds)

    def places(self, step: int, share: Sequence[int]) -> Iterator[int]:
        """The places in the epoch's order of all samples of a share."""
        for number in share:
            yield from self.micro_batch(step, number)


def deal(
    pending: Sequence[int], workers: int, replica_size: int = 1, seconds: Sequence[float] | None = None
) -> list[list[int]]:
    """Deal micro-batches out, so that all are done as early as can be; those of a replica have equally many.

    Args:
        pending: the micro-batches, ascending.
        workers: a multiple of `replica_size`.
        replica_size: see EpochSteps.shares.
        seconds: that each rank takes for a micro-batch; None: all take as long.

    Returns:
        for each rank at least one: its micro-batches, ascending, then fillers.
    """
    shares: list[list[int]] = [[] for _ in range(workers)]
    takes = [
        max((seconds or [1.0] * workers)[first : first + replica_size]) for first in range(0, workers, replica_size)
    ]
    # When each would be done with one more: the next ones go to who is done first.
    queue = [(taken, replica) for replica, taken in enumerate(takes)]
    heapify(queue)
    for at in range(0, len(pending), replica_size):
        done_at, replica = queue[0]
        for position, number in enumerate(pending[at : at + replica_size]):
            shares[replica * replica_size + position].append(number)
        heapreplace(queue, (done_at + takes[replica], replica))
    for first in range(0, workers, replica_size):
        length = max(1, len(shares[first]))
        for share in shares[first : first + replica_size]:
            share += [FILLER] * (length - len(share))
    return shares


def usual_shares(micro_batches: int, workers: int, replica_size: int = 1) -> list[list[int]]:
    """For each rank the micro-batches that it computes of a step of so many; at least one: it reads fillers from that.

    Of a step with fewer micro-batches each rank is dealt the first ones of these.
    """
    shares = deal(range(micro_batches), workers, replica_size)
    return [[n for n in share if n != FILLER] or [rank % micro_batches] for rank, share in enumerate(shares)]
