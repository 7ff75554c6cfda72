"""`edriver.checkpoints.Checkpoints`: the checkpoints of a script that knows nothing of where they are."""

from __future__ import annotations

import logging
import operator
import os
from collections.abc import Callable, MutableMapping
from datetime import timedelta
from functools import partial
from typing import Any, Final, TypeAlias

import torch.distributed as dist
from torch import nn

from edriver.common.copied_environment import shared_interpreter
from edriver.model.ids import RoundId
from edriver.model.memory_checkpoint import DiskTarget
from edriver.worker import context
from edriver.worker.checkpoints.memory.place import FORKED, CurrentMemory, current_place
from edriver.worker.checkpoints.memory.saver import MemorySaver
from edriver.worker.checkpoints.memory.schedule import DiskSchedule, require_positive
from edriver.worker.checkpoints.memory.script_state import (
    forget_first_step,
    load_into,
    require_picklable,
    state_dict_of,
    target_of,
    unwrapped,
    without_steps,
)
from edriver.worker.checkpoints.memory.state_planners import named
from edriver.worker.checkpoints.owned_folder import absolute
from edriver.worker.checkpoints.script_disk import DiskSaver
from edriver.worker.errors import CheckpointError
from edriver.worker.watch.forked import CreatorProcess

logger = logging.getLogger("edriver.worker")

_LOST_VALUES: Final = (
    "load cannot give back the state's %s: the function makes a new dict with its own values at each call. Give load a "
    "dict, and read them from it, or keep them in an object with state_dict and load_state_dict"
)
_FIRST_ROUND: Final = RoundId(1, 1)

State: TypeAlias = MutableMapping[str, Any]


class _InUse:
    """The object of this process that saves into memory."""

    def __init__(self) -> None:
        self.saves: Checkpoints | None = None


class Checkpoints:
    """Saves the state of a sharded or replicated training script, and loads it after a restart.

        checkpoints = edriver.checkpoints.Checkpoints("checkpoints", every_disk=timedelta(minutes=10))
        state = {"model": model, "optimizer": optimizer, "scheduler": scheduler}
        step = checkpoints.load(state) or 0
        while step < steps:
            train_step()
            step += 1
            checkpoints.save(step, state)

    In edriver's restart mode checkpoints go into the memory of the run's hosts, and what a restarted round loads comes
    from there. At longer intervals, and when the run ends, the hosts write the newest one to disk. Under torchrun, or
    alone, all go to disk, behind training. The number of ranks may change between saving and loading.

    All ranks call both methods, with the same steps. A state is a dict, or a callable that returns one, of modules,
    their optimizers, schedulers and other objects with `state_dict` and `load_state_dict`, tensors, and plain values,
    which are the same on all ranks. A process has one object that saves.

    Args:
        folder: the folder on disk, which all hosts share: a path, or a URL that fsspec supports.
        every_memory: how often to save into memory: a number of steps, a time, or None, for as often as takes 1 % of
            the training time.
        every_disk: how often to save to disk: a time, or a number of steps.
        keep: the number of checkpoints to keep on disk.

    Raises:
        ValueError: keep or an interval is not positive, or fsspec does not support the URL.
        ImportError: a package that fsspec needs for the URL is not installed.
        CheckpointError: this process was forked from a worker.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        every_memory: int | timedelta | None = None,
        every_disk: int | timedelta = timedelta(minutes=10),
        keep: int = 3,
    ) -> None:
        if every_memory is not None:
            require_positive(every_memory)  # also where nothing is kept in memory
        self._process = CreatorProcess()
        self._place = current_place()
        self._has_saved = False
        self._location = location = absolute(os.fspath(folder))
        self._memory: MemorySaver | None = None
        if self._place is not None:
            target = DiskTarget(location, keep, shared_interpreter())
            self._memory = MemorySaver(self._place, _store(), every_memory, disk=(target, DiskSchedule(every_disk)))
        agree = None if self._memory is None else self._memory.from_rank_zero
        owner = None if self._place is None else self._place.assignment.round_id
        self._disk = DiskSaver(location, every_disk, keep, agree, owner)
        self._due: Callable[[int], bool] = self._disk.due if self._memory is None else self._memory.due

    def load(self, state: State | Callable[[], State]) -> int | None:
        """Load the newest checkpoint, from memory or from disk, into the state's objects; all ranks load the same one.

        Plain values are replaced in the dict. If a callable makes another dict at each call, they are lost with the one
        that was loaded into: a warning names them.

        Returns:
            The step that it was saved with; None: there is no checkpoint yet, and nothing has changed.

        Raises:
            CheckpointError: another run that is alive uses the folder; this process was forked from the one that has
                made the object; or the checkpoint cannot be read, or does not
                fit the state: the message names the key, and what to do.
            TypeError: the state is no dict.
        """
        self._require_own_process()
        context.current.part(CurrentMemory).loads()
        in_memory = None if self._place is None else self._place.started_from
        on_disk = None if in_memory is not None else self._disk.newest()  # what is in memory is newer
        if in_memory is None and on_disk is None:
            self._say_from_the_beginning()
            return None
        values = _dict_of(state)
        new_target = partial(target_of, values)
        if in_memory is not None and self._memory is not None:
            step = in_memory.checkpoint.step
            if self._is_first:
                self._disk.own()
            loaded = self._memory.load(new_target)
        else:
            name, step = on_disk  # type: ignore[misc]  # one of the two is there
            loaded = self._disk.load(name, new_target)
        replaced = load_into(values, loaded)
        if (again := _dict_of(state)) is not values:
            lost = [name for name in replaced if again.get(name) is not values[name]]
            if lost and (self._is_first or self._place is None):
                logger.warning(_LOST_VALUES, named(lost))
        return step

    def save(self, step: int, state: State | Callable[[], State]) -> None:
        """Save a step, if a checkpoint is due; call it after each step.

        One is due at the intervals that were given, and before edriver restarts the script with other members. If none
        is due, that takes microseconds. What cannot be saved is said once, and training continues.

        Args:
            step: the number of steps made; it only grows.
            state: the state, or what makes it; called only if a checkpoint is due.

        Raises:
            CheckpointError: the state has something that cannot be saved: names it; two objects of this process save in
                turns; or it was forked from the one that has made the object.
            TypeError: the state is no dict, or the step no whole number.
        """
        self._require_own_process()
        step = operator.index(step)  # NumPy's, too
        if (member := context.current.restart_member) is not None:
            member.note_step(step)
        # Also the step at which the round is to be restarted with other members: so that costs no step.
        requested = context.current.checkpoint_requested()
        if not (requested | self._due(step)):
            return
        self._say_unloaded()
        values = unwrapped(_dict_of(state))
        new = without_steps(values)
        try:
            if self._memory is not None:
                self._be_the_only_one()
                self._memory.watch(values)
                self._memory.save(step, lambda: state_dict_of(values))
                if requested:
                    self._memory.wait()  # the process ends at the next call
            else:
                taken = state_dict_of(values)
                require_picklable(taken)
                self._disk.save(step, taken)
        finally:
            forget_first_step(new)
        if requested:
            context.current.checkpoint_requested()  # stops the process: one more step would be lost

    def _require_own_process(self) -> None:
        if not self._process.is_here:
            raise CheckpointError(FORKED)

    def _say_from_the_beginning(self) -> None:
        if self._place is not None and self._is_first and self._place.assignment.round_id > _FIRST_ROUND:
            logger.warning(
                "there is no checkpoint, neither in memory nor in %s: training starts again from the beginning",
                self._location,
            )

    def _say_unloaded(self) -> None:
        memory = context.current.part(CurrentMemory)
        if (source := memory.unloaded) is not None and self._is_first:
            logger.warning(
                "the script saves checkpoints and does not load them: the one of step %d in memory was not used. Call "
                "load before the first step",
                source.checkpoint.step,
            )
        memory.loads()

    @property
    def _is_first(self) -> bool:
        return self._place is not None and self._place.assignment.rank == 0

    def _be_the_only_one(self) -> None:
        """A round's checkpoint in memory is one state of each rank: that of a second object would never be whole.

        An object that is made anew takes the place of the one before.

        Raises:
            CheckpointError: another object of this process has saved since this one did.
        """
        in_use = context.current.part(_InUse)
        if in_use.saves is self:
            return
        if self._has_saved:
            raise CheckpointError(
                "two Checkpoints of this process save in turns: under edriver one object saves all. Put what both have "
                "into one state"
            )
        in_use.saves, self._has_saved = self, True

    def wait(self) -> None:
        """Wait until no checkpoint is being written to disk. A process that ends waits for it, too."""
        self._disk.wait()


def _dict_of(state: State | Callable[[], State]) -> State:
    """The state itself.

    Raises:
        TypeError: it is no dict.
    """
    found = state() if callable(state) and not isinstance(state, nn.Module) else state
    if not isinstance(found, MutableMapping):
        raise TypeError(
            f"the state is a {type(found).__name__}: give a dict that has a name for each thing to save, such as "
            "{'model': model, 'optimizer': optimizer}"
        )
    return found


def _store() -> Any:
    """The round's store, with keys of this object's own: the ranks make theirs in the same order."""
    member = context.current.restart_member
    assert member is not None, "it has a place"
    number = context.current.counters.next("checkpoints", member.assignment.round_id)
    return dist.PrefixStore(f"checkpoints-{number}", member.store())  # type: ignore[attr-defined]  # documented
