"""The format of a shard, one rank's part of a checkpoint in memory. Pure.

    header | tensors | values | metadata | table

The header has a fixed length and says where the table is. Each tensor lies contiguous at a multiple of 64 bytes, in the
order of the rank's save plan, so that whoever knows the plan knows the places. Values are the bytes that
torch.distributed.checkpoint stores for what is not a tensor. The table, JSON, says where these are, as their lengths
vary from save to save; and, in the shard of rank 0, where the checkpoint's metadata is, and when one was last due for
disk.

The header is written last: a shard that was cut short has none.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from torch.distributed.checkpoint.metadata import Metadata, MetadataIndex, TensorStorageMetadata
from torch.distributed.checkpoint.planner import WriteItem

ALIGNMENT: Final = 64
FORMAT: Final = 1

_MAGIC: Final = b"edriverS"
_HEADER: Final = struct.Struct("<8sQQQ")
HEADER_BYTES: Final = _HEADER.size


class ShardError(Exception):
    """Bytes are not a shard that this release reads."""


class Place(NamedTuple):
    """Where something is in a shard: its first byte, and how many."""

    at: int
    length: int


class StoredAt(NamedTuple):
    """Where an item of a checkpoint is: in which rank's shard, and where in it; `at` -1: its table says where."""

    rank: int
    at: int
    length: int


@dataclass(frozen=True, slots=True)
class ShardLayout:
    """What a rank's shard has where, as far as its save plan decides it.

    Attributes:
        tensors: the items that are tensors, with their places.
        values: the other items.
        end: where the tensors end.
    """

    tensors: tuple[tuple[WriteItem, Place], ...]
    values: tuple[WriteItem, ...]
    end: int

    @staticmethod
    def of(items: Iterable[WriteItem]) -> ShardLayout:
        """The layout of a rank's final save plan."""
        tensors, values, end = [], [], _aligned(HEADER_BYTES)
        for item in items:
            if item.tensor_data is None:
                values.append(item)
                continue
            sizes = item.tensor_data.chunk.sizes
            place = Place(end, math.prod(sizes) * item.tensor_data.properties.dtype.itemsize)
            tensors.append((item, place))
            end = _aligned(place.at + place.length)
        return ShardLayout(tuple(tensors), tuple(values), end)

    def stored(self, rank: int) -> Iterator[tuple[MetadataIndex, StoredAt]]:
        """Where readers find each item, which is in this rank's shard."""
        for item, place in self.tensors:
            yield item.index, StoredAt(rank, *place)
        for item in self.values:
            yield item.index, StoredAt(rank, -1, -1)


class DueForDisk(NamedTuple):
    """When a checkpoint was last due for disk: the step, and seconds since the epoch."""

    step: int
    time: float


@dataclass(frozen=True, slots=True)
class Table:
    """Where in a shard is what the save plan does not place.

    Attributes:
        values: of each value, by its name.
        metadata: of the checkpoint's pickled metadata; None: it is in another shard.
        disk: in rank 0's shard, if the checkpoint belongs on disk.
    """

    values: Mapping[str, Place]
    metadata: Place | None = None
    disk: DueForDisk | None = None

    def encoded(self) -> bytes:
        """As it is written."""
        return json.dumps({"values": self.values, "metadata": self.metadata, "disk": self.disk}).encode()

    @staticmethod
    def of(data: bytes) -> Table:
        """Decode a table.

        Raises:
            ShardError: the data is not a table.
        """
        try:
            found = json.loads(data)
            values = {str(name): Place(int(at), int(length)) for name, (at, length) in found["values"].items()}
            metadata = None if found["metadata"] is None else Place(*map(int, found["metadata"]))
            disk = DueForDisk(int(found["disk"][0]), float(found["disk"][1])) if found.get("disk") else None
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            raise ShardError(f"the table of a shard cannot be read ({type(error).__name__}: {error})") from error
        return Table(values, metadata, disk)


class Footer(NamedTuple):
    """What follows the tensors: pieces with the offsets at which they are written, and the shard's length."""

    pieces: tuple[tuple[int, bytes], ...]
    length: int


def footer(end: int, values: Mapping[str, bytes], metadata: bytes | None, disk: DueForDisk | None = None) -> Footer:
    """Lay out what follows the tensors. The header is the last piece. Equal values are there once.

    Args:
        end: where the tensors end.
        values: the bytes of each value.
        metadata: the checkpoint's, in rank 0's shard.
        disk: see Table.
    """
    pieces, places, known, at = [], dict[str, Place](), dict[bytes, Place](), end
    for name, data in values.items():
        if data not in known:
            known[data] = Place(at, len(data))
            pieces.append((at, data))
            at += len(data)
        places[name] = known[data]
    place = None
    if metadata is not None:
        place = Place(at, len(metadata))
        pieces.append((at, metadata))
        at += len(metadata)
    table = Table(places, place, disk).encoded()
    pieces += [(at, table), (0, _HEADER.pack(_MAGIC, FORMAT, at, len(table)))]
    return Footer(tuple(pieces), at + len(table))


def table_place(header: bytes) -> Place:
    """Where a shard's table is.

    Args:
        header: its first HEADER_BYTES bytes.

    Raises:
        ShardError: it is no shard, or of another format.
    """
    if len(header) < HEADER_BYTES or not header.startswith(_MAGIC):
        raise ShardError("the shard has not been written to its end")
    _, found, at, length = _HEADER.unpack_from(header)
    if found != FORMAT:
        raise ShardError(f"the shard has format {found}, and this release reads {FORMAT}")
    return Place(at, length)


def chunk_sizes(metadata: Metadata, index: MetadataIndex) -> Sequence[int]:
    """The shape of a stored chunk.

    Raises:
        ShardError: the metadata has no such chunk.
    """
    entry = metadata.state_dict_metadata.get(index.fqn)
    if isinstance(entry, TensorStorageMetadata):
        if index.index is not None and index.index < len(entry.chunks):
            chunk = entry.chunks[index.index]
            if chunk.offsets == index.offset:
                return chunk.sizes
        for chunk in entry.chunks:
            if chunk.offsets == index.offset:
                return chunk.sizes
    raise ShardError(f"the metadata of the checkpoint has no chunk of {index.fqn} at {index.offset}")


def rows(sizes: Sequence[int], offsets: Sequence[int], lengths: Sequence[int]) -> tuple[int, int]:
    """Which rows of a chunk have all of a part of it: the first one, and how many.

    A scalar has one row.
    """
    if not sizes:
        return 0, 1
    return offsets[0], lengths[0]


def assembled(data: Iterable[bytes], lengths: Sequence[int]) -> Iterator[bytearray]:
    """Cut a stream into parts of these lengths.

    Raises:
        ShardError: it ends before the last one is complete.
    """
    stream, rest = iter(data), memoryview(b"")
    for length in lengths:
        part, have = bytearray(length), 0
        while have < length:
            if not rest:
                rest = memoryview(next(stream, b""))
                if not rest:
                    raise ShardError("the other host has sent less than it was asked for")
            taken = min(len(rest), length - have)
            part[have : have + taken] = rest[:taken]
            rest, have = rest[taken:], have + taken
        yield part
    for _ in stream:  # its end is where its digest is compared
        pass


def _aligned(offset: int) -> int:
    return -(-offset // ALIGNMENT) * ALIGNMENT
