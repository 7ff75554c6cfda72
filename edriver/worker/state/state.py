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
from contextlib import AbstractContextManager
from typing import Any, Final, Protocol

from edriver.model.ids import RoundId
from edriver.model.plan import Assignment
from edriver.model.shards import HeldShards
from edriver.model.stall_limits import Phase
from edriver.worker import context
from edriver.worker.reports import Copied, SamplesDone, with_reports
from edriver.worker.sampler.sample_share import SampleDimensions
from edriver.worker.state.modes import Modes
from edriver.worker.training_phase import phase
from edriver.worker.watch.script_reports import ScriptReports

COMMIT_SHARE: Final = 0.01
"""How much of a script's time commits may take that it has not asked for."""


class BoundaryListener(Protocol):
    """What a state needs from the run that it takes part in."""

    @property
    def abort_cause(self) -> str | None:
        """Why the current round is over before its end; None: it is not."""

    def boundary(self, committed: bool) -> None:
        """Count a boundary.

        Args:
            committed: whether the state has just been saved, so that `restore` goes back to this boundary's version.

        Raises:
            HostsUpdatedInterrupt: all members stop at this boundary.
            PeerLostError: a member of this round is lost.
        """

    def clipped(self, norm: float) -> None:
        """The seal of the step that is about to be made has carried this norm, by which its gradients are clipped."""

    def seal_broken(self, error: Exception) -> float | None:
        """The seal of a step that is about to be made has failed: wait for what the next round continues from.

        Returns if it continues from that step: then make it, without any other worker.

        Args:
            error: what the seal has raised.

        Returns:
            the norm that the seal has carried to those that have made the step; None: it carries no norm.

        Raises:
            PeerLostError: it continues from the last boundary, or this worker is to leave.
        """

    def check(self) -> None:
        """Check whether a member is lost, without counting a boundary.

        Raises:
            PeerLostError: a member of this round is lost.
        """


class OnDisk(Protocol):
    """Writes and loads a state's checkpoints."""

    def begin(self, round_id: RoundId) -> None:
        """Take ownership of the checkpoints for the run, as rank 0 of a round that begins.

        Raises:
            CheckpointError: another live run owns them.
        """

    def count_step(self) -> bool:
        """Count the step before a boundary is passed; returns whether a checkpoint is due here."""

    def write(self) -> None:
        """Start to write the last commit."""

    def write_last(self, chosen: bool) -> None:
        """Start to write the last commit, unless the newest checkpoint already has its step.

        Args:
            chosen: whether this worker is the one to do that, where one has all of the state.
        """

    def newest_steps(self) -> int:
        """The number of steps of the newest complete checkpoint, if it is ahead of the state; else 0.

        Raises:
            CheckpointError: another live run owns the checkpoints.
        """

    def load(self) -> None:
        """Load the newest complete checkpoint.

        Raises:
            CheckpointError: no checkpoint can be loaded.
        """

    def returned(self) -> None:
        """The training function has returned."""


class State(abc.ABC):
    """The base class of states: the interface between a script's state and `edriver.run`.

    Attributes:
        last_hosts_update: timestamp and HostUpdateResult of the last change of hosts, or None.
        computes_in: the modes in which the training function computes.
        copied: the amount of data that the state has copied, for observers.
        reported: the values that the script reported last.
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
        """Bind the state to the current run; with None, boundaries are local again."""
        self._rounds = rounds
        context.current.part(SampleDimensions).clear()  # those of another state that was trained before

    def prepare(self) -> None:  # noqa: B027  for most states there is nothing to do
        """Do what takes time and needs no round, before this worker reports that it is ready for its first one."""

    def register_reset_callbacks(self, callbacks: Iterable[Callable[[], object]]) -> None:
        """Register functions to call, in this order, at the start of every round but the first.

        Use them to adapt what depends on the number of workers, such as the learning rate.
        """
        self._reset_callbacks.extend(callbacks)

    def on_reset(self) -> None:
        """Adapt to a new round; `run` calls this when rank and size are known, before `sync`."""
        self.reset()
        for callback in self._reset_callbacks:
            callback()

    def on_hosts_updated(self, timestamp: float, update_res: int) -> None:
        """Record that hosts were added or removed; may be called from any thread.

        Args:
            timestamp: when the driver saw the change, in seconds since the Unix epoch.
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
        """Pass a boundary without saving; as long as the state is clean, a failure still leads back to this boundary.

        If a failure could lead back further, this call saves from time to time, within COMMIT_SHARE of the run time.
        It also saves when a checkpoint is due.
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
            committed = due or self._commit_by_itself()
            if committed:
                self._commit(due)
            self._rounds.boundary(committed)
        elif self._checkpoint_due():
            self._commit(checkpoint=True)

    def report(self, **values: float) -> None:
        """Report values to observers, as in `state.report(loss=loss.item())`. Observers see the values of rank 0.

        A call sends no message: edriver reads the latest value of each name every second or two, as of the latest
        boundary. Reported values are neither saved nor synced. The first value of each name that is not finite is
        reported as an event, whichever rank has reported it.

        Args:
            values: numbers by name; at most 100 names in all.

        Raises:
            ValueError: there are more names, or a string is not a number.
            TypeError: a value is not a number.
        """
        self.reported = with_reports(self.reported, values)
        if not self._rehearses:
            context.current.part(ScriptReports).look_at_values(self.reported, values)

    def samples_done(self) -> SamplesDone | None:
        """The progress of the state's ElasticSampler, if it has one; may be called from any thread."""
        return None

    def half_done(self) -> bool:
        """Whether a step has begun whose result is not in the state yet, such as accumulated gradients."""
        return False

    def rehearse(self, function: Callable[[Any], object], alone: Callable[[], AbstractContextManager[None]]) -> None:
        """Call a script's warm-up function with this state before the first round, then undo its changes.

        Args:
            function: the script's.
            alone: enters a round of this process alone.

        Raises:
            Exception: any error of the function.
        """
        with self.rehearsal(), alone():
            function(self)

    @contextlib.contextmanager
    def rehearsal(self) -> Iterator[None]:
        """Undo, at its end, all changes to the state; meanwhile commits save nothing and reports are dropped."""
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
        """The number of steps of the newest complete checkpoint on disk.

        Args:
            look: whether to look for a checkpoint.

        Returns:
            The number of steps; 0 if no checkpoint is ahead of this state or `look` is False; None if the state has
            no checkpoints.

        Raises:
            CheckpointError: another live run owns the checkpoints.
        """
        if self._disk is None:
            return None
        return self._disk.newest_steps() if look else 0

    def own_checkpoints(self, assignment: Assignment) -> None:
        """As rank 0 of a round that begins, take ownership of the checkpoints on disk; may raise a CheckpointError."""
        if self._disk is not None and assignment.rank == 0:
            self._disk.begin(assignment.round_id)

    def load_checkpoint(self) -> None:
        """Load the newest complete checkpoint from disk.

        Raises:
            CheckpointError: no checkpoint can be loaded.
        """
        if self._disk is not None:
            self._disk.load()

    def function_returned(self) -> None:
        """The training function has returned."""
        if self._disk is not None:
            self._disk.returned()

    def write_last_checkpoint(self, chosen: bool) -> None:
        """Write the current state to disk, if the state has checkpoints and the newest one is older.

        Args:
            chosen: see OnDisk.write_last.

        Returns when writing has begun; the process does not end before it is complete.
        """
        if self._disk is not None:
            self.save()
            self._disk.write_last(chosen)

    def _commit_by_itself(self) -> bool:
        """Whether this boundary is to be a commit though the script has not asked for one."""
        return self._exposed and self._schedule.due()

    def _checkpoint_due(self) -> bool:
        return self._disk is not None and not self._rehearses and self._disk.count_step()

    def _commit(self, checkpoint: bool = False) -> None:
        if self._rehearses:
            return
        if self._rounds is not None and self.wait_for_device():
            self._rounds.check()  # else the results could be those of an aborted collective
        began = time.perf_counter()
        with phase(Phase.COMMIT):
            self.save()
            if checkpoint and self._disk is not None:
                self._disk.write()
        seconds = time.perf_counter() - began
        self.copied.commit(seconds)
        self._schedule.made(seconds)

    def check_peers(self) -> None:
        """Check whether a member of the round is lost, without counting a boundary.

        Raises:
            PeerLostError: a member is lost.
        """
        if self._rounds is not None:
            self._rounds.check()

    def first_boundary(self) -> None:  # noqa: B027  for most states there is nothing to check
        """After a round's first boundary, check what the training function has done to the state.

        Raises:
            TypeError: the state now has a value that cannot be kept.
        """

    def keep_small(self) -> None:  # noqa: B027  a state may support commits only
        """Copy the small values of the state, at a boundary that counts."""

    def peer_lost(self) -> None:  # noqa: B027  for most states a loss leaves nothing in doubt
        """Called on the notification thread when a peer is lost, before the round's collectives are aborted."""

    def wait_for_device(self) -> bool:
        """Wait until the values that a commit copies are computed; returns whether there was a device to wait for."""
        return False

    @property
    def clean(self) -> bool:
        """Whether `return_to_boundary` can go back to the last boundary."""
        return False

    @property
    def why_torn(self) -> str:
        """Why `return_to_boundary` is impossible, and what to do about it, as text for people."""
        return "this kind of state keeps nothing at a boundary: call commit() now and then"

    def return_to_boundary(self) -> None:  # noqa: B027  see `clean`
        """Go back to the last boundary; only while the state is clean."""

    @property
    @abc.abstractmethod
    def has_commit(self) -> bool:
        """Whether the state has been saved, so that `restore` can go back to it."""

    @abc.abstractmethod
    def save(self) -> None:
        """Save a copy of the state. Scripts call `commit`, which also marks a step as complete."""

    @abc.abstractmethod
    def restore(self) -> None:
        """Go back to the last save; do nothing before the first one."""

    @abc.abstractmethod
    def sync(self) -> bool | None:
        """Send the source's state to this round's receivers.

        Returns:
            False if the last commit is still an older one, as a holder's may be; otherwise the result counts as
            committed.
        """

    @abc.abstractmethod
    def reset(self) -> None:
        """Adapt to this round's rank and size."""

    def shards_held(self, committed: bool) -> tuple[HeldShards, ...]:
        """What this worker holds of the state, if all workers of a round hold it once between them.

        Args:
            committed: of the last save, instead of the last boundary.

        Returns:
            the latest sharding first; empty if each worker, or each replica of some, holds the whole state.
        """
        del committed
        return ()

    def complete_shadows(self) -> None:
        """Have all shadows of shards up to date. All members of a round call this, at a boundary at which they stop.

        Raises:
            RuntimeError: a peer was lost. What is up to date, shards_held says.
        """
        return

    @abc.abstractmethod
    def digest(self, committed: bool) -> str:
        """The small part of the state as text; equal on any two workers whose state has the same version.

        Args:
            committed: describe the last save ("" before the first) instead of the last boundary.

        Returns:
            At most MAX_DIGEST_LENGTH ASCII characters.
        """

    def clear_gradients(self) -> None:  # noqa: B027  a state without a model has none
        """Discard the gradients that an interrupted step has accumulated."""


class CommitSchedule:
    """Spaces commits so that they take at most COMMIT_SHARE of the run time, however long each of them takes.

    Args:
        clock: a monotonic clock, in seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._due_at = 0.0

    def made(self, seconds: float) -> None:
        """Record a commit that took this many seconds."""
        self._due_at = self._clock() + seconds / COMMIT_SHARE

    def due(self) -> bool:
        """Whether another commit may be made now."""
        return self._clock() >= self._due_at
