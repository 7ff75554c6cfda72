"""Accumulation in scripts that restart at another size: how many micro-batches a worker computes, what each counts.

For a script that accumulates gradients by itself, in restart mode or under torchrun; in elastic mode GlobalBatch does
it. Every worker computes equally many, so that sharded models can be trained: where their number cannot be shared
evenly, the last one of some workers counts 0.
"""

from __future__ import annotations

import os

from edriver.worker import context
from edriver.worker.sampler.micro_batches import FILLER, deal
from edriver.worker.sampler.sample_share import sample_share


def accumulation_steps(global_batch: int, micro_batch: int, *, rank: int | None = None, size: int | None = None) -> int:
    """The number of micro-batches that each worker computes for an optimizer step.

        for weight in edriver.accumulation_weights(256, 16):    # of this length
            (criterion(model(inputs), labels) * weight).backward()

    Args:
        global_batch: samples in a step, of all workers together.
        micro_batch: samples in a micro-batch of one worker.
        rank: this worker's among those that compute with other samples, 0 to size - 1. None: its rank; in elastic mode
            with a ShardedState, its share of the samples. In restart mode, where several workers compute with the same
            samples (tensor or pipeline parallelism), give the data-parallel rank.
        size: the number of ranks of that kind; None: the number of workers, or of shares.

    Raises:
        ValueError: a step cannot be cut into whole micro-batches.
    """
    return len(accumulation_weights(global_batch, micro_batch, rank=rank, size=size))


def accumulation_weights(
    global_batch: int, micro_batch: int, *, rank: int | None = None, size: int | None = None
) -> list[float]:
    """By what this worker multiplies the mean loss of each micro-batch of a step: see `accumulation_steps`.

    The mean over all ranks, which DistributedDataParallel and fully_shard take, is then that of the step's samples.

    Raises:
        ValueError: a step cannot be cut into whole micro-batches.
    """
    if micro_batch < 1 or global_batch < 1 or global_batch % micro_batch:
        raise ValueError(
            f"a step of {global_batch} samples cannot be cut into micro-batches of {micro_batch}: give a multiple"
        )
    own_rank, all_ranks = _place()
    rank, size = own_rank if rank is None else rank, all_ranks if size is None else size
    total = global_batch // micro_batch
    return [0.0 if number == FILLER else size / total for number in deal(range(total), size, size)[rank]]


def _place() -> tuple[int, int]:
    if "EDRIVER_WORKER_ID" not in os.environ and "RANK" in os.environ:  # torchrun's
        return int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    share = sample_share(context.assignment())
    return share.rank, share.size
