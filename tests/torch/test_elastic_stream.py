"""ElasticStream: random schedules of losses, resizes and rollbacks; each sample is trained on exactly once.

With steps of a fixed number of samples, each step has the same samples whatever the schedule.

Workers are threads, with the real stream, its loader, and a TorchState. What all ranks have trained on is part of the
state, as a model's parameters are: it goes back where the state goes back.
"""

from __future__ import annotations

import array
import copy
import random
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from torch.utils.data import DataLoader

import edriver
from edriver.model.ids import RoundId
from edriver.model.plan import SINGLE_WORKER
from edriver.worker import context
from edriver.worker.sampler import stream_loader
from edriver.worker.sampler.elastic_stream import ElasticStream
from edriver.worker.sampler.micro_batches import FILLER, deal
from edriver.worker.sampler.stream_reader import Reply, Request
from tests.torch.bound_state import Rounds

SHARD = 100_000
"""Sample n of shard s is s * SHARD + n."""

BOUND = 240.0

SEEDS = [*range(30), *(pytest.param(seed, marks=pytest.mark.long) for seed in range(30, 160))]


class LostError(Exception):
    """A member of the round is gone."""


class KilledError(Exception):
    """This worker is."""


class StoppedError(Exception):
    """All members have stopped at the same boundary."""


def plain(shard: tuple[int, int]) -> Iterator[int]:
    number, length = shard
    return iter(range(number * SHARD, number * SHARD + length))


class Stateful:
    """A reader that can be taken up."""

    def __init__(self, shard: tuple[int, int]) -> None:
        self._number, self._length = shard
        self._at = 0

    def __iter__(self) -> Iterator[int]:
        while self._at < self._length:
            self._at += 1
            yield self._number * SHARD + self._at - 1

    def state_dict(self) -> dict[str, int]:
        return {"at": self._at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self._at = state["at"]


class Loader:
    """A DataLoader whose processes are objects; one in so many requests goes to the wrong one."""

    def __init__(self, dataset: Any, sampler: Sequence[Request], num_workers: int = 0, **_: Any) -> None:
        self._processes = [copy.copy(dataset) for _ in range(max(1, num_workers))]
        for process in self._processes:
            process._open = {}
        self._requests = sampler
        self._astray = random.Random(num_workers)

    def __iter__(self) -> Iterator[Reply]:
        answers = []
        for number, request in enumerate(list(self._requests)):
            astray = request.keep is None and self._astray.random() < 0.02
            answers.append(self._processes[(number + astray) % len(self._processes)][request])
        return iter(answers)


@dataclass
class Round:
    """What the members of a round wait for one another in."""

    size: int
    stop_at: int
    kill: tuple[int, int, str] | None
    changed: threading.Condition = field(default_factory=threading.Condition)
    given: dict[Any, dict[int, Any]] = field(default_factory=dict)
    ended: bool = False

    def gather(self, key: Any, rank: int, value: Any) -> list[Any]:
        with self.changed:
            found = self.given.setdefault(key, {})
            found[rank] = value
            self.changed.notify_all()
            assert self.changed.wait_for(lambda: len(found) == self.size or self.ended, BOUND), f"waits for {key}"
            if len(found) < self.size:
                raise LostError
            return [found[member] for member in range(self.size)]

    def end(self) -> None:
        with self.changed:
            self.ended = True
            self.changed.notify_all()

    def first_shares(self, micro_batches: int) -> list[list[int]]:
        """How the first step of the round is dealt out: as if any part of it had been computed before, for example."""
        rng, shares = random.Random(f"{self.stop_at} {self.kill}"), [list[int]() for _ in range(self.size)]
        for number in range(micro_batches):
            rng.choice(shares).append(number)
        return shares


class Here(threading.local):
    """Where this thread is."""

    place: Any
    round: Round
    exchanges: int


here = Here()


class Exchange:
    def __init__(self, text: str) -> None:
        here.exchanges += 1
        self._key = ("exchange", here.exchanges)
        with here.round.changed:
            here.round.given.setdefault(self._key, {})[here.place.rank] = text

    def texts(self) -> list[str]:
        return here.round.gather(self._key, here.place.rank, here.round.given[self._key][here.place.rank])


class Worker:
    """One worker: its stream and state; versions are counts of boundaries."""

    def __init__(self, job: Job) -> None:
        self.stream = ElasticStream(job.shards, Stateful if job.stateful else plain, seed=job.seed)
        self.state = edriver.TorchState(stream=self.stream, trained=b"", epoch=0)
        self.state.bind(Rounds())
        self.loader = self.stream.loader(
            job.batch_size, drop_last=job.drop_last, num_workers=job.lanes, persistent_workers=True, collate_fn=tuple
        )
        self.micro_batches = job.micro_batches
        self.version = self.committed = 0
        self.failure: BaseException | None = None

    def train(self, job: Job, the_round: Round, rank: int) -> None:
        here.round, here.exchanges = the_round, 0
        here.place = replace(SINGLE_WORKER, round_id=RoundId(1, id(the_round)), rank=rank, size=the_round.size)
        try:
            self._train(job, the_round, rank)
        except (LostError, KilledError, StoppedError):
            pass
        except BaseException as error:  # noqa: BLE001  the test looks at it
            self.failure = error
        finally:
            the_round.end()

    def _train(self, job: Job, the_round: Round, rank: int) -> None:
        self.state.on_reset()
        step = 0
        while self.state.epoch < job.epochs:
            self.stream.set_epoch(self.state.epoch)
            for batches in self._batches(job, the_round, rank):
                step += 1
                self._die(the_round, rank, step, "before")
                self._step(the_round, rank, step, batches)
                self._pass(job, the_round, rank, step)
            step += 1
            self._step(the_round, rank, step, {rank: ()} if not job.micro_batches else {})
            self.state.epoch += 1
            self._pass(job, the_round, rank, step)

    def _batches(self, job: Job, the_round: Round, rank: int) -> Iterator[dict[int, Sequence[int]]]:
        """For each step what this worker takes, by rank or by the number of the micro-batch."""
        if not job.micro_batches:
            for batch in self.loader:
                yield {rank: batch}
            return
        reading = self.loader.steps(job.micro_batches, rank, the_round.size)
        shares = the_round.first_shares(job.micro_batches)
        while sizes := reading.sizes():
            share = [n for n in shares[rank] if n < len(sizes)] or [FILLER]
            batches = list(reading.batches(share))
            assert len(batches) == len(share)
            assert all(len(batch) == sizes[n] for n, batch in zip(share, batches, strict=True) if n != FILLER)
            reading.record()
            yield {n: batch for n, batch in zip(share, batches, strict=True) if n != FILLER}
            shares = deal(range(job.micro_batches), the_round.size)

    def _step(self, the_round: Round, rank: int, step: int, batches: dict[int, Sequence[int]]) -> None:
        of_all = the_round.gather(("step", step), rank, batches)
        found = {number: batch for of_one in of_all for number, batch in of_one.items()}
        assert len(found) == sum(map(len, of_all)), f"computed twice: {of_all}"
        if not self.micro_batches:
            assert len({bool(each) for each in found.values()}) == 1, f"unequal steps: {of_all}"
            assert len({len(each) for each in found.values()}) == 1, f"unequal batches: {of_all}"
        self.state.trained += array.array("q", [n for _, batch in sorted(found.items()) for n in batch]).tobytes()

    def _pass(self, job: Job, the_round: Round, rank: int, step: int) -> None:
        self._die(the_round, rank, step, "torn")
        if step % job.commit_every == 0:
            self.state.commit()
        else:
            self.state.check_host_updates()
        self.version += 1
        if step % job.commit_every == 0:
            self.committed = self.version
        self._die(the_round, rank, step, "after")
        if step == the_round.stop_at:
            the_round.gather("stop", rank, None)
            raise StoppedError

    def _die(self, the_round: Round, rank: int, step: int, where: str) -> None:
        if the_round.kill == (rank, step, where):
            raise KilledError

    def go_back(self, torn: bool) -> None:
        """To the last boundary, or to the last commit."""
        if torn:
            self.state.restore()
            self.version = self.committed
        else:
            assert self.state.clean
            self.state.return_to_boundary()


@dataclass
class Job:
    seed: int
    shards: list[tuple[int, int]]
    batch_size: int
    drop_last: bool
    stateful: bool
    lanes: int
    commit_every: int
    micro_batches: int = 0
    epochs: int = 2


def job_of(rng: random.Random, seed: int) -> Job:
    longest = rng.choice([3, 20, 60])
    return Job(
        seed,
        shards=[(number, rng.randint(0, longest)) for number in range(rng.choice([1, 2, 5, 12]))],
        batch_size=rng.choice([1, 2, 3, 8]),
        drop_last=rng.random() < 0.5,
        stateful=rng.random() < 0.5,
        lanes=rng.choice([0, 1, 2, 3]),
        commit_every=rng.choice([1, 3, 1000]),
    )


def new_workers(job: Job, size: int) -> list[Worker]:
    workers = [Worker(job) for _ in range(size)]
    for worker in workers:
        worker.state.save()
        worker.state.keep_small()
    return workers


def train(job: Job, the_round: Round, workers: list[Worker]) -> None:
    threads = [
        threading.Thread(target=worker.train, args=(job, the_round, rank), daemon=True)
        for rank, worker in enumerate(workers)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(BOUND)
        assert not thread.is_alive()
    for worker in workers:
        if worker.failure is not None:
            raise worker.failure


def undisturbed(job: Job) -> list[int]:
    """What one worker trains on."""
    (alone,) = workers = new_workers(job, 1)
    train(job, Round(1, stop_at=-1, kill=None), workers)
    return array.array("q", alone.state.trained).tolist()


def run_job(job: Job, rng: random.Random) -> list[Worker]:
    """Train to the end; returns the last round's workers."""
    workers = new_workers(job, rng.randint(1, 4))
    while True:
        size = len(workers)
        kill = (rng.randrange(size), rng.randint(1, 12), rng.choice(["before", "torn", "after"]))
        the_round = Round(size, stop_at=rng.randint(1, 25), kill=kill if size > 1 and rng.random() < 0.6 else None)
        train(job, the_round, workers)
        if all(worker.state.epoch == job.epochs for worker in workers):
            return workers
        stopped = "stop" in the_round.given and len(the_round.given["stop"]) == size
        if not stopped:
            assert the_round.kill is not None
            del workers[the_round.kill[0]]
            for worker in workers:
                worker.go_back(torn=rng.random() < 0.3)
        elif size > 1 and rng.random() < 0.5:
            del workers[rng.randrange(size)]
        source = max(workers, key=lambda worker: worker.version)
        workers += [Worker(job) for _ in range(rng.randint(0, 5 - len(workers)) if rng.random() < 0.5 else 0)]
        rng.shuffle(workers)
        for worker in workers:
            if worker.version < source.version or not worker.state.has_commit:
                worker.state._load(copy.deepcopy(source.state._capture()))
                worker.version = worker.committed = source.version
                worker.state.save()
            worker.state.keep_small()
            assert worker.state.digest(committed=False) == source.state.digest(committed=False)


@pytest.fixture
def simulated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(context, "assignment", lambda: here.place)
    monkeypatch.setattr(stream_loader, "StoreAllGather", Exchange)
    monkeypatch.setattr(stream_loader, "DataLoader", Loader)


@pytest.mark.usefixtures("simulated")
@pytest.mark.parametrize("seed", SEEDS)
def test_each_sample_is_trained_on_once_through_any_losses_and_resizes(seed: int) -> None:
    rng = random.Random(seed)
    job = job_of(rng, seed)
    workers = run_job(job, rng)
    everything = Counter({sample: job.epochs for shard in job.shards for sample in plain(shard)})
    for worker in workers:
        trained = Counter(array.array("q", worker.state.trained))
        missing, repeated = everything - trained, trained - everything
        # Rounds of up to 5 workers: what is left out is less than a batch of each, what is repeated a row of the last.
        assert missing.total() < (5 * job.batch_size * job.epochs if job.drop_last else 1)
        assert repeated.total() <= (0 if job.drop_last else 4 * job.epochs)
        assert set(trained) <= set(everything)


@pytest.mark.usefixtures("simulated")
@pytest.mark.parametrize("seed", SEEDS)
def test_steps_of_a_fixed_size_have_the_same_samples_through_any_losses_and_resizes(seed: int) -> None:
    rng = random.Random(seed)
    job = replace(job_of(rng, seed), micro_batches=rng.choice([1, 2, 3, 4, 7, 20]))
    alone = undisturbed(replace(job, lanes=0))
    everything = Counter({sample: job.epochs for shard in job.shards for sample in plain(shard)})
    missing = everything - Counter(alone)
    assert not Counter(alone) - everything, "none is repeated"
    assert missing.total() < (job.batch_size * job.micro_batches * job.epochs if job.drop_last else 1)
    for worker in run_job(job, rng):
        assert array.array("q", worker.state.trained).tolist() == alone


def stream_of(*lengths: int) -> ElasticStream:
    return ElasticStream(list(enumerate(lengths)), plain, shuffle=False)


def test_a_dataloader_over_a_stream_is_refused() -> None:
    loader: DataLoader[int] = DataLoader(stream_of(4))  # type: ignore[arg-type]  # what is tested
    with pytest.raises(TypeError, match=r"iterate stream\.loader\(batch_size="):
        list(loader)
    with pytest.raises(TypeError, match=r"iterate stream\.loader\(batch_size="):
        list(stream_of(4))


@pytest.mark.parametrize("name", ["sampler", "batch_sampler", "shuffle", "in_order"])
def test_options_that_choose_samples_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match=f"takes no {name}"):
        stream_of(4).loader(2, **{name: None})  # type: ignore[arg-type]


def test_other_bad_input_is_named() -> None:
    with pytest.raises(ValueError, match="at least one shard"):
        stream_of()
    with pytest.raises(ValueError, match="batch_size is 0"):
        stream_of(4).loader(0)
    with pytest.raises(TypeError, match="not known until it has been read"):
        len(stream_of(4).loader(2))


def test_a_stream_outside_the_state_raises_in_the_next_round() -> None:
    stream = stream_of(8)
    context.current.place.enter(SINGLE_WORKER)
    next(iter(stream.loader(2)))
    context.current.place.enter(replace(SINGLE_WORKER, round_id=RoundId(1, 2)))
    with pytest.raises(RuntimeError, match=r"belongs to round 0\.1, which is over.*give it to the state"):
        next(iter(stream.loader(2)))


def test_an_iteration_ends_where_another_begins_and_what_it_read_ahead_is_not_lost() -> None:
    stream = stream_of(40)
    loader = stream.loader(2, collate_fn=tuple, num_workers=1, persistent_workers=True)
    first = iter(loader)
    assert [next(first) for _ in range(3)] == [(0, 1), (2, 3), (4, 5)]
    assert [sample for batch in loader for sample in batch] == list(range(6, 40))
    with pytest.raises(RuntimeError, match="this iteration of the stream's loader is over"):
        next(first)


@pytest.mark.parametrize(("batches", "words"), [(2, "epoch 0 of the stream ends unfinished, after 4 samples"), (9, "")])
def test_an_epoch_that_is_left_open_is_named(caplog: pytest.LogCaptureFixture, batches: int, words: str) -> None:
    stream = stream_of(6, 3)
    for _ in zip(range(batches), stream.loader(2), strict=False):
        pass
    stream.set_epoch(0)
    assert not caplog.records, "it goes on"
    stream.set_epoch(1)
    assert words in caplog.text
    assert len(caplog.records) == bool(words)


def test_a_shard_that_is_shorter_the_second_time_is_refused() -> None:
    lengths = [20, 5]
    stream = ElasticStream(["a"], lambda _: iter(range(lengths.pop(0))))
    next(iter(stream.loader(8)))
    with pytest.raises(
        ValueError, match=r"shard 0 \('a'\) ends at sample 5, but had more|shard 0 had 8 samples or more"
    ):
        list(stream.loader(8))


def test_a_reader_is_taken_up_where_it_says_so() -> None:
    stream = ElasticStream([(0, 500)], Stateful)
    for _ in zip(range(60), stream.loader(2), strict=False):
        pass
    ((at, state),) = (stream.state_dict()["begun"][0]["reader"],)
    assert state == f'{{"at": {at}}}'
    assert 0 < at <= 120
    again = ElasticStream([(0, 500)], Stateful)
    again.load_state_dict(stream.state_dict())
    assert [n for batch in again.loader(2) for n in batch.tolist()] == list(range(120, 500))


def test_steps_of_another_size_take_up_the_rest_of_an_epoch() -> None:
    stream = stream_of(40, 31)
    loader = stream.loader(2, collate_fn=tuple)
    taken: list[int] = []
    for micro_batches, steps in ((3, 4), (2, 3), (5, 99)):
        reading = loader.steps(micro_batches, 0, 1)
        for _ in range(steps):
            if sizes := reading.sizes():
                taken += [n for batch in reading.batches(range(len(sizes))) for n in batch]
                reading.record()
    taken += [n for batch in loader for n in batch]
    assert sorted(taken) == [*range(40), *range(SHARD, SHARD + 31)]


@pytest.mark.parametrize("steps", [4, 5, 6])
def test_steps_that_are_taken_up_in_the_middle_of_a_block_open_each_shard_once(steps: int) -> None:
    """Also those of a reader whose micro-batch of the first step is not wanted, as where another worker has it."""
    opened: Counter[int] = Counter()

    def read(shard: tuple[int, int]) -> Iterator[int]:
        opened[shard[0]] += 1
        return plain(shard)

    stream = ElasticStream([(number, 60) for number in range(3)], read, shuffle=False)
    for share in [[0, 1, 2]] * steps, [[0, 2], [0, 1, 2], [0, 1, 2], [0, 1, 2]]:
        reading = stream.loader(2, collate_fn=tuple).steps(3, 0, 1)
        for numbers in share:
            assert reading.sizes() == [2, 2, 2]
            list(reading.batches(numbers))
            reading.record()
        assert opened == {0: 1, 1: 1, 2: 1}
        opened.clear()
        state = stream.state_dict()
        stream = ElasticStream(stream.shards, read, shuffle=False)
        stream.load_state_dict(state)


def test_an_iteration_by_steps_ends_where_another_begins() -> None:
    loader = stream_of(40).loader(2)
    reading = loader.steps(2, 0, 1)
    assert reading.sizes() == [2, 2]
    next(iter(loader))
    with pytest.raises(RuntimeError, match="this iteration of the stream's loader is over"):
        reading.sizes()
