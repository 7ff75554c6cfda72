"""ObjectState: a state of plain Python objects, which does without torch."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from edriver.model.plan import Assignment
from edriver.worker import context
from edriver.worker.backend.interpreter import without_collections
from edriver.worker.copies.random_states import RandomStates
from edriver.worker.copies.small_copy import NotSmallError, SmallCopies, not_ours
from edriver.worker.state.digests import digest_text
from edriver.worker.state.state import State
from edriver.worker.state.unkept import ADVICE, refuse_unkept

if TYPE_CHECKING:
    from edriver.worker.backend.process_modes import ProcessModes

logger = logging.getLogger("edriver.worker")


class ObjectState(State):
    """A state of plain Python objects.

    Each keyword becomes an attribute that is saved, restored and synced, and only those are:

        state = ObjectState(epoch=0, batch=0)
        state.epoch += 1

    Saving copies the values (`copy.deepcopy`); syncing pickles them. All workers must hold the same values at a
    boundary; keep values that differ between workers elsewhere. A boundary without a commit keeps values up to 4 KB;
    while an attribute is larger, failures lead back to the last commit, which edriver logs once, and it makes commits
    now and then.

    Args:
        from_rank_0: names of attributes that may differ between ranks, such as a best loss that only rank 0 computes:
            edriver does not compare them, and at the start of each round all workers take rank 0's values. Allowed
            are numbers, strings, bools, None, and lists and dicts of those.
        kwargs: the attributes.

    Raises:
        TypeError: a value cannot be kept (a lock, an open file, a generator object).
        ValueError: a name starts with an underscore or is an attribute of this class; or from_rank_0 contains a name
            that is not an attribute of the state.
    """

    if TYPE_CHECKING:  # the attributes are the script's, so no type checker can know them

        def __getattr__(self, name: str) -> Any: ...

        def __setattr__(self, name: str, value: Any) -> None: ...

    def __init__(self, *, from_rank_0: Iterable[str] = (), **kwargs: Any) -> None:
        self._hold(kwargs, from_rank_0)

    def _hold(self, values: Mapping[str, Any], from_rank_0: Iterable[str] = ()) -> None:
        """Initialize a state with these attributes, whatever their names. Raises what the constructor raises."""
        State.__init__(self)
        self._from_rank_0 = frozenset(from_rank_0)
        if unknown := sorted(self._from_rank_0 - values.keys()):
            raise ValueError(f"from_rank_0 names {unknown[0]!r}, which is not an attribute of this state")
        for name in values:
            if name.startswith("_") or hasattr(self, name):
                raise ValueError(f"a state cannot have an attribute named {name!r}: choose another name")
        self._names: tuple[str, ...] = tuple(values)
        self._saved: dict[str, Any] | None = None
        self._kept: dict[str, Any] | None = None
        self._too_large: set[str] = set()
        self._unkept = ""
        self._random = RandomStates()
        self._saved_random = RandomStates()
        self._saved_modes: ProcessModes | None = None
        for name, value in values.items():
            setattr(self, name, value)
            self._refuse_unkept(name)

    @property
    def has_commit(self) -> bool:
        """Whether the state has been saved, so that `restore` can go back to it."""
        return self._saved is not None

    def save(self) -> None:
        """Save copies of the attributes.

        Raises:
            TypeError: an attribute cannot be copied.
        """
        self._note_modes(commits=True)
        self._saved = _copied(self._capture())
        self._saved_random.keep()
        self._saved_modes = self.computes_in.noted

    def restore(self) -> None:
        """Set the attributes to the values saved last; do nothing before the first save."""
        if self._saved is not None:
            self._load(_copied(self._saved))
            self._saved_random.bring_back()
            self.computes_in.go_back(self._saved_modes)
            self.keep_small()

    def keep_small(self) -> None:
        """Copy small attribute values and the random number generators' states."""
        self._note_modes()
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
            f"the state's {self._unkept!r} is only kept by commits: keep it smaller, keep it out of the state, or call "
            "commit() more often"
        )

    def return_to_boundary(self) -> None:
        """Set the attributes and the random number generators back to the last boundary."""
        assert self._kept is not None, "the state is torn"
        parts = self._small_copies(self._kept.__getitem__)
        assert parts is not None, "what was small is small"
        self._bring_back(parts)
        self._random.bring_back()
        self.computes_in.go_back()
        self.keep_small()

    def sync(self) -> bool:
        """Send the source's state to this round's receivers.

        This counts as a commit for receivers, and for workers without one. A receiver's state does not change until
        everything has arrived.

        Returns:
            whether the result counts as committed here. A holder keeps its last commit, and copies nothing.

        Raises:
            ValueError: the source's state has other attributes than this one.
            RuntimeError: the connection to the source or a receiver broke, or this worker has no rank yet.
            CheckpointError: another live run owns the checkpoints, or the one to begin from cannot be loaded.
        """
        assignment = context.assignment()
        if assignment.sharding is not None:
            raise TypeError(
                f"this run has --replica-size all, in which all workers hold the state once between them, and each "
                f"{type(self).__name__} holds all of it: use edriver.ShardedState, or leave out --replica-size"
            )
        self.own_checkpoints(assignment)
        self.copied.received_bytes = 0
        arrived = None
        loads = bool(assignment.checkpoint) and assignment.rank in assignment.sources
        if assignment.checkpoint:
            self._load_checkpoint_in(assignment)
        if assignment.receivers or (assignment.first_sync and assignment.replica_size > 1):
            with without_collections():
                arrived = self._exchange(assignment)
        if self._from_rank_0:
            self._take_from_rank_0(assignment)
        self.reset()
        if arrived is not None:
            self._adopt(arrived)
        elif not self.has_commit or (assignment.first_sync and assignment.replica_size > 1):
            self.save()  # of what has got another name: where positions offered commits by unequal names, all were lost
        elif not loads:
            self.keep_small()
            return False
        self.keep_small()
        return True

    def _load_checkpoint_in(self, assignment: Assignment) -> None:
        """Load the checkpoint with which a round begins, on those that send it to the others; all members call this."""
        if assignment.rank in assignment.sources:
            self.load_checkpoint()

    def take_over(self, tree: dict[str, Any], random: dict[str, Any]) -> None:
        """Load a checkpoint into the state; it then counts as committed.

        Args:
            tree: as `_capture` returns it; its tensors become those of the last commit.
            random: see RandomStates.kept.

        Raises:
            ValueError: the checkpoint belongs to a state with other attributes.
        """
        self._load(tree)
        self._random.take(random)
        self._random.bring_back()
        self._adopt(tree)

    def _take_from_rank_0(self, assignment: Assignment) -> None:
        from edriver.worker.sync.rank_zero import values_of_rank_0

        own = {name: getattr(self, name) for name in self._from_rank_0}
        for name, value in values_of_rank_0(own, assignment).items():
            setattr(self, name, value)

    def _exchange(self, assignment: Assignment) -> dict[str, Any] | None:
        # Imports torch, which a world of plain objects does not need.
        from edriver.worker.sync.sync import send_along, sync_state

        sources = assignment.sources
        if assignment.first_sync and len(sources) > 1:
            # States may differ: what all workers hold alike comes from the first source alone.
            sent = (self._common(), self.computes_in.sent()) if assignment.rank == sources[0] else ()
            if (common := send_along(sources, sent, assignment)) is not None:
                self._take_common(common[0])
                self.computes_in.take(common[1])
        sent = (self._capture(), self.computes_in.sent()) if assignment.rank in sources else ()
        arrived = sync_state(sent, assignment)
        if arrived is None:
            return None
        tree: dict[str, Any]
        tree, modes = arrived
        self._load(tree)
        self.computes_in.take(modes)
        return tree

    def _common(self) -> Any:
        """What no worker may begin with differently: for most states all of it."""
        return self._capture()

    def _take_common(self, arrived: Any) -> None:
        """Load what `_common` returned on another worker."""
        self._load(arrived)

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

    def _note_modes(self, commits: bool = False) -> None:
        """At a boundary that ends a step, note the modes in which the function computes."""
        self.computes_in.passed(commits)

    def _refuse_unkept(self, name: str) -> None:
        """Refuse an attribute that cannot be kept."""
        refuse_unkept(name, getattr(self, name))

    def _capture(self) -> dict[str, Any]:
        """The state as a tree that refers to the live objects."""
        return {name: getattr(self, name) for name in self._names}

    def _load(self, tree: dict[str, Any]) -> None:
        """Load a tree as `_capture` returns it; the state keeps its objects."""
        check_names(tree, self._names, "attribute")
        for name, value in tree.items():
            setattr(self, name, value)

    def _adopt(self, arrived: dict[str, Any]) -> None:
        """Make a tree that was just loaded the last commit."""
        del arrived  # the state now holds its objects
        self.save()

    def _small(self, tree: dict[str, Any]) -> dict[str, Any]:
        """The part of a tree that may take part in the digest."""
        return tree

    def _live_part(self, name: str) -> Any:
        """The part of an attribute that a boundary copies; it refers to the live object. May raise NotSmallError."""
        return getattr(self, name)

    def _bring_back(self, parts: dict[str, Any]) -> None:
        """Load parts as `_live_part` returns them; the state keeps their objects."""
        self._load(parts)

    def _copy_special(self, value: Any) -> Any:
        """Copy a part that small_copy.py does not support, or return NotImplemented."""
        return not_ours(value)

    def _small_copies(self, part_of: Callable[[str], Any]) -> dict[str, Any] | None:
        """Return copies of all attributes' parts, or None if one is too large."""
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
                        "the state's %r is only kept by commits: %s; until it is smaller, a failure leads back to the "
                        "last commit and not to the last boundary; edriver adds commits to the script's own now and "
                        "then",
                        name,
                        error,
                    )
                return None
        return result


def holds_nothing(state: State) -> bool:
    """Whether a state has no attributes: a function called with it meets the other workers and does not train."""
    return type(state) is ObjectState and not state._names


def check_names(given: Iterable[str], own: Iterable[str], what: str) -> None:
    """Refuse a state whose attribute names differ from this worker's.

    Raises:
        ValueError: the names differ; the message lists the differences.
    """
    missing, unknown = sorted(set(own) - set(given)), sorted(set(given) - set(own))
    if missing or unknown:
        raise ValueError(
            f"this worker's state differs from the one that it should load: {what}s that only this worker has: "
            f"{missing}, that only the other one has: {unknown}; all workers must run the same script"
        )


def _copied(values: dict[str, Any]) -> dict[str, Any]:
    """Copy all values; objects shared by two attributes are shared by the copies as well."""
    memo: dict[int, Any] = {}
    copies = {}
    for name, value in values.items():
        try:
            copies[name] = copy.deepcopy(value, memo)
        except Exception as error:
            raise TypeError(
                f"the state's attribute {name!r} cannot be copied ({type(error).__name__}: {error}); {ADVICE}"
            ) from error
    return copies
