"""The checkpoints of one state: rank 0 writes them in a separate thread, one at a time.

It writes from the copy that a commit has made. That copy's buffers are lent to the thread, and the next commit goes
into a second set (copies/snapshot.py).

Of a sharded state one worker of each position writes a part, all from commits of the same boundary. The first one, rank
0, begins the checkpoint and says in its folder of which boundary it is; the others look for that. It completes it once
all parts are there. They meet in the folder alone: so the round may end meanwhile, and nobody waits for a peer in a
collective. Where a part does not come, as its worker has died, the checkpoint is given up: at once if the driver has
named that worker, and else after a while.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.planner import SavePlan
from torch.distributed.checkpoint.storage import WriteResult

from edriver.checkpoint_folder.folder import Found
from edriver.checkpoint_folder.manifest import CheckpointEntry, FileRecord, Manifest
from edriver.checkpoint_folder.ownership import FolderInUseError, RoundOverError
from edriver.common.release import VERSION
from edriver.model.ids import RoundId
from edriver.worker.checkpoints import files
from edriver.worker.checkpoints.contents import OUTLINE, filled, outline
from edriver.worker.checkpoints.owned_folder import OwnedFolder, error_text
from edriver.worker.checkpoints.parts import PART, PartedFiles
from edriver.worker.checkpoints.shard_planners import PartPlanner, ShardPlace
from edriver.worker.errors import CheckpointError
from edriver.worker.reports import checkpoints as written

logger = logging.getLogger("edriver.worker")

T = TypeVar("T")

PATIENCE: Final = 60.0
"""Seconds for which those that write parts of a checkpoint wait for one another, at least: as long as a network file
system may take to show one machine what another has written."""

LAST_PATIENCE: Final = 10.0
"""Seconds for which they do once the script has ended: where a position has lost all its workers, the others leave, and
the run goes on when they have. Not in the last checkpoint of a run that has lost its driver: nothing goes on then, and
each host finds that out by itself."""

LOOK_PERIOD: Final = 0.1
"""Seconds between two looks into the folder."""

BEGUN: Final = "edriver-begun"
"""Where rank 0 says of which boundary a checkpoint is, while it is being written in parts."""

Spawn = Callable[[Callable[[], None]], None]
"""Runs something beside its caller."""


def in_a_thread(job: Callable[[], None]) -> None:
    """Run it in a thread, which the process waits for before it ends."""
    threading.Thread(target=job, name="edriver-checkpoint").start()


@dataclass(frozen=True, slots=True)
class TrainingPosition:
    """Where training is: its round, and see the same fields of Manifest.

    Attributes:
        part: which part of a checkpoint this worker writes.
        writers: the ranks that write the parts, in their order; the first one is rank 0.
        ends_run: whether the run ends here, so nothing waits for the process that writes.
        request: the number of the last request for a checkpoint before it, which it meets; 0: there was none.
    """

    round_id: RoundId
    steps: int
    version: str
    run_id: str
    size: int
    part: int = 0
    writers: tuple[int, ...] = (0,)
    ends_run: bool = False
    request: int = 0

    @property
    def parts(self) -> int:
        """The number of parts."""
        return len(self.writers)

    @property
    def text(self) -> str:
        """Names the boundary, among all of all runs."""
        return f"run {self.run_id}, boundary {self.version}, step {self.steps}, in {self.parts} parts"


@dataclass(frozen=True, slots=True)
class Contents:
    """What a checkpoint is to hold. Nothing in it may change until it is written.

    Attributes:
        readable: for scripts without edriver: nested dicts of tensors in host memory and of plain values.
        tree: the state's own tree.
        random: the states of the random number generators.
        shards: the places of those tensors of which this worker has a shard, by their ids.
    """

    readable: dict[str, Any]
    tree: dict[str, Any]
    random: dict[str, Any]
    shards: Mapping[int, ShardPlace] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class WrittenPart:
    """What was written of a part.

    Attributes:
        plan: what it has,
        results: and what DCP's writer says of that.
        records: its files.
    """

    plan: SavePlan
    results: list[WriteResult]
    records: dict[str, FileRecord]


class StateCheckpoints:
    """Writes and loads the checkpoints of an edriver.State, in a folder which one live run owns.

    Args:
        location: a path or a URL.
        keep: the number of complete checkpoints to keep.
        spawn: runs the function that writes.
        clock: seconds since the epoch.
        patience: see PATIENCE.
        lost: whether the process of a rank of a round has ended; it may be asked from any thread.
        on_disk: called in the writing thread with the request that a checkpoint meets, once that is whole.

    Raises:
        ValueError: keep is less than 1, or fsspec does not support the URL.
        ImportError: a package that fsspec needs for the URL is not installed.
    """

    def __init__(
        self,
        location: str,
        keep: int,
        spawn: Spawn = in_a_thread,
        clock: Callable[[], float] = time.time,
        *,
        patience: float = PATIENCE,
        lost: Callable[[RoundId, int], bool] = lambda _round_id, _rank: False,
        on_disk: Callable[[int], None] = lambda _request: None,
    ) -> None:
        self._owned = OwnedFolder(location, keep)
        self._folder, self._ownership = self._owned.folder, self._owned.ownership
        self._spawn = spawn
        self._clock = clock
        self._patience = patience
        self._lost = lost
        self._on_disk = on_disk
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
                if place.part == 0:
                    self._ownership.claim(place.round_id)
                if place.parts == 1:
                    self._write(place, contents)
                else:
                    self._write_part(place, contents)
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
            logger.warning("the checkpoints in %s cannot be read: %s", self._folder.location, error_text(error))
            return 0
        return 0 if newest is None else newest.steps

    def choose(self) -> str:
        """The name of the newest whole checkpoint whose content is what it was when it was written.

        Raises:
            CheckpointError: there is none.
        """

        def check(found: Found) -> str:
            with self._folder.own(found.name):
                self._owned.check_content(found)
            return found.name

        return self._there_is_one(self._owned.first_loadable(check))

    def load(
        self, shards: Callable[[dict[str, Any]], Mapping[int, ShardPlace]], name: str = ""
    ) -> tuple[Manifest, dict[str, Any], dict[str, Any]]:
        """Load a checkpoint: returns its manifest, the state's tree, and the random states.

        Args:
            shards: finds the places of those tensors of a tree of which this worker takes a shard, by their ids; the
                tensors that it is given have shapes and no elements.
            name: of the checkpoint, which `choose` has returned here or on another worker; empty: the newest whole one
                that can be loaded.

        Raises:
            ValueError: `shards` has raised it, for the named one.
            CheckpointError: it cannot be loaded, or none can.
        """
        if not name:
            return self._there_is_one(self._owned.first_loadable(lambda found: self._load(found, shards, check=True)))
        try:
            found = next((found for found in self._folder.found() if found.name == name and found.whole), None)
            if found is None:
                raise CheckpointError("it is not there on this host: all hosts must share the folder")
            return self._load(found, shards, check=False)
        except ValueError:
            raise
        except Exception as error:
            raise CheckpointError(f"{name} in {self._folder.location} cannot be loaded: {error_text(error)}") from error

    def _there_is_one(self, loaded: T | None) -> T:
        if loaded is None:
            raise CheckpointError(f"no checkpoint in {self._folder.location} can be loaded: there is no whole one")
        return loaded

    def _write(self, place: TrainingPosition, contents: Contents) -> None:
        began, name = time.perf_counter(), self._folder.begin()
        try:
            stored = {
                **contents.readable,
                OUTLINE: (outline(contents.tree, _keys_by_tensor_id(contents)), contents.random),
            }
            records, entries = files.write(self._folder, name, stored)
            self._seal(place, name, records, entries)
        except Exception:
            self._owned.remove(name)
            raise
        written.add(place.steps, sum(record.nbytes for record in records.values()), time.perf_counter() - began)
        self._on_disk(place.request)

    def _seal(
        self,
        place: TrainingPosition,
        name: str,
        records: Mapping[str, FileRecord],
        entries: Mapping[str, CheckpointEntry],
    ) -> None:
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

    # ---- in parts

    def _write_part(self, place: TrainingPosition, contents: Contents) -> None:
        began = time.perf_counter()
        if place.part:
            name = self._begun(place)
            parted = PartedFiles(self._folder, name)
            try:
                parted.put_part(place.part, self._part(parted, place, contents))
            except Exception as error:
                parted.put_part(place.part, error_text(error))  # so rank 0 stops waiting for it
                raise
            return
        name = self._folder.begin()
        try:
            parted = PartedFiles(self._folder, name)
            parted.begin(BEGUN, place.text.encode())
            parted.put_part(0, self._part(parted, place, contents))
            records, entries = self._complete(parted, place, name, time.perf_counter() - began)
            self._seal(place, name, records, entries)
        except Exception:
            self._owned.remove(name)
            raise
        written.add(place.steps, sum(record.nbytes for record in records.values()), time.perf_counter() - began)
        self._on_disk(place.request)

    def _part(self, parted: PartedFiles, place: TrainingPosition, contents: Contents) -> WrittenPart:
        planner = planned(contents, place.part)
        plan = planner.create_local_plan()
        results, records = parted.write(place.part, plan.items, planner)
        return WrittenPart(plan, results, records)

    def _begun(self, place: TrainingPosition) -> str:
        """Wait until rank 0 has begun the checkpoint; returns its name."""

        def look() -> str | None:
            lost = self._lost(place.round_id, place.writers[0])
            for name in reversed(self._folder.unfinished()):
                if BEGUN in self._folder.files_of(name) and self._folder.read_note(f"{name}/{BEGUN}") == wanted:
                    return name
            if lost:
                raise CheckpointError("rank 0, which was to begin it, is lost")
            return None

        wanted = place.text.encode()
        return self._awaited(look, place, self._patience, "rank 0 has not begun it in time")

    def _complete(
        self, parted: PartedFiles, place: TrainingPosition, name: str, seconds: float
    ) -> tuple[dict[str, FileRecord], dict[str, CheckpointEntry]]:
        """Wait for all parts, and write the metadata; returns all files and entries.

        Args:
            parted: the checkpoint's files.
            place: its position in training.
            name: its name.
            seconds: how long one part took: others are given some times as long.
        """
        notes = {f"{PART}{number}": rank for number, rank in enumerate(place.writers)}

        def look() -> bool | None:
            lost = [rank for rank in place.writers if self._lost(place.round_id, rank)]  # so they write no more
            awaited = notes.keys() - set(self._folder.files_of(name))
            if gone := [rank for note, rank in notes.items() if note in awaited and rank in lost]:
                raise CheckpointError(f"rank {gone[0]}, which was to write a part of it, is lost")
            return not awaited or None

        self._awaited(look, place, max(self._patience, 5 * seconds), "another worker has not written its part in time")
        with self._folder.own(name) as where:
            found: list[WrittenPart | str] = parted.get_parts(where, place.parts)
        parts = [part for part in found if isinstance(part, WrittenPart)]
        if troubles := [part for part in found if isinstance(part, str)]:
            raise CheckpointError(f"a part of it could not be written: {troubles[0]}")
        _, metadata = DefaultSavePlanner().create_global_plan([part.plan for part in parts])
        records = parted.finish(metadata, [part.results for part in parts])
        for part in parts:
            records.update(part.records)
        parted.remove((BEGUN, *notes))
        return records, {key: files.manifest_entry(stored) for key, stored in metadata.state_dict_metadata.items()}

    def _awaited(self, look: Callable[[], T | None], place: TrainingPosition, seconds: float, trouble: str) -> T:
        """Look until there is something; not for long where this process is about to end, unless the run is, too.

        Raises:
            CheckpointError: after so many seconds there is not.
        """
        deadline, ending = time.monotonic() + seconds, place.ends_run
        while (found := look()) is None:
            if not ending and not threading.main_thread().is_alive():
                deadline, ending = min(deadline, time.monotonic() + LAST_PATIENCE), True
            if time.monotonic() >= deadline:
                raise CheckpointError(trouble)
            time.sleep(LOOK_PERIOD)
        return found

    def _load(
        self, found: Found, shards: Callable[[dict[str, Any]], Mapping[int, ShardPlace]], check: bool
    ) -> tuple[Manifest, dict[str, Any], dict[str, Any]]:
        assert found.manifest is not None, "it is whole"
        entries = found.manifest.entries
        with self._folder.own(found.name) as place:
            if check:
                self._owned.check_content(found)
            tree, random = files.read(self._folder, place, {}, (OUTLINE,), {})[OUTLINE]
            blank = files.blank(entries)
            key_of = {id(tensor): key for key, tensor in blank.items()}
            places = {key_of[of]: shard for of, shard in shards(filled(tree, blank)).items()}
            stored = files.read(self._folder, place, entries, (), places)
        logger.info("loaded %s, of step %d", self._folder.place(found.name), found.steps)
        return found.manifest, filled(tree, stored), random


def planned(contents: Contents, part: int) -> PartPlanner:
    """The planner of a part of a checkpoint with these contents."""
    planner = PartPlanner(contents.shards, part)
    stored = contents.readable
    if part == 0:
        stored = {**stored, OUTLINE: (outline(contents.tree, _keys_by_tensor_id(contents)), contents.random)}
    planner.set_up_planner(stored, is_coordinator=part == 0)
    return planner


def _keys_by_tensor_id(contents: Contents) -> dict[int, str]:
    """The keys under which tensors are stored, by their ids."""
    key_of: dict[int, str] = {}
    for key, value in files.flattened(contents.readable).items():
        key_of.setdefault(id(value), key)
    return key_of


@contextmanager
def _refusal_raised() -> Iterator[None]:
    """Raise a CheckpointError if another run owns the folder. What else goes wrong is said where one is written."""
    try:
        yield
    except FolderInUseError as error:
        raise CheckpointError(str(error)) from None
    except Exception:
        logger.debug("the owner of the checkpoint folder cannot be determined", exc_info=True)
