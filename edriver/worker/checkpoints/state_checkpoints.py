"""The checkpoints of one state: rank 0 writes them in a separate thread, one at a time.

It writes from the copy that a commit has made. That copy's buffers are lent to the thread, and the next commit goes
into a second set (copies/snapshot.py).
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from edriver.checkpoint_folder.folder import Found
from edriver.checkpoint_folder.manifest import Manifest
from edriver.checkpoint_folder.ownership import FolderInUseError, RoundOverError
from edriver.common.release import VERSION
from edriver.model.ids import RoundId
from edriver.worker.checkpoints import files
from edriver.worker.checkpoints.contents import OUTLINE, filled, outline
from edriver.worker.checkpoints.owned_folder import OwnedFolder, text_of
from edriver.worker.errors import CheckpointError
from edriver.worker.reports import checkpoints as written

logger = logging.getLogger("edriver.worker")

Spawn = Callable[[Callable[[], None]], None]
"""Runs something beside its caller."""


def in_a_thread(job: Callable[[], None]) -> None:
    """Run it in a thread, which the process waits for before it ends."""
    threading.Thread(target=job, name="edriver-checkpoint").start()


@dataclass(frozen=True, slots=True)
class TrainingPosition:
    """Where training is: its round, and see the same fields of Manifest."""

    round_id: RoundId
    steps: int
    version: str
    run_id: str
    size: int


@dataclass(frozen=True, slots=True)
class Contents:
    """What a checkpoint is to hold. Nothing in it may change until it is written.

    Attributes:
        readable: for scripts without edriver: nested dicts of tensors in host memory and of plain values.
        tree: the state's own tree.
        random: the states of the random number generators.
    """

    readable: dict[str, Any]
    tree: dict[str, Any]
    random: dict[str, Any]


class StateCheckpoints:
    """Writes and loads the checkpoints of an edriver.State, in a folder which one live run owns.

    Args:
        location: a path or a URL.
        keep: the number of complete checkpoints to keep.
        spawn: runs the function that writes.
        clock: seconds since the epoch.

    Raises:
        ValueError: keep is less than 1, or fsspec does not support the URL.
        ImportError: a package that fsspec needs for the URL is not installed.
    """

    def __init__(
        self, location: str, keep: int, spawn: Spawn = in_a_thread, clock: Callable[[], float] = time.time
    ) -> None:
        self._owned = OwnedFolder(location, keep)
        self._folder, self._ownership = self._owned.folder, self._owned.ownership
        self._spawn = spawn
        self._clock = clock
        self._idle = threading.Event()
        self._idle.set()

    @property
    def busy(self) -> bool:
        """Whether one is being written."""
        return not self._idle.is_set()

    def wait(self) -> None:
        """Wait until none is being written."""
        self._idle.wait()

    def look(self) -> None:
        """See that no other run that lives owns the folder.

        Raises:
            CheckpointError: one does: names it.
        """
        with _refusal_raised():
            self._ownership.look()

    def own(self, round_id: RoundId, wait: bool) -> None:
        """Own the folder from now on, as rank 0 of this round.

        Args:
            round_id: the round.
            wait: until it is owned: no worker of this run may own it yet. Else it is claimed beside the caller.

        Raises:
            CheckpointError: another run that lives owns it: names that.
        """
        if not wait:
            self._ownership.claim_soon(round_id)
            return
        with _refusal_raised():
            try:
                self._ownership.claim(round_id)
            except (FolderInUseError, RoundOverError):
                raise
            except Exception as error:  # noqa: BLE001  of a library, for any storage
                self._owned.say_unwritable(error)  # now: the first checkpoint is due minutes later

    def skipped(self) -> None:
        """One is due while the last is still being written."""
        self._owned.say_busy("every")

    def write(
        self, place: TrainingPosition, contents: Contents, ready: Callable[[], None], done: Callable[[], None]
    ) -> None:
        """Start to write a checkpoint; a failure to write is logged once and not raised.

        Args:
            place: the position of the training.
            contents: the contents to write.
            ready: returns when the contents are complete; called in the writing thread.
            done: called in the writing thread when the contents are no longer needed.
        """
        assert not self.busy, "one at a time"
        self._idle.clear()

        def job() -> None:
            try:
                ready()
                self._ownership.claim(place.round_id)
                self._write(place, contents)
            except RoundOverError as error:
                logger.info("no checkpoint of step %d is written: %s", place.steps, error)
            except Exception as error:  # noqa: BLE001  of a library, for any storage
                written.failures += 1
                self._owned.say_unwritable(error)
            finally:
                done()
                self._idle.set()

        self._spawn(job)

    def newest_steps(self) -> int:
        """The steps of the newest complete checkpoint; 0 without one, or if the folder is unreadable (logged)."""
        try:
            newest = self._folder.newest()
        except Exception as error:  # noqa: BLE001
            logger.warning("the checkpoints in %s cannot be read: %s", self._folder.location, text_of(error))
            return 0
        return 0 if newest is None else newest.steps

    def load(self) -> tuple[Manifest, dict[str, Any], dict[str, Any]]:
        """The newest whole checkpoint that can be loaded: its manifest, the state's tree, and the random states.

        Raises:
            CheckpointError: none can be loaded.
        """
        loaded = self._owned.first_loadable(self._load)
        if loaded is None:
            raise CheckpointError(f"no checkpoint in {self._folder.location} can be loaded: there is no whole one")
        return loaded

    def _write(self, place: TrainingPosition, contents: Contents) -> None:
        began, name = time.perf_counter(), self._folder.begin()
        try:
            key_of: dict[int, str] = {}
            for key, value in files.flattened(contents.readable).items():
                key_of.setdefault(id(value), key)
            stored = {**contents.readable, OUTLINE: (outline(contents.tree, key_of), contents.random)}
            records, entries = files.write(self._folder, name, stored)
            manifest = Manifest(
                place.steps,
                place.version,
                place.run_id,
                self._clock(),
                place.size,
                VERSION,
                files.TORCH_VERSION,
                records,
                entries,
            )
            self._owned.seal(name, manifest, lambda: self._ownership.check(place.round_id))
        except Exception:
            self._owned.remove(name)
            raise
        written.add(place.steps, sum(record.nbytes for record in records.values()), time.perf_counter() - began)

    def _load(self, found: Found) -> tuple[Manifest, dict[str, Any], dict[str, Any]]:
        assert found.manifest is not None, "it is whole"
        with self._folder.own(found.name) as place:
            self._owned.check_content(found)
            stored = files.read(self._folder, place, found.manifest.entries, (OUTLINE,))
        tree, random = stored[OUTLINE]
        logger.info("loaded %s, of step %d", self._folder.place(found.name), found.steps)
        return found.manifest, filled(tree, stored), random


@contextmanager
def _refusal_raised() -> Iterator[None]:
    """Raise a CheckpointError if another run owns the folder. What else goes wrong is said where one is written."""
    try:
        yield
    except FolderInUseError as error:
        raise CheckpointError(str(error)) from None
    except Exception:
        logger.debug("the owner of the checkpoint folder cannot be determined", exc_info=True)
