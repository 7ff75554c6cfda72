"""How a worker reaches the checkpoint servers: that of its host over a unix socket, others over mutual TLS.

The agent starts its host's server when the first worker asks for one, so the first call waits for it, within a bound.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol

import grpc

from edriver.model.memory_checkpoint import CheckpointId, DiskTarget, Refusal
from edriver.v1 import checkpoints_pb2 as pb
from edriver.v1 import checkpoints_pb2_grpc
from edriver.wire.checkpoints import checkpoint_id_message, disk_target_message, refusal_of
from edriver.wire.conversion import duration
from edriver.wire.grpc_streams import BULK_CHANNEL_OPTIONS, CHANNEL_OPTIONS, MAX_MESSAGE_BYTES
from edriver.wire.tls_files import member_channel

START_TIMEOUT: Final = 20.0
"""Seconds for which the first call waits until the host's server listens."""

CALL_TIMEOUT: Final = 5.0
"""Seconds for any later call, of which each is a lookup."""

FETCH_TIMEOUT: Final = 600.0
"""Seconds for all that one rank reads of one shard on another host."""


class ServerLostError(Exception):
    """A checkpoint server does not answer, or not as it should."""


class Reserved(NamedTuple):
    """The answer to a reservation.

    Attributes:
        path: a file to map; empty: there is no memory.
        refusal: why there is none; None: there is, or a later release knows why.
        limit: bytes of memory that the server may use,
        used: and that it uses.
    """

    path: str
    refusal: Refusal | None = None
    limit: int = 0
    used: int = 0


class ShardName(NamedTuple):
    """Names a shard: see Shard."""

    checkpoint: CheckpointId
    rank: int
    layout: bytes


class CheckpointMemory(Protocol):
    """The memory of the run's hosts."""

    def reserve(self, checkpoint: CheckpointId, rank: int, length: int, pid: int) -> Reserved:
        """Ask this host for memory for a shard.

        Args:
            checkpoint: which the shard belongs to.
            rank: whose it is.
            length: bytes, at most.
            pid: the process that writes it.

        Raises:
            ServerLostError: there is no answer.
        """

    def commit(self, shard: ShardName, length: int, disk: DiskTarget | None = None, save_seconds: float = 0.0) -> None:
        """Say that a shard has been written completely.

        Args:
            shard: which.
            length: its length in bytes.
            disk: on rank 0: where on disk the checkpoint belongs.
            save_seconds: how long its save has held up the training loop; 0: not known.

        Raises:
            ServerLostError: it does not count.
        """

    def open(self, shard: ShardName) -> str | None:
        """The file that has a shard on this host; None: this host does not have it.

        Raises:
            ServerLostError: there is no answer.
        """

    def fetch(self, address: str, shard: ShardName, ranges: Sequence[tuple[int, int]]) -> Iterator[bytes]:
        """Parts of a shard on another host, one after the other, in pieces of any length.

        Args:
            address: of that host's ShardService.
            shard: which.
            ranges: first byte and length of each part.

        Raises:
            ServerLostError: the host does not send them, or what it sent was changed on the way. At the end, too: what
                has been read counts only then.
        """


class ServerLink:
    """The real one.

    Args:
        socket: the path of the host's server.
        tls_folder: the folder of the run's TLS credentials; None: the run has none, and all hosts are this machine.
    """

    def __init__(self, socket: str, tls_folder: Path | None) -> None:
        self._tls_folder = tls_folder
        self._local: Any = checkpoints_pb2_grpc.CheckpointServiceStub(
            grpc.insecure_channel(f"unix:{socket}", options=CHANNEL_OPTIONS)
        )
        self._answered = self._waited = False
        self._others: dict[str, Any] = {}

    def reserve(self, checkpoint: CheckpointId, rank: int, length: int, pid: int) -> Reserved:
        request = pb.ReserveRequest(checkpoint=checkpoint_id_message(checkpoint), rank=rank, bytes=length, pid=pid)
        answer = self._call(self._local.Reserve, request)
        return Reserved(answer.path, refusal_of(answer.refusal), answer.limit, answer.used)

    def commit(self, shard: ShardName, length: int, disk: DiskTarget | None = None, save_seconds: float = 0.0) -> None:
        message = _shard_message(shard, length)
        if disk is not None:
            message.disk.CopyFrom(disk_target_message(disk))
        if save_seconds:
            message.save_time.CopyFrom(duration(save_seconds))
        self._call(self._local.Commit, pb.CommitRequest(shard=message))

    def open(self, shard: ShardName) -> str | None:
        try:
            path: str = self._call(self._local.Open, pb.OpenRequest(shard=_shard_message(shard), pid=os.getpid())).path
        except ServerLostError as error:
            cause = error.__cause__
            if isinstance(cause, grpc.Call) and cause.code() is grpc.StatusCode.NOT_FOUND:
                return None
            raise
        return path

    def fetch(self, address: str, shard: ShardName, ranges: Sequence[tuple[int, int]]) -> Iterator[bytes]:
        request = pb.FetchRequest(
            shard=_shard_message(shard), ranges=[pb.Range(offset=at, length=length) for at, length in ranges]
        )
        digest, sent = hashlib.sha256(), b""
        try:
            for answer in self._other(address).Fetch(request, timeout=FETCH_TIMEOUT):
                if answer.data:
                    digest.update(answer.data)
                    yield answer.data
                sent = answer.digest or sent
        except grpc.RpcError as error:
            raise ServerLostError(f"the checkpoint server at {address}: {_text(error)}") from error
        if sent != digest.digest():
            raise ServerLostError(f"what the checkpoint server at {address} sent was changed, or cut, on the way")

    def _call(self, method: Any, request: Any) -> Any:
        # A server that has never answered may be starting. Training waits for that once.
        wait = not self._answered and not self._waited
        self._waited = True
        try:
            answer = method(request, timeout=START_TIMEOUT if wait else CALL_TIMEOUT, wait_for_ready=wait)
        except grpc.RpcError as error:
            self._answered |= error.code() is not grpc.StatusCode.UNAVAILABLE
            raise ServerLostError(f"this host's checkpoint server: {_text(error)}") from error
        self._answered = True
        return answer

    def _other(self, address: str) -> Any:
        if address not in self._others:
            self._others[address] = checkpoints_pb2_grpc.ShardServiceStub(self._channel(address))
        return self._others[address]

    def _channel(self, address: str) -> grpc.Channel:
        options = (*BULK_CHANNEL_OPTIONS, ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES))
        try:
            return member_channel(address, self._tls_folder, options)
        except (OSError, ValueError) as error:  # without credentials what comes from there would be unpickled
            raise ServerLostError(f"the checkpoint server at {address}: {error}") from error


def _shard_message(shard: ShardName, length: int = 0) -> pb.Shard:
    return pb.Shard(
        checkpoint=checkpoint_id_message(shard.checkpoint), rank=shard.rank, layout=shard.layout, bytes=length
    )


def _text(error: Any) -> str:
    if isinstance(error, grpc.Call) and error.code() is grpc.StatusCode.UNAVAILABLE:
        return "it cannot be reached"  # gRPC's details are paths and error numbers
    return f"{error.details()} ({error.code().name})" if isinstance(error, grpc.Call) else str(error)
