"""The files of a checkpoint, written and read by torch.distributed.checkpoint.

One rank writes all, without the others: the state is the same on all of them, so there is nothing to gather, and no
collective that a lost peer could leave hanging in a thread beside the training loop. What is sharded is written in
parts, without a collective as well (parts.py).

So it is called with `no_dist`. `async_save` would copy the state once more, and gathers a plan over a group that lives
for one round.
"""

from __future__ import annotations

import hashlib
import io
import os
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final, cast

import torch
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.filesystem import FileSystemBase, FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

from edriver.checkpoint_folder.folder import CheckpointFolder
from edriver.checkpoint_folder.manifest import CheckpointEntry, FileRecord
from edriver.system.private_files import close_to_others
from edriver.worker.checkpoints.shard_planners import ShardLoadPlanner, ShardPlace

TORCH_VERSION: Final = str(torch.__version__)


class DigestedFiles(FileSystemBase):
    """Files whose digests are known once they are written.

    Args:
        files: what writes them.
        local: whether that is to this machine's file system: then no other account can write them.

    Attributes:
        records: what was written, by name.
    """

    def __init__(self, files: FileSystemBase, *, local: bool) -> None:
        self.records: dict[str, FileRecord] = {}
        self._files = files
        self._local = local

    @contextmanager
    def create_stream(self, path: str | os.PathLike[str], mode: str) -> Iterator[io.IOBase]:
        """Open a file."""
        with self._files.create_stream(path, mode) as stream:
            if self._local:
                close_to_others(stream.fileno())
            digested = _DigestedStream(stream)
            yield cast(io.IOBase, digested)
        self.records[os.path.basename(path)] = digested.record  # noqa: PTH119  it may be a URL

    def concat_path(self, path: str | os.PathLike[str], suffix: str) -> str | os.PathLike[str]:
        """A file in a folder."""
        return self._files.concat_path(path, suffix)

    def rename(self, path: str | os.PathLike[str], new_path: str | os.PathLike[str]) -> None:
        """Rename a file."""
        self._files.rename(path, new_path)
        self.records[os.path.basename(new_path)] = self.records.pop(os.path.basename(path))  # noqa: PTH119

    def init_path(self, path: str | os.PathLike[str]) -> str | os.PathLike[str]:
        """A path, in the form that the other calls take."""
        return self._files.init_path(path)

    def mkdir(self, path: str | os.PathLike[str]) -> None:
        """Make a folder."""
        self._files.mkdir(path)
        if self._local:
            folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            close_to_others(folder)
            os.close(folder)

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        """Do nothing: it is asked of classes that torch is to choose from."""
        del checkpoint_id
        return False

    def exists(self, path: str | os.PathLike[str]) -> bool:
        """Whether a file is there."""
        return self._files.exists(path)

    def rm_file(self, path: str | os.PathLike[str]) -> None:
        """Remove a file."""
        self._files.rm_file(path)


class _DigestedStream:
    """A file that is written from its beginning to its end."""

    def __init__(self, stream: io.IOBase) -> None:
        self._stream: Any = stream
        self._digest = hashlib.sha256()
        self._length = 0

    @property
    def record(self) -> FileRecord:
        return FileRecord(self._length, self._digest.hexdigest())

    def write(self, data: Any) -> int:
        self._digest.update(data)
        self._length += memoryview(data).nbytes
        self._stream.write(data)
        return memoryview(data).nbytes

    def tell(self) -> int:
        return self._length

    def flush(self) -> None:
        self._stream.flush()

    def fileno(self) -> int:
        self._stream.flush()  # torch 2.13 asks for it to call fsync, and has not flushed its last bytes by then
        number: int = self._stream.fileno()
        return number

    def close(self) -> None:
        self._stream.close()


def flattened(contents: dict[str, Any]) -> dict[str, Any]:
    """Contents by the keys under which torch.distributed.checkpoint stores them.

    Raises:
        ValueError: two have the same key.
    """
    planner = DefaultSavePlanner()
    planner.set_up_planner(contents, is_coordinator=True)
    return dict(planner.state_dict)


def write(
    folder: CheckpointFolder, name: str, contents: dict[str, Any]
) -> tuple[dict[str, FileRecord], dict[str, CheckpointEntry]]:
    """Write a checkpoint without its manifest; returns its files and its entries.

    Args:
        folder: where,
        name: and under which name, which must be new.
        contents: nested dicts of tensors in host memory and of objects that can be pickled.

    Raises:
        OSError: it cannot be written.
        Exception: a value cannot be pickled.
    """
    writer: FileSystemWriter
    if folder.is_local:
        writer = FileSystemWriter(folder.place(name), per_thread_copy_ahead=0)
    else:
        from edriver.worker.backend import fsspec_files

        writer = fsspec_files.writer(folder.place(name))
    files = DigestedFiles(writer.fs, local=folder.is_local)
    writer.fs = files  # type: ignore[assignment]  # as FsspecWriter does
    with in_one_process():
        metadata = save(contents, storage_writer=writer, planner=DefaultSavePlanner(), no_dist=True)
    return files.records, {key: manifest_entry(stored) for key, stored in metadata.state_dict_metadata.items()}


def read(
    folder: CheckpointFolder,
    place: str,
    entries: Mapping[str, CheckpointEntry],
    objects: tuple[str, ...],
    shards: Mapping[str, ShardPlace],
) -> dict[str, Any]:
    """The tensors of a checkpoint, in host memory, and some of its objects, by their keys.

    Args:
        folder: the checkpoint's folder.
        place: the location of the folder, as from `CheckpointFolder.own`: unpickling executes code in it.
        entries: the entries of the checkpoint.
        objects: the keys of entries that are not tensors, and are to be read.
        shards: what is to be read of tensors, by their keys; of others all is.

    Raises:
        OSError: the checkpoint cannot be read.
        Exception: an object cannot be unpickled, or the files are not those of these entries.
    """
    contents = {**empty(entries, shards), **dict.fromkeys(objects)}
    reader: FileSystemReader
    if folder.is_local:
        reader = FileSystemReader(place)
    else:
        from edriver.worker.backend import fsspec_files

        reader = fsspec_files.reader(place)
    with in_one_process():
        load(contents, storage_reader=reader, planner=ShardLoadPlanner(shards), no_dist=True)
    return contents


def empty(entries: Mapping[str, CheckpointEntry], shards: Mapping[str, ShardPlace]) -> dict[str, Any]:
    """Memory for what is to be read of a checkpoint's tensors; see `read`."""
    return {
        key: torch.empty(
            shards[key].sizes if key in shards else entry.shape, dtype=getattr(torch, entry.dtype), device="cpu"
        )
        for key, entry in entries.items()
        if entry.dtype
    }


def blank(entries: Mapping[str, CheckpointEntry]) -> dict[str, torch.Tensor]:
    """The tensors of a checkpoint without their elements, by their keys."""
    return {
        key: torch.empty(entry.shape, dtype=getattr(torch, entry.dtype), device="meta")
        for key, entry in entries.items()
        if entry.dtype
    }


def manifest_entry(stored: Any) -> CheckpointEntry:
    """What a manifest says of an entry of DCP's metadata."""
    if not isinstance(stored, TensorStorageMetadata):
        return CheckpointEntry("", (), 0)
    dtype = stored.properties.dtype
    return CheckpointEntry(str(dtype).removeprefix("torch."), tuple(stored.size), stored.size.numel() * dtype.itemsize)


@contextmanager
def in_one_process() -> Iterator[None]:
    """Take torch's exceptions for what they wrap; it warns of what is meant.

    Raises:
        Exception: the one of this process.
    """
    warnings.filterwarnings("ignore", message="torch.distributed is disabled")  # the same filter is there only once
    try:
        yield
    except CheckpointException as error:  # a BaseException
        causes = [cause for cause, _ in error.failures.values() if isinstance(cause, Exception)]
        raise (causes or [RuntimeError(str(error))])[0] from None
