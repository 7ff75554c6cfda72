"""State: what survives a change of workers, and the boundaries at which it is whole.

The interface is Horovod's (horovod.common.elastic.State and ObjectState). A script makes its state before
`edriver.run`, changes it while it trains, and calls `commit` (or `check_host_updates`) after every step:
there, and only there, a step is complete on all workers.

    save      copy the state aside            restore   go back to the copy
    commit    save, then a boundary           sync      receive the state from a worker that holds it

A boundary without a commit is one to go back to as well, as long as nothing large has changed since: the state is
*clean*. What is small is kept at each boundary (`keep`, `return_to_boundary`); what is large is not copied. A state
that is not clean is *torn*, and goes back to its last commit.

This file does not import torch: see `edriver.worker.state.torch_state` for models and optimizers.
"""

from __future__ import annotations

import abc
import contextlib
import copy
import logging
import time
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Protocol

from edriver.common.stall_limits import Phase
from edriver.worker import topology
from edriver.worker.assignment import Assignment
from edriver.worker.backend.interpreter import without_collections
from edriver.worker.copies.random_states import RandomStates
from edriver.worker.copies.small_copy import NotSmallError, SmallCopies, not_ours
from edriver.worker.reports import Copied, SamplesDone, with_reports
from edriver.worker.state.commit_schedule import CommitSchedule
from edriver.worker.state.digests import digest_text
from edriver.worker.training_phase import phase

logger = logging.getLogger("edriver.worker")


class BoundaryListener(Protocol):
    """What a state needs from the run around it."""

    def boundary(self, committed: bool) -> None:
        """Count a boundary.

        Args:
            committed: the state has just been saved, so this boundary's version is the one that `restore`
                goes to.

        Raises:
            HostsUpdatedInterrupt: all members stop at this boundary.
            PeerLostError: a member of this round is lost.
        """

    def check(self) -> None:
        """Look for bad news without counting a boundary.

        Raises:
            PeerLostError: a member of this round is lost.
        """


class State(abc.ABC):
    """What `edriver.run` needs of a script's state, and what the script needs of the run.

    Attributes:
        last_hosts_update: timestamp and HostUpdateResult of the last news about hosts, None before any.
        copied: how much it has copied, for observers,
        reported: and what the script has reported last.
    """

    def __init__(self) -> None:
        self.last_hosts_update: tuple[float, int] | None = None
        self.copied = Copied()
        self.reported: dict[str, float] = {}
        self._reset_callbacks: list[Callable[[], object]] = []
        self._rounds: BoundaryListener | None = None
        self._schedule = CommitSchedule()
        self._rehearses = False
        self._exposed = False  # whether a failure may lead back further than to the last boundary, as far as is known

    def bind(self, rounds: BoundaryListener | None) -> None:
        """Tie the state to the run that is under way; with None, boundaries are local again."""
        self._rounds = rounds

    def register_reset_callbacks(self, callbacks: Iterable[Callable[[], object]]) -> None:
        """Have these called, in this order, at the start of every round but the first.

        This is where a script adapts what depends on the number of workers, such as the learning rate.
        """
        self._reset_callbacks.extend(callbacks)

    def on_reset(self) -> None:
        """Adapt to a new round: called by `run` when rank and size are known, before `sync`."""
        self.reset()
        for callback in self._reset_callbacks:
            callback()

    def on_hosts_updated(self, timestamp: float, update_res: int) -> None:
        """Take note that hosts were added or removed; may be called from any thread.

        Args:
            timestamp: when the driver saw it, in seconds since the Unix epoch.
            update_res: a HostUpdateResult: 1 removed, 2 added, 3 both.
        """
        self.last_hosts_update = (timestamp, update_res)

    def commit(self) -> None:
        """Save the state, then pass a boundary.

        In the middle of a step (`half_done`) it only checks whether a member is lost.

        Raises:
            HostsUpdatedInterrupt: all members stop here for a change of hosts; the state is kept as it is.
            PeerLostError: a member of this round is lost.
        """
        if self.half_done():
            self._check()
            return
        self._commit()
        if self._rounds is not None:
            self.keep()
            self._rounds.boundary(committed=True)

    def check_host_updates(self) -> None:
        """Pass a boundary without saving; as long as the state is clean, a failure goes back to it all the same.

        Where a failure may lead back further, it saves now and then: that takes no more than COMMIT_SHARE of the time.
        In the middle of a step (`half_done`) it only checks whether a member is lost.

        Raises:
            HostsUpdatedInterrupt: all members stop here for a change of hosts; the state is kept as it is.
            PeerLostError: a member of this round is lost.
        """
        if self.half_done():
            self._check()
        elif self._rounds is not None:
            self.keep()
            committed = self._exposed and self._schedule.due()
            if committed:
                self._commit()
            self._rounds.boundary(committed)

    def report(self, **values: float) -> None:
        """Report values to observers: `state.report(loss=loss.item())`. Those of rank 0 are shown.

        It costs no message; the latest value of each name is read every second or two. Nothing is saved or synced.

        Args:
            values: numbers by name; at most 100 names in all.

        Raises:
            ValueError: there are more names, or a text is no number.
            TypeError: a value is no number.
        """
        self.reported = with_reports(self.reported, values)

    def samples_done(self) -> SamplesDone | None:
        """The progress of the state's ElasticSampler, if it has one; may be called from any thread."""
        return None

    def half_done(self) -> bool:
        """Whether a step has begun whose result is not in the state yet: accumulated gradients, for one."""
        return False

    @contextlib.contextmanager
    def rehearsal(self) -> Iterator[None]:
        """Take back what is done to the state in between; commits save nothing meanwhile, and reports are dropped."""
        self.save()
        reported, self._rehearses = self.reported, True
        try:
            yield
        finally:
            self.reported, self._rehearses = reported, False
        self.restore()
        self.clear_gradients()

    def _commit(self) -> None:
        if self._rehearses:
            return
        if self._rounds is not None and self.wait_for_device():
            self._rounds.check()  # or what has been computed may be what an abort has left
        began = time.perf_counter()
        with phase(Phase.COMMIT):
            self.save()
        seconds = time.perf_counter() - began
        self.copied.commit(seconds)
        self._schedule.made(seconds)

    def _check(self) -> None:
        if self._rounds is not None:
            self._rounds.check()

    def first_boundary(self) -> None:  # noqa: B027  most states have nothing that a function could spoil
        """A round's first boundary has been passed: look what the training function has made of the state.

        Raises:
            TypeError: something in it cannot be kept any more.
        """

    def keep(self) -> None:  # noqa: B027  a state may know of no boundaries, only of commits
        """Keep what is small, at a boundary that counts."""

    def peer_lost(self) -> None:  # noqa: B027  for most states nothing that a loss does is in doubt
        """A peer is lost, and its round's collectives are about to be aborted. Called on the notification thread."""

    def wait_for_device(self) -> bool:
        """Wait until all that a commit is to copy has been computed; whether it could have been anything else."""
        return False

    @property
    def clean(self) -> bool:
        """Whether `return_to_boundary` can go back to the last boundary."""
        return False

    @property
    def why_torn(self) -> str:
        """Why it cannot, and what to do about it, as text for people."""
        return "this kind of state keeps nothing at a boundary: call commit() now and then"

    def return_to_boundary(self) -> None:  # noqa: B027  see `clean`
        """Go back to the last boundary; only while the state is clean."""

    @property
    @abc.abstractmethod
    def has_commit(self) -> bool:
        """Whether there is anything that `restore` could go back to."""

    @abc.abstractmethod
    def save(self) -> None:
        """Copy the state aside. Scripts call `commit`, which also marks a step as complete."""

    @abc.abstractmethod
    def restore(self) -> None:
        """Go back to what was saved last; without anything saved, stay."""

    @abc.abstractmethod
    def sync(self) -> bool | None:
        """Bring this round's receivers to the source's state.

        Returns:
            False if the last commit is still an older one: a holder's may be. Otherwise the result counts as committed.
        """

    @abc.abstractmethod
    def reset(self) -> None:
        """Adapt to this round's rank and size."""

    @abc.abstractmethod
    def digest(self, committed: bool) -> str:
        """The small part of the state as text: two workers with the same version have the same.

        Args:
            committed: of what was saved last ("" where nothing was) instead of the last boundary.

        Returns:
            At most MAX_DIGEST_LENGTH ASCII characters.
        """

    def clear_gradients(self) -> None:  # noqa: B027  a state without a model has none
        """Forget what an interrupted step has accumulated."""


class ObjectState(State):
    """A state of plain Python objects.

    Each keyword becomes an attribute that is saved, restored and synced, and only those are:

        state = ObjectState(epoch=0, batch=0)
        state.epoch += 1

    Saved values are copies (`copy.deepcopy`). They must also be picklable for a sync. All workers must hold
    the same values at a boundary; what is a worker's own does not belong here. A boundary without a commit keeps
    values up to 4 KB; while an attribute is larger, failures lead back to the last commit, which is logged once, and
    commits are made now and then.

    Args:
        from_rank_0: names of attributes that may differ between ranks, such as a best loss that rank 0 alone computes:
            they are not compared, and at the start of each round all workers take rank 0's. Numbers, texts, bools,
            None, and lists and dicts of those.
        kwargs: the attributes.

    Raises:
        ValueError: a name starts with an underscore or is one of this class's own; or from_rank_0 names no attribute.
    """

    if TYPE_CHECKING:  # the attributes are the script's, so no type checker can know them

        def __getattr__(self, name: str) -> Any: ...

        def __setattr__(self, name: str, value: Any) -> None: ...

    def __init__(self, *, from_rank_0: Iterable[str] = (), **kwargs: Any) -> None:
        super().__init__()
        self._from_rank_0 = frozenset(from_rank_0)
        if unknown := sorted(self._from_rank_0 - kwargs.keys()):
            raise ValueError(f"from_rank_0 names {unknown[0]!r}, which is no attribute of this state")
        for name in kwargs:
            if name.startswith("_") or hasattr(self, name):
                raise ValueError(f"a state cannot have an attribute named {name!r}: choose another name")
        self._names: tuple[str, ...] = tuple(kwargs)
        self._saved: dict[str, Any] | None = None
        self._kept: dict[str, Any] | None = None
        self._too_large: set[str] = set()
        self._unkept = ""
        self._random = RandomStates()
        self._saved_random = RandomStates()
        for name, value in kwargs.items():
            setattr(self, name, value)

    @property
    def has_commit(self) -> bool:
        """Whether there is anything that `restore` could go back to."""
        return self._saved is not None

    def save(self) -> None:
        """Copy the attributes aside.

        Raises:
            TypeError: an attribute cannot be copied.
        """
        self._saved = _copied(self._capture())
        self._saved_random.keep()

    def restore(self) -> None:
        """Give the attributes the values that were saved last; without anything saved, stay."""
        if self._saved is not None:
            self._load(_copied(self._saved))
            self._saved_random.bring_back()
            self.keep()

    def keep(self) -> None:
        """Keep the attributes' values, where they are small, and the random number generators' states."""
        self._kept = self._small_copies(self._live_part)
        self._random.keep()
        self._exposed = self._kept is None

    @property
    def clean(self) -> bool:
        """Whether all attributes were kept at the last boundary."""
        return self._kept is not None

    @property
    def why_torn(self) -> str:
        """Why it cannot return to its last boundary."""
        return (
            f"the state's {self._unkept!r} is kept by commits only: keep it smaller, keep it out of the state, or call "
            "commit() more often"
        )

    def return_to_boundary(self) -> None:
        """Give the attributes, and the random number generators, what they had at the last boundary."""
        assert self._kept is not None, "the state is torn"
        parts = self._small_copies(self._kept.__getitem__)
        assert parts is not None, "what was small is small"
        self._bring_back(parts)
        self._random.bring_back()
        self.keep()

    def sync(self) -> bool:
        """Bring this round's receivers to the source's state.

        It counts as a commit for receivers, and for workers without one. Until everything has arrived, a receiver's
        state is what it was.

        Returns:
            whether the result counts as committed here. A holder keeps the commit that it has, and copies nothing.

        Raises:
            ValueError: the source's state has other attributes than this one.
            RuntimeError: the connection to the source or a receiver broke, or this worker has no rank yet.
        """
        assignment = topology.current()
        self.copied.received_bytes = 0
        arrived = None
        if assignment.receivers:
            with without_collections():
                arrived = self._exchange(assignment)
        if self._from_rank_0:
            self._take_from_rank_0(assignment)
        self.reset()
        if arrived is not None:
            self._adopt(arrived)
        elif not self.has_commit:
            self.save()
        else:
            self.keep()
            return False
        self.keep()
        return True

    def _take_from_rank_0(self, assignment: Assignment) -> None:
        from edriver.worker.sync.rank_zero import values_of_rank_0

        own = {name: getattr(self, name) for name in self._from_rank_0}
        for name, value in values_of_rank_0(own, assignment).items():
            setattr(self, name, value)

    def _exchange(self, assignment: Assignment) -> dict[str, Any] | None:
        from edriver.worker.sync.sync import sync_state  # torch, which a world of plain objects does without

        arrived = sync_state(self._capture() if assignment.rank == assignment.source else {}, assignment)
        if arrived is not None:
            self._load(arrived)
        return arrived

    def reset(self) -> None:
        """Do nothing: plain objects do not depend on rank and size."""

    def digest(self, committed: bool) -> str:
        """The small part of the state as text: see `State.digest`.

        It has the attributes that are not from_rank_0 and consist of int, float, str, bytes, bool, None, and of tuples,
        lists and dicts of those.
        """
        if not committed:
            return self._digest(self._capture() if self._kept is None else self._kept)
        return "" if self._saved is None else self._digest(self._saved)

    def _digest(self, tree: dict[str, Any]) -> str:
        return digest_text({name: v for name, v in self._small(tree).items() if name not in self._from_rank_0})

    def _capture(self) -> dict[str, Any]:
        """The state as a tree that refers to the live objects."""
        return {name: getattr(self, name) for name in self._names}

    def _load(self, tree: dict[str, Any]) -> None:
        """Take over a tree of `_capture`'s form, whose objects become the state's own."""
        check_names(tree, self._names, "attribute")
        for name, value in tree.items():
            setattr(self, name, value)

    def _adopt(self, arrived: dict[str, Any]) -> None:
        """Make a tree that has just been loaded the last commit."""
        del arrived  # whose objects are now the state's
        self.save()

    def _small(self, tree: dict[str, Any]) -> dict[str, Any]:
        """What of a tree may take part in the digest."""
        return tree

    def _live_part(self, name: str) -> Any:
        """What a boundary copies of an attribute: it refers to the live object. May raise NotSmallError."""
        return getattr(self, name)

    def _bring_back(self, parts: dict[str, Any]) -> None:
        """Take over parts of `_live_part`'s form, whose objects become the state's own."""
        self._load(parts)

    def _copy_special(self, value: Any) -> Any:
        """Copy a part that small_copy.py knows nothing of, or answer NotImplemented."""
        return not_ours(value)

    def _small_copies(self, part_of: Callable[[str], Any]) -> dict[str, Any] | None:
        """Copies of all attributes' parts; None where one is too large."""
        copies = SmallCopies(self._copy_special)
        result = {}
        for name in self._names:
            try:
                result[name] = copies.of(part_of(name))
            except NotSmallError as error:
                self._unkept = name
                if name not in self._too_large:
                    self._too_large.add(name)
                    logger.warning(
                        "the state's %r is kept by commits only: %s; until it is smaller, a failure leads back to the "
                        "last commit and not to the last boundary; besides the script's own, commits are made now and "
                        "then",
                        name,
                        error,
                    )
                return None
        return result


def holds_nothing(state: State) -> bool:
    """Whether a state has no attributes: what is called with it meets the other workers, and does not train."""
    return type(state) is ObjectState and not state._names


def check_names(given: Iterable[str], own: Iterable[str], what: str) -> None:
    """Refuse a state that has other names than this worker's.

    Raises:
        ValueError: names them.
    """
    missing, unknown = sorted(set(own) - set(given)), sorted(set(given) - set(own))
    if missing or unknown:
        raise ValueError(
            f"this worker's state differs from the one it was to take over: {what}s that only this worker "
            f"has: {missing}, that only the other has: {unknown}; all workers must run the same script"
        )


def _copied(values: dict[str, Any]) -> dict[str, Any]:
    """Copies of all values; what two attributes share, their copies share too."""
    memo: dict[int, Any] = {}
    copies = {}
    for name, value in values.items():
        try:
            copies[name] = copy.deepcopy(value, memo)
        except Exception as error:
            raise TypeError(
                f"the state's attribute {name!r} cannot be copied ({type(error).__name__}: {error}); keep "
                "out of the state what is not data: files, locks, connections, loaders"
            ) from error
    return copies
