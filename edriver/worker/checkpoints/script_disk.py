"""Writes the sharded state of a script to disk behind training: what `Checkpoints` does without edriver's agents.

All ranks write, by torch.distributed.checkpoint's async_save, into a folder of checkpoints (edriver/checkpoint_folder)
whose manifest rank 0 writes last. It runs over Gloo groups of its own. The ranks' clocks differ, so they look together
whether a checkpoint is due, at steps that rank 0 names: a look is one all-reduce, and looks are rare.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from datetime import timedelta
from typing import Any, Final

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.state_dict_saver import async_save

from edriver.checkpoint_folder.folder import Found
from edriver.checkpoint_folder.manifest import FileRecord, Manifest
from edriver.checkpoint_folder.ownership import FolderInUseError, RoundOverError
from edriver.common.release import VERSION
from edriver.model.ids import RoundId
from edriver.worker.checkpoints import files
from edriver.worker.checkpoints.memory.schedule import require_positive
from edriver.worker.checkpoints.memory.state_planners import CheckedLoadPlanner, StatePlanner
from edriver.worker.checkpoints.owned_folder import OwnedFolder, error_text
from edriver.worker.errors import CheckpointError

_ROUND: Final = RoundId(0, 1)
"""Of a process without a driver."""

_MAX_STEPS: Final = 1 << 40


class DiskSaver:
    """One rank's.

    Args:
        location: a path or a URL.
        every: each so many steps, or a time.
        keep: the number of complete checkpoints to keep.
        from_rank_zero: has rank 0 call a function, and returns what that returns on all ranks; by default through
            torch's default process group.
        owner: the round as whose rank 0 to own the folder from `newest` on; None: from the first save on.
        clock: seconds, monotonic.

    Raises:
        ValueError: keep or every is not positive, or fsspec does not support the URL.
        ImportError: a package that fsspec needs for the URL is not installed.
    """

    def __init__(
        self,
        location: str,
        every: int | timedelta,
        keep: int,
        from_rank_zero: Callable[[Callable[[], Any]], Any] | None = None,
        owner: RoundId | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        require_positive(every)
        self._owned = OwnedFolder(location, keep)
        self._folder, self._ownership = self._owned.folder, self._owned.ownership
        self._every = every
        self._from_rank_zero = from_rank_zero or self._broadcast
        self._owner = owner
        self._clock = clock
        self._groups: tuple[Any, Any] | None = None
        self._next_look: int | None = None
        self._looked: tuple[int, float] = (0, 0.0)
        self._saved_at = clock()
        self._writing: threading.Thread | None = None

    # ---- which steps ----------------------------------------------------------------------------------------------

    def due(self, step: int) -> bool:
        """Whether all ranks save this step now. Ask for each step that the script offers, on all ranks."""
        if self._next_look is None:
            self._next_look, self._looked = self._first_look(step), (step, self._clock())
        if step < self._next_look:
            return False
        writing = self._writing is not None and self._writing.is_alive()
        due, next_look = self._judged(step)
        self._looked = (step, self._clock())
        busy, agreed, self._next_look = self._agreed([int(writing), int(due), next_look])
        if agreed and busy:
            self._owned.say_busy("every_disk")
        if agreed:
            self._saved_at = self._clock()
        return bool(agreed) and not busy

    def _first_look(self, step: int) -> int:
        if isinstance(self._every, int):
            return step if step > 0 and step % self._every == 0 else (step // self._every + 1) * self._every
        return step + 1

    def _judged(self, step: int) -> tuple[bool, int]:
        """On rank 0: whether a checkpoint is due, and at which step to look again."""
        if isinstance(self._every, int):
            return True, (step // self._every + 1) * self._every
        last, at = self._looked
        now, made = self._clock(), step - last
        left = self._saved_at + self._every.total_seconds() - now
        due = left <= 0
        left = self._every.total_seconds() if due else left
        # Doubled at most, as steps may become slower; nine tenths, as they may become faster.
        steps = 2 * made if now <= at else min(2.0 * max(1, made), 0.9 * left * made / (now - at))
        return due, step + max(1, min(_MAX_STEPS, int(steps)))

    def _agreed(self, mine: list[int]) -> list[int]:
        if not dist.is_initialized():
            return mine
        if dist.get_rank() != 0:
            mine[1:] = [0, 0]
        tensor = torch.tensor(mine, dtype=torch.int64, device="cpu")
        dist.all_reduce(tensor, dist.ReduceOp.MAX, group=self._own_groups()[0])
        return [int(value) for value in tensor.tolist()]

    # ---- saving ---------------------------------------------------------------------------------------------------

    def save(self, step: int, state: Mapping[str, Any]) -> bool:
        """Begin to write; returns when the state has been copied. Failures are said once each.

        Args:
            step: the step.
            state: as torch.distributed.checkpoint takes it.
        """
        name = self._from_rank_zero(self._begun)
        if name is None:
            return False
        plain: Any = None
        if self._folder.is_local:
            plain = FileSystemWriter(self._folder.place(name), per_thread_copy_ahead=0)
        else:
            from edriver.worker.backend import fsspec_files

            plain = fsspec_files.writer(self._folder.place(name))
        written = plain.fs = files.DigestedFiles(plain.fs, local=self._folder.is_local)
        group = self._own_groups()[1] if dist.is_initialized() else None
        with files.in_one_process():
            future = async_save(
                dict(state), storage_writer=plain, planner=StatePlanner(), process_group=group, no_dist=group is None
            )

        def finish() -> None:
            try:
                with files.in_one_process():
                    metadata: Any = future.result()  # type: ignore[union-attr]  # of the default stager
                records = self._gathered(written.records, group)
                if self._is_first():
                    self._seal(name, step, records, metadata)
            except Exception as error:  # noqa: BLE001  of a library, for any storage
                self._owned.say_unwritable(error)
                if self._is_first():
                    self._owned.remove(name)

        self._writing = threading.Thread(target=finish, name="edriver-checkpoint")
        self._writing.start()
        return True

    def wait(self) -> None:
        """Wait until nothing is being written."""
        if self._writing is not None:
            self._writing.join()

    def _begun(self) -> str | None:
        try:
            self._ownership.claim(_ROUND)
            return self._folder.begin()
        except Exception as error:  # noqa: BLE001
            self._owned.say_unwritable(error)
            return None

    def _seal(self, name: str, step: int, records: dict[str, FileRecord], metadata: Any) -> None:
        entries = {key: files.manifest_entry(stored) for key, stored in metadata.state_dict_metadata.items()}
        size = dist.get_world_size() if dist.is_initialized() else 1
        run = os.environ.get("EDRIVER_RUN_ID", "")
        manifest = Manifest(step, "", run, time.time(), size, VERSION, files.TORCH_VERSION, records, entries)
        self._owned.seal(name, manifest, lambda: self._ownership.check(_ROUND))

    # ---- loading --------------------------------------------------------------------------------------------------

    def newest(self) -> tuple[str, int] | None:
        """The name and the step of the newest whole checkpoint, the same on all ranks; None: there is none.

        Raises:
            CheckpointError: another run that lives owns the folder, or none of those that are there can be loaded.
        """
        found: tuple[str, int] | CheckpointError | None = self._from_rank_zero(self._found)
        if isinstance(found, CheckpointError):
            raise found
        return found

    def load(self, name: str, target_of: Callable[[Metadata], dict[str, Any]]) -> dict[str, Any]:
        """Load a checkpoint.

        Args:
            name: its folder's.
            target_of: makes the state to load into, as DCP takes it, for the checkpoint's metadata.

        Returns:
            That state.

        Raises:
            CheckpointError: it cannot be read, or does not fit the state.
        """
        planner = CheckedLoadPlanner()
        with contextlib.ExitStack() as opened:
            with self._readable(name):
                place = opened.enter_context(self._folder.own(name))
                reader: Any
                if self._folder.is_local:
                    reader = FileSystemReader(place)
                else:
                    from edriver.worker.backend import fsspec_files

                    reader = fsspec_files.reader(place)
                metadata = reader.read_metadata()
            state = target_of(metadata)
            with self._readable(name):
                planner.set_up_planner(state, metadata, is_coordinator=self._is_first())
                reader.set_up_storage_reader(metadata, self._is_first())
                plan = planner.finish_plan(planner.create_global_plan([planner.create_local_plan()])[0])
                reader.read_data(plan, planner).wait()
        return state

    @contextlib.contextmanager
    def _readable(self, name: str) -> Iterator[None]:
        try:
            yield
        except CheckpointError:
            raise
        except Exception as error:
            raise CheckpointError(f"{self._folder.place(name)} cannot be loaded: {error}") from error

    def own(self) -> None:
        """On rank 0 of a round that goes on from memory: own the folder, beside training."""
        assert self._owner is not None, "others own it once they save"
        self._ownership.claim_soon(self._owner)

    def _found(self) -> tuple[str, int] | CheckpointError | None:
        """On rank 0: the newest checkpoint whose content is what its manifest says."""
        try:
            self._look()
            return self._owned.first_loadable(self._checked)
        except FolderInUseError as error:
            return CheckpointError(str(error).replace("checkpoint=", "Checkpoints"))
        except CheckpointError as error:
            return error
        except Exception as error:  # noqa: BLE001
            return CheckpointError(f"the checkpoints in {self._owned.location} cannot be read: {error_text(error)}")

    def _checked(self, found: Found) -> tuple[str, int]:
        self._owned.check_content(found)
        return found.name, found.steps

    def _look(self) -> None:
        if self._owner is not None:
            with contextlib.suppress(OSError, RoundOverError):  # what cannot be written to can be read
                self._ownership.claim(self._owner)
                return
        self._ownership.look()

    # ---- among the ranks ------------------------------------------------------------------------------------------

    def _own_groups(self) -> tuple[Any, Any]:
        """A group for looks, and one for writing, which goes on beside them."""
        if self._groups is None:
            self._groups = dist.new_group(backend="gloo"), dist.new_group(backend="gloo")
        return self._groups

    def _is_first(self) -> bool:
        return not dist.is_initialized() or dist.get_rank() == 0

    def _broadcast(self, ask: Callable[[], Any]) -> Any:
        found = [ask() if self._is_first() else None]
        if dist.is_initialized():
            dist.broadcast_object_list(found, src=0, group=self._own_groups()[0], device=torch.device("cpu"))
        return found[0]

    def _gathered(self, records: dict[str, FileRecord], group: Any) -> dict[str, FileRecord]:
        if group is None:
            return records
        found: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(found, records, group=group)
        return {name: record for each in found for name, record in each.items()}
