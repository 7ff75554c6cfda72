"""`python -m edriver.worker.checkpoints.memory.to_disk`: writes one host's part of a checkpoint in memory to disk.

A checkpoint server starts it with the interpreter of the workers, and tells it its job in a line of JSON. It answers in
lines of JSON: the name of the folder, once that is there; that its part is written; that the checkpoint is complete; or
what has gone wrong. It ends when its standard input does.

The hosts share the folder: in it the leading host leaves the metadata for the others, and each rank's part leaves what
the metadata is to say of it (parts.py).
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata
from torch.distributed.checkpoint.planner import TensorWriteData, WriteItem, WriteItemType
from torch.distributed.checkpoint.storage import WriteResult

from edriver.checkpoint_folder.folder import CheckpointFolder
from edriver.checkpoint_folder.manifest import FileRecord, Manifest
from edriver.common.release import VERSION
from edriver.model.ids import RoundId
from edriver.model.memory_checkpoint import CheckpointId
from edriver.worker.checkpoints import files
from edriver.worker.checkpoints.memory.mapped import MappedFile
from edriver.worker.checkpoints.memory.parts_metadata import metadata_in
from edriver.worker.checkpoints.memory.server_link import CheckpointMemory, ServerLink, ShardName
from edriver.worker.checkpoints.memory.shard import HEADER_BYTES, StoredAt, Table, table_place
from edriver.worker.checkpoints.owned_folder import OwnedFolder
from edriver.worker.checkpoints.parts import PART, PartedFiles

METADATA: Final = "edriver-metadata"
"""Where the leading host leaves the metadata that was in memory."""


class WriteError(Exception):
    """A checkpoint cannot be written: the message says why."""


@dataclass(frozen=True, slots=True)
class WriteJob:
    """What is to be written.

    Attributes:
        socket: of this host's checkpoint server.
        checkpoint: the checkpoint,
        layout: see Shard.
        ranks: whose shards.
        location: the folder of checkpoints.
        keep: the number of complete ones that stay there.
        name: of this one's folder, which the leading host begins.
        unfinished: the name of one that this host has begun before and not completed; may be empty.
    """

    socket: str
    checkpoint: CheckpointId
    layout: bytes
    ranks: tuple[int, ...]
    location: str
    keep: int
    name: str
    unfinished: str

    @property
    def leads(self) -> bool:
        """Whether this is the leading host, that of rank 0's shard."""
        return 0 in self.ranks

    @staticmethod
    def of(line: str) -> WriteJob:
        """The job that a checkpoint server has sent."""
        found = json.loads(line)
        return WriteJob(
            found["socket"],
            CheckpointId(RoundId(*found["round_id"]), found["step"], found["size"]),
            bytes.fromhex(found["layout"]),
            tuple(found["ranks"]),
            found["location"],
            found["keep"],
            found["name"],
            found["unfinished"],
        )


class _Shard:
    """A shard, mapped out of the checkpoint server's memory.

    Raises:
        WriteError: this host does not have it.
    """

    def __init__(self, memory: CheckpointMemory, job: WriteJob, rank: int) -> None:
        path = memory.open(ShardName(job.checkpoint, rank, job.layout))
        if path is None:
            raise WriteError(f"this host does not have the part of rank {rank} any more")
        self._file = MappedFile(path, writable=False)
        self._table = Table.of(self._file.read(*table_place(self._file.read(0, HEADER_BYTES))))

    def metadata(self) -> bytes:
        """The checkpoint's metadata, pickled."""
        if self._table.metadata is None:
            raise WriteError("the shard of rank 0 has no metadata")
        return self._file.read(*self._table.metadata)

    def value(self, entry: Any, item: WriteItem, place: StoredAt) -> Any:
        """What an item stands for, as DCP's writer takes it."""
        if item.tensor_data is None:
            return io.BytesIO(self._file.read(*self._table.values[item.index.fqn]))
        return self._file.tensor(place.at, item.tensor_data.chunk.sizes, entry.properties.dtype)


class _ShardPlanner(DefaultSavePlanner):
    """Gives DCP's writer what a shard holds."""

    def __init__(self, shard: _Shard, metadata: Metadata) -> None:
        super().__init__()
        self._shard = shard
        self._read_from = metadata

    def resolve_data(self, write_item: WriteItem) -> Any:
        entry = self._read_from.state_dict_metadata[write_item.index.fqn]
        return self._shard.value(entry, write_item, self._read_from.storage_data[write_item.index])


class CheckpointFiles:
    """The files of one checkpoint, which several hosts write together.

    Args:
        folder: where,
        name: and the name of the checkpoint's own folder.
    """

    def __init__(self, folder: CheckpointFolder, name: str) -> None:
        self._files = PartedFiles(folder, name)

    def begin(self, metadata: bytes) -> None:
        """Begin the checkpoint, on the leading host."""
        self._files.begin(METADATA, metadata)

    def metadata(self, place: str) -> Metadata:
        """What `begin` was given.

        Args:
            place: of the checkpoint, as from CheckpointFolder.own.
        """
        return metadata_in(self._files.get(place, METADATA))

    def write(self, rank: int, shard: _Shard, metadata: Metadata) -> None:
        """Write a rank's part."""
        written = self._files.write(rank, list(write_items(rank, metadata)), _ShardPlanner(shard, metadata))
        self._files.put_part(rank, written)

    def complete(self, place: str, size: int, metadata: Metadata) -> dict[str, FileRecord]:
        """Write the metadata, once the parts of all ranks are there; returns all files.

        Args:
            place: of the checkpoint, as from CheckpointFolder.own.
            size: the number of ranks.
            metadata: see `metadata`.
        """
        parts: list[tuple[list[WriteResult], dict[str, FileRecord]]] = self._files.get_parts(place, size)
        records = self._files.finish(metadata, [results for results, _ in parts])
        for _, more in parts:
            records.update(more)
        self._files.remove((METADATA, *(f"{PART}{rank}" for rank in range(size))))
        return records


def write_items(rank: int, metadata: Metadata) -> Iterator[WriteItem]:
    """What a rank's shard has, as a save plan names it."""
    chunks: dict[str, dict[Any, Any]] = {}
    for index, place in metadata.storage_data.items():
        if place.rank != rank:
            continue
        entry = metadata.state_dict_metadata[index.fqn]
        if not isinstance(entry, TensorStorageMetadata):
            yield WriteItem(index, WriteItemType.BYTE_IO)
            continue
        if index.fqn not in chunks:
            chunks[index.fqn] = {chunk.offsets: chunk for chunk in entry.chunks}
        chunk = chunks[index.fqn][index.offset]
        yield WriteItem(index, WriteItemType.SHARD, tensor_data=TensorWriteData(chunk, entry.properties, entry.size))


class Write:
    """Writes the part of this host; on the leading host it completes the checkpoint.

    Args:
        job: what.
        memory: that of this host.
        say: takes how far it is.
        sealed: returns once the parts of all hosts are written.
    """

    def __init__(
        self,
        job: WriteJob,
        memory: CheckpointMemory,
        say: Callable[[dict[str, Any]], None],
        sealed: Callable[[], object],
    ) -> None:
        self._job = job
        self._memory = memory
        self._say = say
        self._sealed = sealed
        self._owned = OwnedFolder(job.location, job.keep)
        self._folder, self._ownership = self._owned.folder, self._owned.ownership
        self._begun = ""

    def run(self) -> None:
        """Do it.

        Raises:
            Exception: it cannot be done.
        """
        job, memory = self._job, self._memory
        name = self._begin() if job.leads else job.name
        written = CheckpointFiles(self._folder, name)
        if job.leads:
            written.begin(_Shard(memory, job, 0).metadata())
            self._say({"name": name})
        with self._own(name) as place:
            metadata = written.metadata(place)
        for rank in job.ranks:
            written.write(rank, _Shard(memory, job, rank), metadata)
        self._say({"written": True})
        if not job.leads:
            return
        self._sealed()
        with self._own(name) as place:
            records = written.complete(place, job.checkpoint.size, metadata)
        self._seal(name, records, metadata)
        self._begun = ""
        self._say({"sealed": True})  # the last word: this process is not waited for any more

    def give_up(self) -> None:
        """Remove what was begun here and is not complete: it may be what fills the disk."""
        if self._begun:
            self._owned.remove(self._begun)

    def _begin(self) -> str:
        self._ownership.look()
        if self._job.unfinished:
            self._owned.remove(self._job.unfinished)
        self._begun = self._folder.begin()
        return self._begun

    def _seal(self, name: str, records: dict[str, FileRecord], metadata: Metadata) -> None:
        entries = {key: files.manifest_entry(stored) for key, stored in metadata.state_dict_metadata.items()}
        step, size = self._job.checkpoint.step, self._job.checkpoint.size
        run_id = os.environ.get("EDRIVER_RUN_ID", "")
        manifest = Manifest(step, "", run_id, time.time(), size, VERSION, files.TORCH_VERSION, records, entries)
        self._owned.seal(name, manifest, self._ownership.look)

    @contextlib.contextmanager
    def _own(self, name: str) -> Iterator[str]:
        """See CheckpointFolder.own.

        Raises:
            WriteError: it is not there: it may be another host's.
        """
        try:
            with self._folder.own(name) as place:
                yield place
        except FileNotFoundError as error:
            missing = error.filename or self._folder.place(name)
            raise WriteError(f"{missing} is not there on this host: all hosts must share the folder") from None


def main() -> int:
    """Do the job on standard input; returns the exit code."""
    for number in (signal.SIGINT, signal.SIGTERM):  # as its server does; what a library starts here ends by them
        signal.signal(number, lambda *_: None)
    output = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # libraries print what they like
    sealed = threading.Event()

    def say(what: dict[str, Any]) -> None:
        output.write(json.dumps(what) + "\n")
        output.flush()

    def listen() -> None:
        for _ in sys.stdin:
            sealed.set()
        writing.give_up()  # the server has ended, or does not want it any more
        os._exit(1)

    job = WriteJob.of(sys.stdin.readline())
    writing = Write(job, ServerLink(job.socket, None), say, sealed.wait)
    threading.Thread(target=listen, daemon=True).start()
    try:
        writing.run()
    except Exception as error:  # noqa: BLE001  of a library, for any storage
        say({"trouble": f"{job.location}: {str(error) or type(error).__name__}"})
        writing.give_up()
        os._exit(1)
    os._exit(0)  # no thread of a library's keeps it


if __name__ == "__main__":
    sys.exit(main())
