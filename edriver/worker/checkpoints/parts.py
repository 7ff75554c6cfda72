"""The files of a checkpoint that several processes write together, each a part of it, into a folder that they share.

The files are those of torch.distributed.checkpoint, written by its own writer, one part at a time. What the processes
have to tell one another lies in the folder as well, until the checkpoint is complete: what it was begun with, and what
was written of each part. These files are pickled as DCP's own are, and read only where no other account can have
written them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any, Final

from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner, WriteItem
from torch.distributed.checkpoint.storage import WriteResult

from edriver.checkpoint_folder.folder import CheckpointFolder
from edriver.checkpoint_folder.manifest import FileRecord
from edriver.worker.checkpoints import files, pickles

PART: Final = "edriver-part-"
"""Where a part leaves what was written of it."""

_TORN: Final = ".torn"
"""Ends the name of what is still being written."""


class PartedFiles:
    """The files of one checkpoint.

    Args:
        folder: where,
        name: and the name of the checkpoint's own folder.
    """

    def __init__(self, folder: CheckpointFolder, name: str) -> None:
        self._folder = folder
        self._name = name
        self._writer: Any
        if folder.is_local:
            self._writer = FileSystemWriter(folder.place(name), per_thread_copy_ahead=0)
        else:
            from edriver.worker.backend import fsspec_files

            self._writer = fsspec_files.writer(folder.place(name))
        self._plain = self._writer.fs
        self._digested = self._writer.fs = files.DigestedFiles(self._plain, local=folder.is_local)

    def begin(self, note: str, data: bytes) -> None:
        """Begin the checkpoint, and leave a note for the others; one process does that."""
        self._digested.mkdir(self._writer.path)
        self.put(note, data)

    def write(
        self, number: int, items: Sequence[WriteItem], planner: SavePlanner
    ) -> tuple[list[WriteResult], dict[str, FileRecord]]:
        """Write a part; returns what DCP's writer says of it, and its files.

        Args:
            number: of the part.
            items: what it has.
            planner: knows the values.
        """
        before = set(self._digested.records)
        plans = self._writer.prepare_global_plan([SavePlan([])] * number + [SavePlan(list(items))])  # it numbers them
        results = self._writer.write_data(plans[number], planner).wait() if items else []
        return results, {name: record for name, record in self._digested.records.items() if name not in before}

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> dict[str, FileRecord]:
        """Write the metadata, once all parts are there; returns its file.

        Args:
            metadata: without what the writer has to say of where things are.
            results: of all parts: see `write`.
        """
        self._digested.records.clear()
        with files.in_one_process():
            self._writer.finish(dataclasses.replace(metadata), results)
        return dict(self._digested.records)

    def put(self, note: str, data: bytes) -> None:
        """Leave a note for the others, who see all of it or nothing."""
        path = self._path(note)
        written = self._path(note + _TORN) if self._folder.is_local else path  # elsewhere it is there at once
        with self._digested.create_stream(written, "wb") as stream:
            stream.write(data)
        if written != path:
            self._plain.rename(written, path)

    def get(self, place: str, note: str) -> bytes:
        """Read a note.

        Args:
            place: of the checkpoint, as from CheckpointFolder.own.
            note: its name.
        """
        path = self._plain.concat_path(self._plain.init_path(place), note)
        with self._plain.create_stream(path, "rb") as stream:
            found: bytes = stream.read()
        return found

    def put_part(self, number: int, value: Any) -> None:
        """Leave what was written of a part."""
        self.put(f"{PART}{number}", pickles.packed(value))

    def get_parts(self, place: str, count: int) -> list[Any]:
        """What was left of each part.

        Args:
            place: see `get`.
            count: the number of parts.
        """
        return [pickles.unpacked(self.get(place, f"{PART}{number}")) for number in range(count)]

    def remove(self, notes: Iterable[str]) -> None:
        """Remove notes: the checkpoint is complete."""
        for note in notes:
            self._plain.rm_file(self._path(note))

    def _path(self, name: str) -> Any:
        return self._plain.concat_path(self._writer.path, name)
