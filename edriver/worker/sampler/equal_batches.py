"""The first batches that data loaders hand out for training: whether two ranks train on the same ones.

Ranks 0 and 1 report a digest of them (or the first two ranks that need different samples), and the driver
compares; what is wrong there is wrong on all. A batch is one of training if an optimizer begins a step before another
batch is handed out. An evaluation, which all ranks may make on the same samples, begins none. What is handed out is
compared, and not indices, because each rank may have a data set for itself. Few samples may be equal by chance, and
made-up data is often constant: neither is compared.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
import logging
from collections.abc import Iterator, Mapping
from typing import Any, Final

import torch
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from edriver.worker import context
from edriver.worker.sampler.sample_share import sample_share
from edriver.worker.watch.script_location import place_of
from edriver.worker.watch.script_reports import ScriptReports

logger = logging.getLogger("edriver.worker")

MIN_SAMPLES: Final = 16
"""Fewer samples of a loader are not compared."""

MIN_STEPS: Final = 2
"""Steps that are made with batches of a loader before these are compared."""

MAX_STEPS: Final = 100
"""Steps of a process, in rounds with others, in which loaders are looked at."""

MAX_BYTES: Final = 1 << 16
"""Of each tensor of a batch so many bytes are read."""


class TrainingBatches:
    """What the loaders of this process hand out in its first steps with others."""

    def __init__(self) -> None:
        self._steps_left = MAX_STEPS
        self._latest: HandedOut | None = None  # since the last step
        self._reported: set[str] = set()

    @property
    def looks(self) -> bool:
        """Whether what a loader hands out now is of interest."""
        place = context.current.place
        if not self._steps_left or not place.in_round:
            return False
        share = sample_share(place.assignment)
        return share.size > 1 and 0 <= share.rank <= 1 and share.is_first

    def handed_out(self, found: HandedOut) -> None:
        """A loader has handed out a batch."""
        self._latest = found

    def step_begins(self) -> None:
        """An optimizer of the state begins a step."""
        found, self._latest = self._latest, None
        if not self._steps_left or context.assignment().size == 1:
            return
        self._steps_left -= 1
        if found is None:
            return
        found.steps += 1
        if found.steps >= MIN_STEPS and found.digest and found.place not in self._reported:
            self._reported.add(found.place)
            context.current.part(ScriptReports).batches_drawn(found.source, found.digest, found.place)


class HandedOut:
    """What one iteration of a loader hands out.

    Args:
        source: the type of the loader's sampler, or of its data set if that has none.
        place: the line of the script that iterates it.

    Attributes:
        source: as given.
        place: as given.
        steps: the number of steps that were made with it.
        digest: of the first batches; empty: there are too few yet, or they are not to be compared.
    """

    def __init__(self, source: str, place: str) -> None:
        self.source, self.place = source, place
        self.steps = 0
        self.digest = b""
        self._samples = 0
        self._batches: list[bytes] = []
        self._compared = True

    def add(self, batch: object) -> None:
        """Take in a batch; those that the digest is not of are passed over."""
        if self.digest or not self._compared:
            return
        content = hashlib.blake2b(digest_size=16)
        samples = _read(batch, content)
        self._samples += samples
        self._batches.append(content.digest())
        if not samples:  # of a type that is not known
            self._compared = False
        elif self._samples >= MIN_SAMPLES and len(self._batches) > 1:
            self._compared = len(set(self._batches)) > 1
            if self._compared:
                self.digest = hashlib.blake2b(b"".join(self._batches), digest_size=16).digest()


class WatchedIterator:
    """A loader's iterator, in its first epoch: it takes note of what it hands out.

    Args:
        batches: the loader's iterator; whatever else is asked of this one is that one's.
        found: takes the batches.
        watch: receives each of them.
    """

    def __init__(self, batches: Iterator[Any], found: HandedOut, watch: TrainingBatches) -> None:
        self._batches = batches
        self._found = found
        self._watch = watch

    def __iter__(self) -> WatchedIterator:
        return self

    def __next__(self) -> Any:
        batch = next(self._batches)
        if self._watch.looks and torch.is_grad_enabled():  # else it evaluates
            try:
                self._found.add(batch)
            except Exception:  # a tensor of whatever kind must not cost the run
                logger.debug("a batch cannot be read", exc_info=True)
            self._watch.handed_out(self._found)
        return batch

    def __len__(self) -> int:
        return len(self._batches)  # type: ignore[arg-type]  # torch's iterators have a length

    def __getattr__(self, name: str) -> Any:
        return getattr(self._batches, name)


@functools.cache
def watch_loaders() -> None:
    """From now on each DataLoader that is iterated in the first steps of a round takes note of what it hands out."""
    original = DataLoader.__iter__

    @functools.wraps(original)
    def iterate(self: DataLoader[Any]) -> Any:
        watch = context.current.part(TrainingBatches)
        batches = original(self)
        if not watch.looks or get_worker_info() is not None:
            return batches
        streams = isinstance(self.dataset, IterableDataset)
        source = "IterableDataset" if streams else type(self.sampler).__name__
        return WatchedIterator(batches, HandedOut(source, place_of(inspect.currentframe())), watch)

    DataLoader.__iter__ = iterate  # type: ignore[method-assign]


def _read(value: object, content: Any) -> int:
    """Add what is in a batch to a digest; returns the number of its samples, as far as it is seen."""
    match value:
        case torch.Tensor():
            if value.device.type != "cpu" or value.layout != torch.strided:
                return 0
            first = value.detach()[:MIN_SAMPLES] if value.dim() else value.detach()
            raw = first.contiguous().view(-1).view(torch.uint8)[:MAX_BYTES]
            content.update(f"{value.dtype} {tuple(value.shape)}".encode())
            content.update(raw.numpy().tobytes())
            return len(value) if value.dim() else 1
        case Mapping():
            return max((_read(item, content) for item in value.values()), default=0)
        case str() | bytes() | int() | float():
            content.update(repr(value).encode())
            return 1
        case tuple() | list():
            read = [_read(item, content) for item in value]
            texts = bool(value) and all(isinstance(item, str | bytes | int | float) for item in value)
            return sum(read) if texts else max(read, default=0)
    return 0
