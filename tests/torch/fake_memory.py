"""The memory of a run's hosts, in a folder of files: what the checkpoint servers do, without them.

Each host has a folder. A rank of it has two files that it writes in turn. A shard that is committed has a record beside
them; to reserve its file again removes that.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from edriver.model.ids import RoundId
from edriver.model.memory_checkpoint import CheckpointId, DiskTarget, MemoryCheckpoint, Refusal
from edriver.model.plan import Assignment
from edriver.model.store_address import StoreAddress
from edriver.worker import context
from edriver.worker.checkpoints.memory.mapped import Mappings
from edriver.worker.checkpoints.memory.place import CurrentMemory, MemoryPlace
from edriver.worker.checkpoints.memory.server_link import Reserved, ServerLostError, ShardName

SECRET = bytes(range(32))


class FolderMemory:
    """One host's view of it.

    Attributes:
        refusal: the answer to all reservations, if there is any.
        cut: the next commit does not arrive.
        killed: nothing can be read any more.
        fetched: bytes that came from other hosts.
        targets: where on disk the checkpoints of steps belong, as the last shard of each has said.
    """

    def __init__(self, folder: Path, host: str) -> None:
        self.folder = folder / host
        self.folder.mkdir(exist_ok=True)
        self.refusal: Refusal | None = None
        self.cut = self.killed = False
        self.fetched = 0
        self.targets: dict[int, DiskTarget | None] = {}
        self._turn: dict[int, int] = {}

    def reserve(self, checkpoint: CheckpointId, rank: int, length: int, pid: int) -> Reserved:
        del checkpoint, pid
        if self.refusal is not None:
            return Reserved("", self.refusal, limit=1024, used=512)
        turn = self._turn[rank] = 1 - self._turn.get(rank, 1)
        path = self.folder / f"buffer-{rank}-{turn}"
        for record in self.folder.glob(f"*-*-*-*-{rank}-*.json"):
            if json.loads(record.read_text())["path"] == str(path):
                record.unlink()
        with path.open("ab") as file:
            if file.tell() < length:
                file.truncate(length)
        self._path = path
        return Reserved(str(path))

    def commit(self, shard: ShardName, length: int, disk: DiskTarget | None = None, save_seconds: float = 0.0) -> None:
        del save_seconds
        if self.cut:
            raise ServerLostError("it was killed")
        self.targets[shard.checkpoint.step] = disk
        torn = self.folder / f"torn-{shard.rank}"
        torn.write_text(json.dumps({"path": str(self._path), "length": length}))
        torn.rename(self._record(shard))

    def open(self, shard: ShardName) -> str | None:
        if self.killed:
            raise ServerLostError("it was killed")
        record = self._record(shard)
        return str(json.loads(record.read_text())["path"]) if record.exists() else None

    def fetch(self, address: str, shard: ShardName, ranges: Sequence[tuple[int, int]]) -> Iterator[bytes]:
        assert ranges, "for nothing a server sends the whole shard"
        record = json.loads((self.folder.parent / address / self._record(shard).name).read_text())
        with Path(record["path"]).open("rb") as file:
            for at, length in ranges:
                assert at + length <= record["length"], "OUT_OF_RANGE"
                file.seek(at)
                while length:
                    data = file.read(min(length, 1000))
                    self.fetched += len(data)
                    length -= len(data)
                    yield data

    def _record(self, shard: ShardName) -> Path:
        (incarnation, n), step, size = shard.checkpoint
        return self.folder / f"{incarnation}-{n}-{step}-{size}-{shard.rank}-{shard.layout.hex()}.json"


def newest_whole(folder: Path) -> MemoryCheckpoint | None:
    """What the driver finds."""
    found: dict[tuple[CheckpointId, bytes], dict[int, str]] = {}
    for record in folder.glob("*/[0-9]*.json"):  # not what a folder of checkpoints on disk says of its owner
        *numbers, digits = record.stem.split("-")
        incarnation, n, step, size, rank = map(int, numbers)
        checkpoint = CheckpointId(RoundId(incarnation, n), step, size)
        found.setdefault((checkpoint, bytes.fromhex(digits)), {})[rank] = record.parent.name
    whole = [(name, layout, ranks) for (name, layout), ranks in found.items() if len(ranks) == name.size]
    if not whole:
        return None
    checkpoint, layout, ranks = max(whole)
    addresses = tuple(sorted(set(ranks.values())))
    return MemoryCheckpoint(checkpoint, layout, addresses, tuple(addresses.index(ranks[r]) for r in sorted(ranks)))


def stored_bytes(folder: Path) -> int:
    """The lengths of all committed shards."""
    return sum(json.loads(record.read_text())["length"] for record in folder.glob("*/[0-9]*.json"))


class FakeMember:
    """A worker in restart mode."""

    def __init__(self, assignment: Assignment, store: Any) -> None:
        self.assignment = assignment
        self.step = 0
        self._store = store
        self._pid = os.getpid()

    @property
    def is_here(self) -> bool:
        return os.getpid() == self._pid

    def store(self) -> Any:
        return self._store

    def note_step(self, step: int) -> None:
        self.step = step


def join_round(folder: Path, rank: int, size: int, n: int = 1, *, host: str = "one", store: Any = None) -> FolderMemory:
    """Make this process a rank of a round; returns its host's memory."""
    assignment = Assignment(
        round_id=RoundId(1, n),
        rank=rank,
        size=size,
        local_rank=rank,
        local_size=size,
        cross_rank=0,
        cross_size=1,
        store=StoreAddress("", 0),
        sources=(0,),
        receivers=(),
        secret=SECRET,
        memory_checkpoint=newest_whole(folder),
    )
    memory = FolderMemory(folder, host)
    context.current = context.WorkerContext()
    context.current.restart_member = FakeMember(assignment, store)
    context.current.part(CurrentMemory)._place = MemoryPlace(
        assignment, memory, Mappings(), assignment.memory_checkpoint
    )
    return memory


def digest(values: dict[str, Any]) -> str:
    """Of tensors, DTensors gathered, and plain values, by their names."""
    found = hashlib.sha256()
    for name in sorted(values):
        value = values[name]
        value = value.full_tensor() if hasattr(value, "full_tensor") else value
        found.update(name.encode())
        if isinstance(value, torch.Tensor):
            found.update(value.detach().flatten().contiguous().view(torch.uint8).numpy().tobytes())
        else:
            found.update(repr(value).encode())
    return found.hexdigest()
