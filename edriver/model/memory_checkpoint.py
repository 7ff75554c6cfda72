"""Checkpoints in memory: what names one, and what is known of its shards. Plain data."""

from __future__ import annotations

from enum import Enum, auto
from typing import NamedTuple

from edriver.model.frozen import frozen
from edriver.model.ids import RoundId


class Refusal(Enum):
    """Why a shard gets no memory on a host now; see the protocol's Refusal."""

    TOO_LARGE = auto()
    BUSY = auto()
    COMMITTED = auto()
    OUTDATED = auto()


class CheckpointId(NamedTuple):
    """Names a checkpoint in memory. Compared as tuples: a later round's is newer, whatever its step.

    Attributes:
        round_id: the round whose ranks have written it.
        step: the step, as the script counts them.
        size: the number of ranks of that round, of each of which it has one shard.
    """

    round_id: RoundId
    step: int
    size: int


@frozen
class DiskTarget:
    """Where on disk a checkpoint belongs.

    Attributes:
        location: the folder of checkpoints: an absolute path, which is the same folder on all hosts, or a URL.
        keep: the number of complete checkpoints that stay in it.
        interpreter: the Python interpreter of the worker, which has torch.
        due: whether this checkpoint is to be written; others are only if the run ends or a user asks for it.
    """

    location: str
    keep: int
    interpreter: str
    due: bool = False


@frozen
class Shard:
    """One rank's part of a checkpoint, as a host holds it.

    Attributes:
        checkpoint: the checkpoint.
        rank: the rank in that checkpoint's round.
        layout: a digest of what the checkpoint has in which shard: shards of one checkpoint belong together only if it
            is the same.
        nbytes: its length in bytes.
        copy: whether it was received from another host.
        disk: in rank 0's shard: where on disk the checkpoint belongs; None: it stays in memory.
        save_seconds: how long its save has held up the training loop.
    """

    checkpoint: CheckpointId
    rank: int
    layout: bytes
    nbytes: int
    copy: bool = False
    disk: DiskTarget | None = None
    save_seconds: float = 0.0


@frozen
class ShardCopy:
    """A shard that a host is to fetch from another.

    Attributes:
        shard: the shard.
        address: where the ShardService of the host listens that has it.
    """

    shard: Shard
    address: str


@frozen
class DiskWrite:
    """The part of a checkpoint that a host is to write to disk.

    Attributes:
        number: tells this attempt from all others of the run.
        checkpoint: the checkpoint.
        layout: see Shard.
        ranks: whose shards this host writes.
        target: where to.
        name: of the folder `checkpoint-N`; the leading host gives it one.
        seal: whether all parts are written, so that the leading host completes the checkpoint.
        urgent: whether training does not go first, because it has ended.
    """

    number: int
    checkpoint: CheckpointId
    layout: bytes
    ranks: tuple[int, ...]
    target: DiskTarget
    name: str = ""
    seal: bool = False
    urgent: bool = False

    @property
    def leads(self) -> bool:
        """Whether this is the leading host, that of rank 0's shard: it begins the folder, and completes it."""
        return 0 in self.ranks


@frozen
class DiskReport:
    """How far a host is with its last DiskWrite.

    Attributes:
        number: the attempt.
        name: on the leading host: of the folder, once it is there.
        written: whether this host's part is written.
        sealed: on the leading host: whether the checkpoint is complete.
        trouble: why it cannot be written; empty: nothing has failed.
    """

    number: int
    name: str = ""
    written: bool = False
    sealed: bool = False
    trouble: str = ""


@frozen
class MemoryCheckpoint:
    """The checkpoint from which a round starts, and where its shards are.

    Attributes:
        checkpoint: the checkpoint.
        layout: see Shard.
        addresses: where the ShardServices of hosts listen.
        holders: for each rank of the checkpoint, the index in `addresses` of a host that has its shard.
    """

    checkpoint: CheckpointId
    layout: bytes
    addresses: tuple[str, ...]
    holders: tuple[int, ...]
