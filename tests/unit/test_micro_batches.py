"""Dealing out the micro-batches of a step: each is computed once, whatever happens to the workers."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edriver.worker.sampler.cursor import Cursor
from edriver.worker.sampler.micro_batches import FILLER, EpochSteps, deal


@given(st.integers(1, 300), st.integers(1, 9), st.integers(1, 8), st.booleans(), st.data())
def test_the_steps_of_an_epoch_take_each_sample_once_in_order(
    length: int, micro_batch: int, factor: int, drop_last: bool, data: st.DataObject
) -> None:
    first = data.draw(st.integers(0, length))
    epoch = EpochSteps(first, length, micro_batch * factor, micro_batch, drop_last)
    taken: list[int] = []
    for step in range(len(epoch)):
        numbers = range(epoch.micro_batches(step))
        assert list(epoch.places(step, numbers)) == list(epoch.samples(step))
        assert all(len(epoch.micro_batch(step, n)) == micro_batch for n in numbers[:-1])
        taken += epoch.samples(step)
    left = (length - first) % (micro_batch * factor) if drop_last else 0
    assert taken == list(range(first, length - left))


@given(st.lists(st.integers(0, 100), unique=True), st.integers(1, 6), st.integers(1, 4))
def test_micro_batches_are_dealt_out_evenly(pending: list[int], replicas: int, replica_size: int) -> None:
    shares = deal(sorted(pending), replicas * replica_size, replica_size)
    dealt = [number for share in shares for number in share if number != FILLER]
    assert sorted(dealt) == sorted(pending)
    counts = [sum(number != FILLER for number in share) for share in shares]
    assert max(counts) - min(counts) <= 1
    for first in range(0, len(shares), replica_size):
        lengths = {len(share) for share in shares[first : first + replica_size]}
        assert len(lengths) == 1, "a replica makes its forward passes together"
        assert lengths.pop() >= 1
    for share in shares:
        own = [number for number in share if number != FILLER]
        assert share == sorted(own) + [FILLER] * (len(share) - len(own)), "a short micro-batch comes last"


@given(
    st.integers(0, 40), st.lists(st.floats(0.1, 10.0), min_size=1, max_size=6), st.integers(1, 3), st.integers(0, 1000)
)
def test_shares_by_speed_end_as_early_as_can_be(total: int, paces: list[float], replica_size: int, seed: int) -> None:
    seconds = [pace * (1.0 if position else 0.9) for pace in paces for position in range(replica_size)]
    shares = deal(range(total), len(seconds), replica_size, seconds)
    assert sorted(n for share in shares for n in share if n != FILLER) == list(range(total))
    rows = [len([n for n in share if n != FILLER]) for share in shares[::replica_size]]
    paces = [max(seconds[first : first + replica_size]) for first in range(0, len(seconds), replica_size)]
    ends = max(count * pace for count, pace in zip(rows, paces, strict=True))
    rng = random.Random(seed)  # no other way to deal out as many is better
    for _ in range(20):
        other = Counter(rng.choices(range(len(paces)), k=sum(rows)))
        assert max((count * paces[replica] for replica, count in other.items()), default=0.0) >= ends - 1e-9


@given(st.integers(1, 200), st.integers(1, 9), st.integers(1, 8), st.integers(1, 12), st.sampled_from([1, 2, 3]))
def test_only_the_last_micro_batch_of_a_worker_is_short(
    length: int, micro_batch: int, factor: int, replicas: int, replica_size: int
) -> None:
    """So a loader that cuts the samples of all shares into micro-batches cuts them where they end."""
    epoch = EpochSteps(0, length, micro_batch * factor, micro_batch)
    workers = replicas * replica_size
    for rank in range(workers):
        shares = [epoch.shares(step, workers, replica_size)[rank] for step in range(len(epoch))]
        sizes = [len(epoch.micro_batch(step, n)) for step, share in enumerate(shares) for n in share]
        assert set(sizes[:-1]) <= {micro_batch}


@pytest.mark.parametrize("seed", range(1000))
def test_every_sample_counts_once_through_any_losses_and_resizes(seed: int) -> None:
    """A model of a run: what each worker has accumulated counts if no loss comes before the reduction."""
    rng = random.Random(seed)
    length, micro_batch, factor = rng.randint(1, 120), rng.randint(1, 5), rng.randint(1, 10)
    cursor = Cursor(length)
    counted: Counter[int] = Counter()
    kept: list[list[int]] = [[] for _ in range(rng.randint(1, 6))]  # what each worker has of the current step
    while cursor.offset < length:
        epoch = EpochSteps(cursor.offset, length, micro_batch * factor, micro_batch)
        shares = epoch.shares(0, len(kept), 1, [number for worker in kept for number in worker])
        ends = rng.choice(["well", "well", "well", "loss between micro-batches", "loss while reducing"])
        if ends == "loss between micro-batches":
            for worker, share in zip(kept, shares, strict=True):
                so_far = share[: rng.randint(0, len(share) - 1)]
                worker += [number for number in so_far if number != FILLER]
        elif ends == "loss while reducing":  # of some: the others have their last micro-batch to come
            reducing = rng.randrange(len(kept))
            for at, (worker, share) in enumerate(zip(kept, shares, strict=True)):
                if at == reducing:
                    worker.clear()
                else:
                    worker += [number for number in share[:-1] if number != FILLER]
        else:
            for worker, share in zip(kept, shares, strict=True):
                worker += [number for number in share if number != FILLER]
                counted.update(epoch.places(0, worker))
                worker.clear()
            cursor.record_step(len(epoch.samples(0)))
            if rng.random() < 0.3:  # a resize, at a boundary
                kept = [[] for _ in range(rng.randint(1, 6))]
            continue
        if len(kept) > 1:
            kept.pop(rng.randrange(len(kept)))
        while rng.random() < 0.3:
            kept.append([])
    assert counted == Counter(range(length))
