"""The reading side of a stream: shards that are open in this process, and samples that have been read ahead.

Each reader has its own: what one has read, and whether it has come to a shard's end, does not depend on the others that
are in the same process.

It is the data set of a DataLoader, whose "samples" are answers to requests. So it runs in the DataLoader's processes,
or in the worker's own where there are none. A request names all that it asks for: a process that has not read it ahead,
as after a change of the plan, opens the shard again.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple, NoReturn

from torch.utils.data import Dataset

from edriver.worker.backend.torch_code import without_worker_info
from edriver.worker.sampler.stream_shards import Piece, ReadRange

Reader = tuple[int, str]
"""Where to take up reading a shard: see EpochProgress.readers."""


class Request(NamedTuple):
    """What is asked of a process.

    Attributes:
        pieces: samples to hand out.
        collated: as a batch, or else as a list.
        ranges: what to read ahead then.
        ahead: maximum number of its samples that are held.
        keep: with a report: samples that are handed out after it; everything else is forgotten. None: no report.
        readers: where to take up reading shards that are not open.
        reader: which of the readers in this process is asked; None: one that is given up after the answer.
        present: with a report: the readers that this process goes on with; the others are given up.
    """

    pieces: list[Piece]
    collated: bool
    ranges: list[ReadRange]
    ahead: int
    keep: list[Piece] | None
    readers: Mapping[int, Reader]
    reader: int | None = 0
    present: Sequence[int] = (0,)


NO_REQUEST: Final = Request(pieces=[], collated=False, ranges=[], ahead=0, keep=None, readers={})
"""For a process that has nothing to do in its turn."""


class Reply(NamedTuple):
    """An answer.

    Attributes:
        batch: what was to be handed out; None: nothing.
        held: what is held of the ranges; None: no report was wanted.
        ended: of the ranges' shards that have been read to their end: their lengths.
        readers: where to take up reading those shards.
    """

    batch: Any
    held: list[Piece] | None
    ended: dict[int, int]
    readers: dict[int, Reader]


def merged(replies: Sequence[Reply]) -> tuple[list[list[Piece]], dict[int, int], dict[int, Reader]]:
    """Of several replies what each holds, and what they tell of shards: of several marks the one that is behind."""
    ended: dict[int, int] = {}
    marks: dict[int, Reader] = {}
    for reply in replies:
        ended.update(reply.ended)
        for shard, mark in reply.readers.items():
            marks[shard] = min(marks.get(shard, mark), mark)
    return [reply.held or [] for reply in replies], ended, marks


class _OpenShard:
    """A shard that is being read, with the samples that are held in memory.

    Args:
        reader: iterates over the shard.
        taken_up: the position at which to begin.

    Attributes:
        at: the number of the sample to read next.
        ended: whether the shard has been read to its end.
        held: the samples held, by their numbers.
    """

    def __init__(self, reader: Any, taken_up: Reader | None) -> None:
        self.at = 0
        self.ended = False
        self.held: dict[int, Any] = {}
        self._reader = reader
        self._marks: list[Reader] = []
        if taken_up is not None and hasattr(reader, "load_state_dict"):
            self.at = taken_up[0]
            reader.load_state_dict(json.loads(taken_up[1]))
            self._marks.append(taken_up)
        self._samples: Iterator[Any] = iter(reader)

    def read_to(self, number: int) -> bool:
        """Hold a sample; False: the shard ends before it. What is passed over on the way is not held."""
        while number not in self.held:
            if self.ended:
                return False
            try:
                sample = next(self._samples)
            except StopIteration:
                self.ended = True
                return False
            if self.at == number:
                self.held[number] = sample
            self.at += 1
        return True

    def mark(self) -> None:
        """Record where reading could be resumed, if the reader provides that."""
        if self.ended or not hasattr(self._reader, "state_dict") or (self._marks and self._marks[-1][0] == self.at):
            return
        try:
            state = self._reader.state_dict()
            text = json.dumps(state)
        except TypeError:
            return
        if json.loads(text) == state:  # or what is sent would be another state
            self._marks.append((self.at, text))

    def mark_before(self, number: int) -> Reader | None:
        """The last mark at or before a sample; earlier ones are forgotten."""
        while len(self._marks) > 1 and self._marks[1][0] <= number:
            del self._marks[0]
        return self._marks[0] if self._marks and self._marks[0][0] <= number else None

    def close(self) -> None:
        """Let a generator's `with` and `finally` end now."""
        for thing in (self._samples, self._reader):
            if isinstance(thing, Iterator) and hasattr(thing, "close"):
                thing.close()


class ShardReading(Dataset[Reply]):
    """Answers requests.

    Args:
        shards: what there is.
        read: makes a reader of one of them.
        collate: makes a batch of a list of samples.
    """

    def __init__(
        self, shards: Sequence[Any], read: Callable[[Any], Iterable[Any]], collate: Callable[[list[Any]], Any]
    ) -> None:
        self._reader = functools.partial(_Opened, shards, read, collate)
        self._open: dict[int, _Opened] = {}

    def __getitem__(self, request: Request) -> Reply:
        """Hand out, then read ahead.

        Raises:
            ValueError: a shard has fewer samples than it had before.
        """
        if request.reader is None:
            passing = self._reader()
            try:
                return passing.answer(request)
            finally:
                passing.close()
        opened = self._open.get(request.reader)
        if opened is None:
            opened = self._open[request.reader] = self._reader()
        if request.keep is not None:
            for reader in self._open.keys() - set(request.present):
                self._open.pop(reader).close()
        return opened.answer(request)


class _Opened:
    """What one reader has open. See ShardReading."""

    def __init__(
        self, shards: Sequence[Any], read: Callable[[Any], Iterable[Any]], collate: Callable[[list[Any]], Any]
    ) -> None:
        self._shards = shards
        self._read = read
        self._collate = collate
        self._open: dict[int, _OpenShard] = {}

    def answer(self, request: Request) -> Reply:
        """Hand out, then read ahead."""
        with without_worker_info():
            samples = [sample for piece in request.pieces for sample in self._samples(piece, request.readers)]
        batch = None if not samples else self._collate(samples) if request.collated else samples
        with without_worker_info():
            for piece in request.keep or ():
                self._hold(piece, request.readers)
            held, ended = self._read_ahead(request) if request.ranges else ([], {})
        if request.keep is None:
            return Reply(batch, None, {}, {})
        starts: dict[int, int] = {}
        for part in request.ranges:
            starts[part.shard] = min(part.start, starts.get(part.shard, part.start))
        self._forget_all_but([*request.keep, *held], starts)
        marks = {n: mark for n, one in self._open.items() if n in starts and (mark := one.mark_before(starts[n]))}
        return Reply(batch, held, ended, marks)

    def close(self) -> None:
        """Close all shards."""
        for shard in self._open.values():
            shard.close()

    def _samples(self, piece: Piece, readers: Mapping[int, Reader]) -> Iterator[Any]:
        for number in range(piece.start, piece.stop):
            shard = self._opened(piece.shard, number, readers)
            if not shard.read_to(number):
                self._refuse_shorter(piece.shard)
            yield shard.held.pop(number)

    def _read_ahead(self, request: Request) -> tuple[list[Piece], dict[int, int]]:
        """What is held then of the ranges, and the lengths of those of their shards whose end was met."""
        held: list[Piece] = []
        ended: dict[int, int] = {}
        missing = request.ahead
        for part in request.ranges:
            for run in part.runs():
                if not missing:
                    return held, ended
                wanted = min(run.stop - run.start, missing)
                got = self._hold(Piece(run.shard, run.start, run.start + wanted), request.readers)
                missing -= got
                if got:
                    held.append(Piece(run.shard, run.start, run.start + got))
                if got < wanted:
                    if part.stop is not None:
                        self._refuse_shorter(run.shard)
                    ended[run.shard] = self._open[run.shard].at
                    break
        return held, ended

    def _hold(self, run: Piece, readers: Mapping[int, Reader]) -> int:
        """Hold consecutive samples; returns their number."""
        self._opened(run.shard, run.start, readers).mark()
        for number in range(run.start, run.stop):
            if not self._opened(run.shard, number, readers).read_to(number):
                return number - run.start
        return run.stop - run.start

    def _refuse_shorter(self, shard: int) -> NoReturn:
        raise ValueError(
            f"shard {shard} ({self._shards[shard]!r}) ends at sample {self._open[shard].at}, but had more when it was "
            "read before: each time that a shard is read, on whichever worker, it must have the same samples in the "
            "same order"
        )

    def _opened(self, number: int, sample: int, readers: Mapping[int, Reader]) -> _OpenShard:
        """A shard in which this sample is held, or still to be read."""
        shard = self._open.get(number)
        if shard is None or (sample < shard.at and sample not in shard.held):
            taken_up = readers.get(number)
            if taken_up is not None and taken_up[0] > sample:
                taken_up = None
            anew = _OpenShard(self._read(self._shards[number]), taken_up)
            if shard is not None:
                anew.held = shard.held
                shard.close()
            shard = self._open[number] = anew
        return shard

    def _forget_all_but(self, kept: list[Piece], wanted: Iterable[int]) -> None:
        """Forget samples that are not kept, and close shards of which nothing is kept or wanted."""
        numbers: dict[int, set[int]] = {shard: set() for shard in wanted}
        for piece in kept:
            numbers.setdefault(piece.shard, set()).update(range(piece.start, piece.stop))
        for number in [number for number in self._open if number not in numbers]:
            self._open.pop(number).close()
        for number, shard in self._open.items():
            shard.held = {sample: value for sample, value in shard.held.items() if sample in numbers[number]}
