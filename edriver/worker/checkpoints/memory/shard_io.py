"""How a rank writes its shard into shared memory, and reads what it needs of the shards of all."""

from __future__ import annotations

import concurrent.futures
import ctypes
import io
import logging
import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

import torch
from torch.distributed.checkpoint.metadata import Metadata, MetadataIndex
from torch.distributed.checkpoint.planner import LoadItemType, LoadPlan, LoadPlanner, ReadItem, SavePlanner

from edriver.model.memory_checkpoint import DiskTarget, MemoryCheckpoint, Refusal
from edriver.text.usage_text import bytes_text
from edriver.worker import context
from edriver.worker.backend.process_modes import with_inference
from edriver.worker.checkpoints.memory.device_copies import DeviceCopies
from edriver.worker.checkpoints.memory.mapped import MappedFile
from edriver.worker.checkpoints.memory.parts_metadata import metadata_in
from edriver.worker.checkpoints.memory.place import MemoryPlace
from edriver.worker.checkpoints.memory.server_link import Reserved, ServerLostError, ShardName
from edriver.worker.checkpoints.memory.shard import (
    HEADER_BYTES,
    DueForDisk,
    Footer,
    Place,
    ShardError,
    ShardLayout,
    StoredAt,
    Table,
    assembled,
    chunk_sizes,
    footer,
    rows,
    table_place,
)
from edriver.worker.copies.side_stream import Copy

logger = logging.getLogger("edriver.worker")


class Said:
    """What has been said of checkpoints in this process: each cause once, until it is over."""

    def __init__(self) -> None:
        self._causes: set[str] = set()

    def once(self, cause: str, text: str, *args: object) -> None:
        """Warn of something, unless that was done."""
        if cause not in self._causes:
            self._causes.add(cause)
            logger.warning(text, *args)

    def over(self) -> None:
        """A checkpoint was written: what happens from now on is news."""
        self._causes.clear()


def said() -> Said:
    """This process's."""
    return context.current.part(Said)


_REFUSALS: Final = {
    Refusal.TOO_LARGE: "this rank's part takes {needed}, and checkpoints may use {limit} of this host's memory "
    "(--checkpoint-memory), in which each rank needs room for two",
    Refusal.BUSY: "this rank's part takes {needed}, and {used} of the {limit} that checkpoints may use on this host "
    "(--checkpoint-memory) hold others, which are kept until a newer one is whole and copied: save less often, or "
    "allow more memory",
    Refusal.OUTDATED: "a later round has begun",
}


_LARGE: Final = 32 << 20
"""Bytes from which memcpy is faster than copy_, and more than one thread worth its start."""

_MOST_THREADS: Final = 4


class ShardWrite:
    """One shard on its way into memory.

    Args:
        place: this process's.
        step: the step that it holds.
        layout: what it has where.
        planner: knows the values; see SavePlanner.resolve_data.
        device: copies what lies on a GPU; None: it is copied as everything else.
        disk: on rank 0: where on disk the checkpoint belongs, and, if it is known, when one was last due for it.

    Attributes:
        written: whether there was memory for it: the other methods are called only then.
        refusal: why there was none, if the server has said so.
        is_under_way: whether the device is still to write a part of it, so that it must not be committed yet.
    """

    def __init__(
        self,
        place: MemoryPlace,
        step: int,
        layout: ShardLayout,
        planner: SavePlanner,
        device: DeviceCopies | None = None,
        disk: tuple[DiskTarget, DueForDisk | None] | None = None,
    ) -> None:
        self.is_under_way = False
        self.refusal: Refusal | None = None
        self._device = device
        self._place = place
        self._step = step
        self._target = None if disk is None else disk[0]
        self._due = None if disk is None else disk[1]
        self._layout = layout
        self._planner = planner
        self._values = {item.index.fqn: _value(planner.resolve_data(item)) for item in layout.values}
        self._file: MappedFile | None = None

    @property
    def written(self) -> bool:
        return self._file is not None

    def begin(self, metadata: bytes | None = None, room: int = 0) -> bool:
        """Copy the tensors; returns False, once it has been said why, if there is no memory.

        Args:
            metadata: the checkpoint's, if that is known already.
            room: bytes to keep free for it, if it is not.

        Raises:
            ShardError: the plan is not one of these values.
        """
        length = self._footer(metadata).length + room
        try:
            reserved = self._place.memory.reserve(
                self._place.checkpoint(self._step), self._place.rank, length, os.getpid()
            )
            if not reserved.path:
                self._refused(reserved, length)
                return False
            file = self._place.mappings.writable(reserved.path)
        except (ServerLostError, OSError) as error:
            self._skipped("server", str(error))
            return False
        if len(file) < length:
            self._skipped("server", f"its server gave {len(file)} of {length} bytes")
            return False
        file.write(0, bytes(HEADER_BYTES))  # it may hold another shard
        covers = (lambda _: False) if self._device is None else self._device.covers
        threads = copying_threads(self._place.assignment.local_size)
        later = copy_tensors(file, self._layout, self._planner, covers, threads)
        if later and self._device is not None:
            self._device.begin(file, later)
            self.is_under_way = True
        self._file = file
        return True

    def end(self, layout: bytes, metadata: bytes | None = None, save_seconds: float = 0.0) -> bool:
        """Write the rest, and commit the shard; returns False, once it has been said why, if that fails.

        Args:
            layout: see Shard.layout.
            metadata: the checkpoint's, in rank 0's shard.
            save_seconds: how long the save has held up the training loop; 0: not known.
        """
        assert self._file is not None, "there is memory for it"
        pieces, length = self._footer(metadata)
        if length > len(self._file):
            self._skipped("metadata", "the planner's metadata is larger than its plans")
            return False
        for at, data in pieces:
            self._file.write(at, data)
        try:
            self._place.memory.commit(self._place.shard(self._step, layout), length, self._target, save_seconds)
        except ServerLostError as error:
            self._skipped("server", str(error))
            return False
        return True

    def _footer(self, metadata: bytes | None) -> Footer:
        return footer(self._layout.end, self._values, metadata, self._due)

    def _refused(self, reserved: Reserved, length: int) -> None:
        self.refusal = reserved.refusal
        if reserved.refusal not in _REFUSALS:
            logger.debug("step %d is in memory already", self._step)
            return
        reason = _REFUSALS[reserved.refusal].format(
            needed=bytes_text(length), limit=bytes_text(reserved.limit), used=bytes_text(reserved.used)
        )
        self._skipped(reserved.refusal.name, reason)

    def _skipped(self, cause: str, reason: str) -> None:
        say_skipped(self._step, cause, reason)


def say_skipped(step: int, cause: str, reason: str) -> None:
    """Say, once for each cause, that a checkpoint is not kept in memory."""
    said().once(cause, "the checkpoint of step %d is not kept in memory: %s; training continues", step, reason)


def copy_tensors(
    file: MappedFile,
    layout: ShardLayout,
    planner: SavePlanner,
    later: Callable[[torch.Tensor], bool],
    threads: int = 1,
) -> list[Copy]:
    """Copy each tensor to its place in a mapped file, once.

    Args:
        file: the file.
        layout: what it has where.
        planner: knows the tensors.
        later: which tensors are not copied here.
        threads: how many copy.

    Returns:
        The copies that are still to be made.

    Raises:
        ShardError: a tensor has not the shape that the plan says.
    """
    left: list[Copy] = []
    now: list[Copy] = []
    with torch.no_grad(), with_inference(False):
        for item, place in layout.tensors:
            source = planner.resolve_data(item)
            sizes = item.tensor_data.chunk.sizes  # type: ignore[union-attr]  # it is a tensor
            if not isinstance(source, torch.Tensor) or source.shape != sizes:
                raise ShardError(f"{item.index.fqn} is not the tensor of shape {tuple(sizes)} that was planned")
            target = file.tensor(place.at, sizes, item.tensor_data.properties.dtype)  # type: ignore[union-attr]
            (left if later(source) else now).append((source, target))
    shares = [share for share in _shares(now, threads) if share]
    if len(shares) == 1:
        _copy(shares[0])
    elif shares:
        with concurrent.futures.ThreadPoolExecutor(len(shares)) as pool:
            for done in [pool.submit(_copy, share) for share in shares]:
                done.result()
    return left


def copying_threads(local_size: int) -> int:
    """Threads with which a rank copies: its share of the processors, as far as memory gains by them.

    Args:
        local_size: the number of ranks on this host.
    """
    return max(1, min(_MOST_THREADS, len(os.sched_getaffinity(0)) // local_size))


def _shares(copies: list[Copy], threads: int) -> list[list[Copy]]:
    """Copies dealt out to threads, as evenly as their sizes allow. Few bytes are not worth a thread."""
    total = sum(target.nbytes for _, target in copies)
    shares: list[list[Copy]] = [[] for _ in range(max(1, min(threads, total // _LARGE)))]
    sizes = [0] * len(shares)
    for copy in sorted(copies, key=lambda copy: -copy[1].nbytes):
        least = sizes.index(min(sizes))
        shares[least].append(copy)
        sizes[least] += copy[1].nbytes
    return shares


def _copy(copies: list[Copy]) -> None:
    with torch.no_grad(), with_inference(False):  # they hold for one thread
        for source, target in copies:
            if target.nbytes >= _LARGE and _is_plain(source) and source.dtype == target.dtype:
                # memcpy writes what is large past the caches, which copy_ does not: two thirds of the time. ctypes
                # releases the interpreter's lock, as copy_ does.
                ctypes.memmove(target.data_ptr(), source.data_ptr(), target.nbytes)
            else:
                target.copy_(source)


def _is_plain(tensor: torch.Tensor) -> bool:
    """Whether a tensor's elements lie in this process's memory, one after the other, as they are."""
    if tensor.device.type != "cpu" or tensor.layout is not torch.strided:
        return False
    return tensor.is_contiguous() and not tensor.is_conj() and not tensor.is_neg()


class CheckpointRead:
    """Reads from the shards of a checkpoint, wherever they are. A shard on this host is mapped, and copied from.

    Args:
        place: this process's.
        source: the checkpoint.
    """

    def __init__(self, place: MemoryPlace, source: MemoryCheckpoint) -> None:
        self._place = place
        self._source = source
        self._files: dict[int, MappedFile | None] = {}
        self._tables: dict[int, Table] = {}

    def metadata(self) -> Metadata:
        """The checkpoint's metadata.

        Raises:
            ShardError: its shards are not what they should be.
            ServerLostError: they cannot be reached.
        """
        found = self._table(0).metadata
        if found is None:
            raise ShardError("rank 0's shard has no metadata")
        return metadata_in(self._read(0, [found])[0])

    def last_due(self) -> DueForDisk | None:
        """When a checkpoint was last due for disk; None: it is not known.

        Raises:
            ShardError: rank 0's shard is not what it should be.
            ServerLostError: it cannot be reached.
        """
        return self._table(0).disk

    def read(
        self, plan: LoadPlan, planner: LoadPlanner, metadata: Metadata, stored: Mapping[MetadataIndex, StoredAt]
    ) -> None:
        """Read all that a plan asks for into the tensors and values that the planner names.

        Args:
            plan: the plan.
            planner: the planner.
            metadata: the checkpoint's.
            stored: where its items are.

        Raises:
            ShardError: the shards are not what they should be.
            ServerLostError: they cannot be reached.
        """
        by_rank: dict[int, list[ReadItem]] = {}
        for item in plan.items:
            by_rank.setdefault(stored[item.storage_index].rank, []).append(item)
        # Each rank begins with another one's shard: they do not all ask the same host.
        mine = self._place.rank
        for rank in sorted(by_rank, key=lambda rank: (rank - mine) % self._source.checkpoint.size):
            values = [item for item in by_rank[rank] if item.type is LoadItemType.BYTE_IO]
            tensors = [item for item in by_rank[rank] if item.type is not LoadItemType.BYTE_IO]
            if values:
                self._read_values(rank, values, planner, stored)
            self._read_tensors(rank, tensors, planner, metadata, stored)

    def _read_values(
        self, rank: int, items: list[ReadItem], planner: LoadPlanner, stored: Mapping[MetadataIndex, StoredAt]
    ) -> None:
        table = self._table(rank).values
        try:
            places = [
                Place(*stored[item.storage_index][1:])
                if stored[item.storage_index].at >= 0
                else table[item.storage_index.fqn]
                for item in items
            ]
        except KeyError as error:
            raise ShardError(f"the shard of rank {rank} has no {error}") from None
        for item, data in zip(items, self._read(rank, places), strict=True):
            planner.load_bytes(item, io.BytesIO(data))

    def _read_tensors(
        self,
        rank: int,
        items: list[ReadItem],
        planner: LoadPlanner,
        metadata: Metadata,
        stored: Mapping[MetadataIndex, StoredAt],
    ) -> None:
        wanted = []
        for item in items:
            entry: Any = metadata.state_dict_metadata[item.storage_index.fqn]
            dtype = entry.properties.dtype
            sizes = list(chunk_sizes(metadata, item.storage_index))
            first, count = rows(sizes, item.storage_offsets, item.lengths)
            at, length = stored[item.storage_index][1:]
            row = length // sizes[0] if sizes and sizes[0] else length
            if sizes:
                sizes[0] = count
            wanted.append((item, dtype, sizes, first, Place(at + first * row, count * row)))
        file = self._file(rank)
        if file is not None:
            for item, dtype, sizes, first, place in wanted:
                _load(planner, item, file.tensor(place.at, sizes, dtype), first)
            return
        # What is empty is not asked for: a request for nothing is one for the whole shard.
        places = [place for *_, place in wanted if place.length]
        parts = iter(self._fetched(rank, places) if places else ())
        for item, dtype, sizes, first, place in wanted:
            data = next(parts) if place.length else bytearray()
            tensor = torch.frombuffer(data, dtype=dtype) if data else torch.empty(0, dtype=dtype, device="cpu")
            _load(planner, item, tensor.view(sizes), first)
        for _ in parts:  # the digest is compared at the end
            pass

    def _table(self, rank: int) -> Table:
        if rank not in self._tables:
            (header,) = self._read(rank, [Place(0, HEADER_BYTES)])
            self._tables[rank] = Table.of(self._read(rank, [table_place(header)])[0])
        return self._tables[rank]

    def _read(self, rank: int, places: list[Place]) -> list[bytes]:
        file = self._file(rank)
        if file is not None:
            return [file.read(*place) for place in places]
        return [bytes(part) for part in self._fetched(rank, places)]

    def _file(self, rank: int) -> MappedFile | None:
        if rank not in self._files:
            path = self._place.memory.open(self._name(rank))
            try:
                self._files[rank] = MappedFile(path, writable=False) if path else None
            except OSError as error:
                raise ServerLostError(f"this host's checkpoint server has ended: {error}") from error
        return self._files[rank]

    def _fetched(self, rank: int, places: list[Place]) -> Iterable[bytearray]:
        address = self._source.addresses[self._source.holders[rank]]
        return assembled(
            self._place.memory.fetch(address, self._name(rank), places), [place.length for place in places]
        )

    def _name(self, rank: int) -> ShardName:
        return ShardName(self._source.checkpoint, rank, self._source.layout)


def of_all(plans: Iterable[tuple[int, ShardLayout]]) -> dict[MetadataIndex, StoredAt]:
    """Where the items of a checkpoint are.

    Args:
        plans: each rank, and the layout of its shard.
    """
    return {index: place for rank, layout in plans for index, place in layout.stored(rank)}


def _load(planner: LoadPlanner, item: ReadItem, stored: torch.Tensor, first: int) -> None:
    """Copy the part of a stored chunk that an item asks for.

    Args:
        planner: knows where to.
        item: what is asked for.
        stored: rows of the chunk,
        first: and which is the first of them.
    """
    for dimension, (offset, length) in enumerate(zip(item.storage_offsets, item.lengths, strict=True)):
        stored = stored.narrow(dimension, offset - first if dimension == 0 else offset, length)
    with torch.no_grad(), with_inference(False):
        target = planner.resolve_tensor(item).detach()
        if target.shape != stored.shape:
            raise ShardError(f"{item.storage_index.fqn} is of shape {tuple(stored.shape)}, not {tuple(target.shape)}")
        target.copy_(stored)
    planner.commit_tensor(item, target)


def _value(data: Any) -> bytes:
    return data.getvalue() if isinstance(data, io.BytesIO) else bytes(data.read())
