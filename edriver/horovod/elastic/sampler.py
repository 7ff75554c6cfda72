"""Horovod's ElasticSampler over edriver's: an epoch visits every sample once, whatever happens to the members.

Horovod's counts what is done since 0.24 (`processed_num`), and before that kept the indices (`processed_indices`,
`record_indices`). Both are here. What is done of an epoch is the samples before a cursor, the same on all members at a
boundary. Samples that are recorded in another order wait until those before them are recorded too; a failure or a
resize repeats what waits.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sized
from typing import Any

from edriver.horovod import basics
from edriver.horovod.collectives.negotiation import digest_of, met
from edriver.horovod.collectives.objects import broadcast_object
from edriver.horovod.process_sets import global_process_set
from edriver.model.plan import Assignment
from edriver.worker.copies.small_copy import Fixed
from edriver.worker.sampler import elastic_sampler
from edriver.worker.sampler.cursor import Cursor, CursorState
from edriver.worker.state.handlers import SamplerHandler, register_handler


class ElasticSampler(elastic_sampler.ElasticSampler):
    """Gives each member its share of an epoch, and records the samples that are done.

    Pass it to the TorchState and call `record_batch` or `record_indices` after each step. Unlike Horovod's,
    `set_epoch` with the current epoch clears nothing, so it may be called at the start of an epoch as well as at its
    end. A sampler outside of a state is split again in each round.

    Args:
        dataset: the dataset to sample; its length must be constant.
        shuffle: whether the order is a permutation drawn from (seed, epoch).
        seed: the seed of the permutation; the same on all members.
    """

    def __init__(self, dataset: Sized, shuffle: bool = True, seed: int = 0) -> None:
        super().__init__(dataset, shuffle, seed)
        self._excluded: tuple[int, ...] = ()
        self._not_excluded: list[int] | None = None
        self._ahead: set[int] = set()
        self._places: dict[int, list[int]] | None = None

    # ---- Horovod's attributes

    @property
    def processed_indices(self) -> set[int]:
        """Which samples of the epoch are done, as far as this member knows."""
        cursor = self._placed()
        own = [*range(cursor.recorded), *sorted(self._ahead)]
        positions = [*range(cursor.base), *map(cursor.position, own)]
        return {*self._excluded, *self._indices(positions)}

    @property
    def processed_num(self) -> int:
        """How many samples of the epoch all members together have done, as far as this one knows.

        A script may set it: as many samples of the epoch count as done, and the rest is split again.
        """
        return len(self._excluded) + self._placed().offset

    @processed_num.setter
    def processed_num(self, number: int) -> None:
        self._go_to(self.epoch, number)

    @property
    def remaining_indices(self) -> list[int]:
        """Which samples of the epoch were left when this round began, in the order in which they are given out."""
        cursor = self._placed()
        return self._indices(list(range(cursor.base, cursor.length)))

    @property
    def num_replicas(self) -> int:
        """How many members share the samples."""
        return self._placed().size

    @property
    def rank(self) -> int:
        """Which of them this is."""
        return self._placed().rank

    @property
    def num_samples(self) -> int:
        """How many samples this member takes in this round."""
        return self._placed().share

    @property
    def total_size(self) -> int:
        """The number of samples of all members together, with those repeated so that each takes equally many."""
        return self._placed().share * self._placed().size

    # ---- what is done

    def set_epoch(self, epoch: int) -> None:
        """Start an epoch with a new order; nothing happens where that epoch is under way."""
        if epoch != self._cursor.epoch:
            self._exclude(())
            self._cursor.set_epoch(epoch)
            self._forget_marks()

    def record_batch(self, batch_idx: int, batch_size: int) -> None:
        """Count a batch of this member as done: its next `batch_size` samples, or as many as are left.

        Args:
            batch_idx: its number, which is not looked at: a script may count on from round to round.
            batch_size: the loader's.
        """
        del batch_idx
        cursor = self._placed()
        if self._ahead:
            undone = (k for k in range(cursor.recorded, cursor.share) if k not in self._ahead)
            self._mark(list(itertools.islice(undone, batch_size)))
        else:
            cursor.record(min(batch_size, cursor.share - cursor.recorded))

    def record_indices(self, indices: Iterable[int]) -> None:
        """Count samples as done, in any order. Each member records its own samples.

        Args:
            indices: indices into the dataset.

        Raises:
            ValueError: an index is outside of the dataset.
        """
        cursor = self._placed()
        if self._places is None:
            self._places = {}
            for k, index in enumerate(self._indices([cursor.position(k) for k in range(cursor.share)])):
                self._places.setdefault(index, []).append(k)
        for index in map(int, indices):
            if not 0 <= index < self._length:
                raise ValueError(f"index {index} cannot be recorded: the dataset has {self._length} samples")
            self._mark(self._places.get(index, ()))

    def _mark(self, places: Iterable[int]) -> None:
        """Count some of this member's samples of this round, by their number; others are passed over."""
        cursor = self._cursor
        self._ahead.update(k for k in places if cursor.recorded <= k < cursor.share)
        while cursor.recorded in self._ahead:
            self._ahead.remove(cursor.recorded)
            cursor.recorded += 1

    # ---- its state

    def state_dict(self) -> dict[str, Any]:
        """The epoch and how many samples are done, as Horovod has them since 0.24.

        Where a state of an earlier Horovod was loaded in this epoch, their indices, too.
        """
        state: dict[str, Any] = {"epoch": self.epoch, "processed_num": self.processed_num}
        if self._excluded:
            state["processed_indices"] = {*self._excluded, *self._indices(list(range(self._placed().offset)))}
        return state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load the result of `state_dict`, of this class or of any version of Horovod; splits the rest again.

        A state with indices says which samples are done; one with a number says how many. For a number in a state that
        edriver wrote these are the same samples; for one that Horovod wrote they may differ, since its order differs.

        Raises:
            KeyError: it is not the state of a sampler.
        """
        epoch = int(state_dict["epoch"])
        if "processed_indices" in state_dict:
            self._exclude(state_dict["processed_indices"])
            self._cursor.load(CursorState(epoch, self._cursor.seed, 0))
            self.reset()
        else:
            number = state_dict["processed_num"]
            self._exclude(())
            self._go_to(epoch, number)

    def _go_to(self, epoch: int, number: int) -> None:
        """Set the number of samples done in an epoch, and split the rest again."""
        done = max(0, int(number) - len(self._excluded))
        self._cursor.load(CursorState(epoch, self._cursor.seed, min(done, self._cursor.length)))
        self.reset()

    def compact(self) -> dict[str, Any]:
        """What the others need to continue from here, the same on all of them at a boundary."""
        return {**self._cursor.state()._asdict(), "excluded": self._excluded}

    def load_compact(self, state: dict[str, Any]) -> None:
        """Go to what `compact` answered."""
        self._exclude(state["excluded"])
        self._cursor.load(CursorState(state["epoch"], state["seed"], state["offset"]))
        self._split_for = None
        self._forget_marks()

    def settle(self) -> None:
        """Go to where all members are, at the start of a round: what only some of them have counted is done again.

        Raises:
            HorovodInternalError: a member is gone.
        """
        state = self.compact()
        offset = state.pop("offset")
        digests, offsets = met(global_process_set, digest_of(repr(sorted(state.items()))), offset)
        if len(set(digests)) > 1:
            self.load_compact(broadcast_object({**state, "offset": offset}, 0, "the sampler"))
        elif min(offsets) < offset:
            self.load_compact({**state, "offset": min(offsets)})

    def reset(self) -> None:
        """Split the remaining samples among the current members; called at the start of every round.

        Raises:
            ValueError: the dataset's length has changed, or hvd.init() has not been called.
        """
        super().reset()
        self._forget_marks()

    def _place(self) -> Assignment:
        return basics.place()

    def _placed(self) -> Cursor:
        if self._split_for is None or self._split_for != self._place().round_id:
            self.reset()
        return self._cursor

    def _forget_marks(self) -> None:
        self._ahead = set()
        self._places = None

    def _exclude(self, indices: Iterable[int]) -> None:
        """Leave samples out of this epoch: they were done elsewhere."""
        excluded = tuple(sorted(indices))
        if excluded == self._excluded:
            return
        self._excluded = excluded
        done = set(excluded)
        self._not_excluded = [i for i in range(self._length) if i not in done] if done else None
        before = self._cursor
        self._cursor = Cursor(self._length - len(done), before.seed, before.epoch, rank=before.rank, size=before.size)

    # ---- the order

    def __iter__(self) -> Iterator[int]:
        """The dataset indices of this member in this round, from the round's start."""
        chosen = self._not_excluded
        places = super().__iter__()
        return places if chosen is None else (chosen[place] for place in places)

    def _indices(self, positions: list[int]) -> list[int]:
        places = super()._indices(positions)
        chosen = self._not_excluded
        return places if chosen is None else [chosen[place] for place in places]


class _SamplerHandler(SamplerHandler):
    """Keeps the compact state of a sampler."""

    def capture(self) -> Any:
        """The compact state."""
        return self.value.compact()

    def load(self, tree: Any) -> None:
        """Go to a compact state."""
        self.value.load_compact(tree)

    def keep(self) -> Any:
        """The compact state, without the excluded samples, which do not change within an epoch and may be many."""
        state = self.value.compact()
        return {**state, "excluded": Fixed(state["excluded"])}

    def bring_back(self, kept: Any) -> None:
        """Go to a compact state."""
        self.value.load_compact({**kept, "excluded": kept["excluded"].contents})

    def digest(self, tree: Any) -> object:
        """The compact state."""
        excluded = tree["excluded"]
        return {**tree, "excluded": excluded.contents if isinstance(excluded, Fixed) else excluded}


register_handler(ElasticSampler, _SamplerHandler)
