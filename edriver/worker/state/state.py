"""State: what survives a change of workers, and the boundaries at which it is whole.

The interface is Horovod's (horovod.common.elastic.State and ObjectState). A script makes its state before
`edriver.run`, changes it while it trains, and calls `commit` (or `check_host_updates`) after every step:
there, and only there, a step is complete on all workers.

    save      copy the state aside            restore   go back to the copy
    commit    save, then a boundary           sync      receive the state from a worker that holds it

A boundary without a commit is one to go back to as well, as long as nothing large has changed since: the state is
*clean*. What is small is kept at each boundary (`keep_small`, `return_to_boundary`); what is large is not copied. A
state that is not clean is *torn*, and goes back to its last commit.

This file does not import torch: see `edriver.worker.state.torch_state` for models and optimizers.
"""

from __future__ import annotations

import abc
import contextlib
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Final, Protocol

from edriver.model.ids import RoundId
from edriver.model.stall_limits import Phase
from edriver.worker.assignment import Assignment
from edriver.worker.reports import Copied, SamplesDone, with_reports
from edriver.worker.state.modes import Modes
from edriver.worker.training_phase import phase

COMMIT_SHARE: Final = 0.01
"""How much of a script's time commits may take that it has not asked for."""


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


class OnDisk(Protocol):
    """What writes a state's checkpoints, and loads them."""

    def begin(self, round_id: RoundId) -> None:
        """This worker is rank 0 of a round that begins: its run owns the checkpoints from now on.

        Raises:
            CheckpointError: another run that lives does.
        """

    def count_step(self) -> bool:
        """A boundary is about to be passed: count the step; returns whether a checkpoint is due here."""

    def write(self) -> None:
        """Begin to write what has just been committed."""

    def write_last(self) -> None:
        """The same, unless the newest checkpoint is of that step."""

    def newest_steps(self) -> int:
        """The steps of the newest whole checkpoint, if they are more than the state has made; else 0.

        Raises:
            CheckpointError: another run that lives owns the checkpoints.
        """

    def load(self) -> None:
        """Take over the newest whole checkpoint.

        Raises:
            CheckpointError: none can be loaded.
        """

    def returned(self) -> None:
        """The training function has returned."""


class State(abc.ABC):
    """What `edriver.run` needs of a script's state, and what the script needs of the run.

    Attributes:
        last_hosts_update: timestamp and HostUpdateResult of the last news about hosts, None before any.
        computes_in: the modes of its training function.
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
        self._disk: OnDisk | None = None
        self.computes_in = Modes()
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
            self.check_peers()
            return
        due = self._checkpoint_due()
        self._commit(due)
        if self._rounds is not None:
            self.keep_small()
            self._rounds.boundary(committed=True)

    def check_host_updates(self) -> None:
        """Pass a boundary without saving; as long as the state is clean, a failure goes back to it all the same.

        Where a failure may lead back further, it saves now and then: that takes no more than COMMIT_SHARE of the time.
        Where a checkpoint is due, it saves, too.
        In the middle of a step (`half_done`) it only checks whether a member is lost.

        Raises:
            HostsUpdatedInterrupt: all members stop here for a change of hosts; the state is kept as it is.
            PeerLostError: a member of this round is lost.
        """
        if self.half_done():
            self.check_peers()
        elif self._rounds is not None:
            due = self._checkpoint_due()
            self.keep_small()
            committed = due or (self._exposed and self._schedule.due())
            if committed:
                self._commit(due)
            self._rounds.boundary(committed)
        elif self._checkpoint_due():
            self._commit(checkpoint=True)

    def report(self, **values: float) -> None:
        """Report values to observers: `state.report(loss=loss.item())`. Those of rank 0 are shown.

        It costs no message; the latest value of each name is read every second or two, as of the latest boundary.
        Nothing is saved or synced.

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
        self.computes_in.begin()
        self.save()
        reported, self._rehearses = self.reported, True
        try:
            with self.computes_in.in_function():
                yield
        finally:
            self.reported, self._rehearses = reported, False
        self.restore()
        self.computes_in.go_back()
        self.clear_gradients()

    def newest_checkpoint(self, look: bool) -> int | None:
        """The steps of the newest whole checkpoint on disk that is ahead of this state; 0: none is.

        Args:
            look: whether to look for it; otherwise the answer is 0.

        Returns:
            None if the state has no checkpoints.

        Raises:
            CheckpointError: another run that lives owns them.
        """
        if self._disk is None:
            return None
        return self._disk.newest_steps() if look else 0

    def own_checkpoints(self, assignment: Assignment) -> None:
        """As rank 0 of a round that begins, have the run own the checkpoints on disk; may raise a CheckpointError."""
        if self._disk is not None and assignment.rank == 0:
            self._disk.begin(assignment.round_id)

    def load_checkpoint(self) -> None:
        """Take over the newest whole checkpoint on disk.

        Raises:
            CheckpointError: none can be loaded.
        """
        if self._disk is not None:
            self._disk.load()

    def function_returned(self) -> None:
        """The training function has returned."""
        if self._disk is not None:
            self._disk.returned()

    def write_last_checkpoint(self) -> None:
        """Write the state as it is to disk, if it has checkpoints and the newest one there is older.

        Returns when the writing has begun: the process does not end before it is done.
        """
        if self._disk is not None:
            self.save()
            self._disk.write_last()

    def _checkpoint_due(self) -> bool:
        return self._disk is not None and not self._rehearses and self._disk.count_step()

    def _commit(self, checkpoint: bool = False) -> None:
        if self._rehearses:
            return
        if self._rounds is not None and self.wait_for_device():
            self._rounds.check()  # or what has been computed may be what an abort has left
        began = time.perf_counter()
        with phase(Phase.COMMIT):
            self.save()
            if checkpoint and self._disk is not None:
                self._disk.write()
        seconds = time.perf_counter() - began
        self.copied.commit(seconds)
        self._schedule.made(seconds)

    def check_peers(self) -> None:
        """Without counting a boundary, look whether a member of the round is lost.

        Raises:
            PeerLostError: one is.
        """
        if self._rounds is not None:
            self._rounds.check()

    def first_boundary(self) -> None:  # noqa: B027  most states have nothing that a function could spoil
        """A round's first boundary has been passed: look what the training function has made of the state.

        Raises:
            TypeError: something in it cannot be kept any more.
        """

    def keep_small(self) -> None:  # noqa: B027  a state may know of no boundaries, only of commits
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


class CommitSchedule:
    """Spaces commits out so that they take no more than COMMIT_SHARE of the time, however long each of them takes.

    Args:
        clock: seconds that only grow.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._due_at = 0.0

    def made(self, seconds: float) -> None:
        """A commit has been made, in this many seconds."""
        self._due_at = self._clock() + seconds / COMMIT_SHARE

    def due(self) -> bool:
        """Whether another one may be made."""
        return self._clock() >= self._due_at
