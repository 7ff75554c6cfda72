"""What a run's records prove: the rounds, the history that survived, and how long nothing went on. Pure.

The surviving history: a round began with so many steps behind it, and the next one with so many; the steps between
were this round's, and count. What it had finished beyond that is lost, and the next round trains it again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import median

from benchmarks.records import Batch, Boot, Grouped, Record, RoundStart, StepDone


@dataclass(slots=True)
class Round:
    """One round, as its members wrote it down.

    Attributes:
        number: the round's number.
        starts: by rank, how its members entered it; those that were lost before they held its state are missing.
        batches: by step and rank, what was trained on.
        done: by step and rank, the steps that were finished.
        grouped: by rank, when its members had joined its process group, where that was written down.
    """

    number: int
    starts: dict[int, RoundStart] = field(default_factory=dict)
    batches: dict[int, dict[int, Batch]] = field(default_factory=dict)
    done: dict[int, dict[int, StepDone]] = field(default_factory=dict)
    grouped: dict[int, float] = field(default_factory=dict)

    @property
    def size(self) -> int:
        """How many members it has."""
        return next(iter(self.starts.values())).size

    @property
    def first_step(self) -> int:
        """How many steps were behind it when it began."""
        return min(start.step for start in self.starts.values())

    @property
    def last_step(self) -> int:
        """The last step that any member finished in it."""
        return max(self.done, default=self.first_step)

    @property
    def members(self) -> dict[int, RoundStart]:
        """By process id, those that entered it."""
        return {start.pid: start for start in self.starts.values()}

    def last_step_of(self, pids: Collection[int]) -> int:
        """The last step that any of these processes finished in it."""
        ranks = {start.rank for start in self.starts.values() if start.pid in pids}
        return max((step for step, done in self.done.items() if ranks & done.keys()), default=self.first_step)

    def completions(self) -> Iterator[tuple[float, int]]:
        """When each step was finished by all members, and its number."""
        for step, ranks in sorted(self.done.items()):
            if len(ranks) == self.size:
                yield max(record.time for record in ranks.values()), step


class History:
    """The rounds of a run; grows with the records that are added.

    Attributes:
        boots: by process id, when it began and when it was ready to train.
    """

    def __init__(self) -> None:
        self._rounds: dict[int, Round] = {}
        self.boots: dict[int, Boot] = {}

    def add(self, records: Iterable[Record]) -> None:
        """Take in records, each process's in order."""
        for record in records:
            if isinstance(record, Boot):
                self.boots[record.pid] = record
                continue
            current = self._rounds.setdefault(record.round, Round(record.round))
            match record:
                case Grouped():
                    current.grouped[record.rank] = record.time
                case RoundStart():
                    current.starts[record.rank] = record
                case Batch():
                    current.batches.setdefault(record.step, {})[record.rank] = record
                case StepDone():
                    current.done.setdefault(record.step, {})[record.rank] = record

    @property
    def rounds(self) -> list[Round]:
        """The rounds that at least one worker entered, in order."""
        return [self._rounds[number] for number in sorted(self._rounds) if self._rounds[number].starts]

    def counted(self) -> Iterator[tuple[Round, int]]:
        """The surviving history: each step with the round that it counts for."""
        rounds = self.rounds
        for current, following in zip(rounds, [*rounds[1:], None], strict=True):
            last = current.last_step if following is None else following.first_step
            for step in range(current.first_step + 1, last + 1):
                yield current, step

    def steps_lost(self) -> int:
        """How many steps that a surviving process had finished were trained again.

        Steps that only dead processes had finished do not count, unless all are dead: no other has their results.
        """
        return sum(self._steps_lost(one, two) for one, two in pairwise(self.rounds))

    def _steps_lost(self, one: Round, two: Round) -> int:
        staying = one.members.keys() & two.members.keys()
        last = one.last_step_of(staying) if staying else one.last_step
        return max(last - two.first_step, 0)

    def first_completion(self, after: float, size: int | None = None) -> float | None:
        """When, in a round that began after that time, the first step was finished by all members.

        Args:
            after: seconds of the records' clock.
            size: only rounds with so many members.
        """
        for current in self.rounds:
            began = min(start.time for start in current.starts.values())
            if began > after and size in (None, current.size):
                for time, _ in current.completions():
                    return time
        return None

    def last_completion(self, before: float, size: int) -> float | None:
        """When, before that time, the last step was finished by all members of a round of that size."""
        found = (time for current in self.rounds if current.size == size for time, _ in current.completions())
        return max((time for time in found if time < before), default=None)

    def longest_pause(self, after: float) -> float:
        """The longest time between two steps that rank 0 finished in a row, of those that ended after that time."""
        times = sorted(done[0].time for current in self.rounds for done in current.done.values() if 0 in done)
        return max((two - one for one, two in pairwise(times) if two > after), default=0.0)

    def step_seconds(self, size: int) -> float:
        """The usual time between two steps that rank 0 finished in a row, in rounds of that size.

        Raises:
            statistics.StatisticsError: there are no two.
        """
        rounds = [current for current in self.rounds if current.size == size]
        times = ([done[0].time for _, done in sorted(current.done.items()) if 0 in done] for current in rounds)
        return median(two - one for of_round in times for one, two in pairwise(of_round))

    def longest_boot(self, after: float) -> float | None:
        """The longest time that a process which began after that time took to be ready; None: there was none."""
        return max((boot.time - boot.started for boot in self.boots.values() if boot.started > after), default=None)

    def counted_steps(self, begin: float, end: float) -> int:
        """How many steps of the surviving history were finished between the two times."""
        done = (current.done.get(step, {}) for current, step in self.counted())
        return sum(1 for ranks in done if ranks and begin <= max(record.time for record in ranks.values()) < end)

    def seconds_by_size(self, begin: float, end: float) -> dict[int, float]:
        """How long, between the two times, the newest round had which size."""
        changes = sorted((min(s.time for s in current.starts.values()), current.size) for current in self.rounds)
        found: dict[int, float] = {}
        for (since, size), (until, _) in pairwise([*changes, (end, 0)]):
            seconds = min(until, end) - max(since, begin)
            if seconds > 0:
                found[size] = found.get(size, 0.0) + seconds
        return found


@dataclass(frozen=True, slots=True)
class EpochCount:
    """What one epoch of the surviving history trained on.

    Attributes:
        epoch: the epoch.
        lost: how many samples it never saw.
        repeated: how many it saw more than once, end padding aside.
    """

    epoch: int
    lost: int
    repeated: int


def count_epochs(history: History, samples: int) -> list[EpochCount]:
    """Count what each epoch trained on.

    End padding: what the epoch's last step repeats so that all members have equally many samples; fewer than members.

    Args:
        history: of a run that has ended; all its epochs are taken to be whole.
        samples: the dataset's length.
    """
    steps: dict[int, list[tuple[Round, list[int]]]] = {}
    for current, step in history.counted():
        batches = current.batches.get(step, {})
        if batches:
            epoch = next(iter(batches.values())).epoch
            steps.setdefault(epoch, []).append((current, [s for batch in batches.values() for s in batch.samples]))
    return [_count(epoch, visits, samples) for epoch, visits in sorted(steps.items())]


def _count(epoch: int, steps: list[tuple[Round, list[int]]], samples: int) -> EpochCount:
    seen = Counter(sample for _, visited in steps[:-1] for sample in visited)
    repeated = seen.total() - len(seen)
    last_round, last_visited = steps[-1]
    seen.update(last_visited)
    padding = seen.total() - len(seen) - repeated
    repeated += padding if padding >= last_round.size else 0
    return EpochCount(epoch, samples - len(seen), repeated)


def faults(history: History, samples: int) -> list[str]:
    """Everything that must not be in the records of an elastic run that ended well, in sentences."""
    found = [f"epoch {c.epoch}: {c.lost} samples lost, {c.repeated} repeated" for c in _wrong(history, samples)]
    found += _gaps(history)
    found += _differences(history)
    return found


def _wrong(history: History, samples: int) -> list[EpochCount]:
    return [count for count in count_epochs(history, samples) if count.lost or count.repeated]


def _gaps(history: History) -> Iterator[str]:
    """Steps that count although not all members took part; epochs that were left out."""
    before = -1
    for current, step in history.counted():
        batches = current.batches.get(step, {})
        if missing := sorted(set(range(current.size)) - set(batches)):
            yield f"round {current.number}, step {step}: counts, but ranks {missing} never began it"
        for epoch in {batch.epoch for batch in batches.values()} - {before}:
            if epoch != before + 1:
                yield f"round {current.number}, step {step}: epoch {epoch} follows epoch {before}"
            before = epoch


def _differences(history: History) -> Iterator[str]:
    """Members of one round that hold different states, and rounds that go on from another state than was reached."""
    reached: dict[int, str] = {}
    for current in history.rounds:
        starts = {(start.step, start.digest) for start in current.starts.values()}
        if len(starts) > 1:
            yield f"round {current.number}: its members began with different states: {sorted(starts)}"
        for step, digest in starts:
            if digest != reached.get(step, digest):
                yield f"round {current.number}: began with another state of step {step} than was reached before"
            reached[step] = digest
        for step, ranks in current.done.items():
            digests = {record.digest for record in ranks.values()}
            if len(digests) > 1:
                yield f"round {current.number}, step {step}: its members reached different states: {sorted(digests)}"
            reached[step] = digests.pop()
