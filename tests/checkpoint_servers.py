"""A real checkpoint server, and what its agent and its workers ask of it."""

from __future__ import annotations

import mmap
import queue
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc

from edriver.common.checkpoint_server import SERVER_SOCKET, ServerConfig
from edriver.v1 import checkpoints_pb2 as pb
from edriver.v1 import checkpoints_pb2_grpc, rounds_pb2
from edriver.wire.grpc_streams import MAX_MESSAGE_BYTES
from edriver.wire.tls_files import member_channel
from tests.waiting import BOUND, until

LAYOUT = b"l" * 16
PAGE = 4096


def checkpoint(step: int, n: int = 1, size: int = 4) -> rounds_pb2.CheckpointId:
    return rounds_pb2.CheckpointId(round_id=rounds_pb2.RoundId(incarnation=1, n=n), step=step, size=size)


def shard(step: int, rank: int, length: int, n: int = 1) -> pb.Shard:
    return pb.Shard(checkpoint=checkpoint(step, n), rank=rank, layout=LAYOUT, bytes=length)


@dataclass
class CheckpointServer:
    """One host's server.

    Attributes:
        process: it.
        folder: its agent's.
        here: what its workers call.
        told: what it has told its agent, the latest last,
        answered: and which question was the last one before that.
    """

    process: subprocess.Popen[bytes]
    folder: Path
    channel: grpc.Channel
    here: Any
    told: list[pb.HostCheckpoints] = field(default_factory=list)
    answered: list[int] = field(default_factory=list)
    orders: queue.Queue[pb.HoldRequest | None] = field(default_factory=queue.Queue)

    @property
    def held(self) -> pb.HostCheckpoints:
        """What it holds, as its agent knows it."""
        return until(lambda: self.told[-1] if self.told else None, "the server's first word")

    def attach(self) -> None:
        """Be its agent."""
        answers = self.here.Hold(iter(self.orders.get, None), wait_for_ready=True)

        def take() -> None:
            try:
                for answer in answers:
                    self.told.append(answer.held)
                    self.answered.append(answer.answered)
            except grpc.RpcError:
                pass

        threading.Thread(target=take, daemon=True).start()

    def order(
        self,
        newest: rounds_pb2.CheckpointId | None = None,
        keep: Sequence[rounds_pb2.CheckpointId] = (),
        copies: Sequence[tuple[pb.Shard, str]] = (),
    ) -> None:
        made = [pb.ShardCopy(shard=each, address=address) for each, address in copies]
        self.orders.put(pb.HoldRequest(keep=pb.KeepCheckpoints(newest=newest, keep=keep, copies=made)))

    def reserve(self, step: int, rank: int, length: int, pid: int, n: int = 1) -> pb.ReserveResponse:
        request = pb.ReserveRequest(checkpoint=checkpoint(step, n), rank=rank, bytes=length, pid=pid)
        answer: pb.ReserveResponse = self.here.Reserve(request, timeout=BOUND, wait_for_ready=True)
        return answer

    def save(self, step: int, rank: int, data: bytes, pid: int, n: int = 1) -> str:
        """What a worker does; returns the path of the memory."""
        path = self.reserve(step, rank, len(data), pid, n).path
        assert path
        write(path, data)
        self.here.Commit(pb.CommitRequest(shard=shard(step, rank, len(data), n)), timeout=BOUND)
        return path

    def steps(self) -> list[tuple[int, int]]:
        """The step and the rank of all that it holds."""
        return [(each.checkpoint.step, each.rank) for each in self.held.shards]


def write(path: str, data: bytes) -> None:
    """Write through a mapping, as a worker does."""
    with Path(path).open("r+b") as file, mmap.mmap(file.fileno(), len(data)) as mapped:
        mapped[:] = data


def read(path: str, length: int) -> bytes:
    with Path(path).open("rb") as file, mmap.mmap(file.fileno(), length, prot=mmap.PROT_READ) as mapped:
        return bytes(mapped)


def fetch(address: str, wanted: pb.Shard, ranges: Sequence[tuple[int, int]] = (), tls: Path | None = None) -> Any:
    """Messages of a Fetch, and the channel's end with the last one."""
    with member_channel(address, tls, (("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),)) as channel:
        request = pb.FetchRequest(shard=wanted, ranges=[pb.Range(offset=at, length=length) for at, length in ranges])
        yield from checkpoints_pb2_grpc.ShardServiceStub(channel).Fetch(request, timeout=BOUND)


@contextmanager
def checkpoint_server(
    memory: int = 64 * PAGE, address: str = "", tls: Path | None = None, attached: bool = True
) -> Iterator[CheckpointServer]:
    folder = Path(tempfile.mkdtemp(prefix="ed-"))
    process = subprocess.Popen([sys.executable, "-m", "edriver.checkpoint_server"], stdin=subprocess.PIPE)
    assert process.stdin is not None
    with process.stdin as sink:
        sink.write(ServerConfig(str(folder), address, str(tls or ""), memory).to_json())
    try:
        with grpc.insecure_channel(f"unix:{folder / SERVER_SOCKET}") as channel:
            stub: Any = checkpoints_pb2_grpc.CheckpointServiceStub(channel)
            server = CheckpointServer(process, folder, channel, stub)
            if attached:
                server.attach()
                _ = server.held
            yield server
            server.orders.put(None)
    finally:
        process.send_signal(signal.SIGCONT)
        process.kill()
        process.wait()
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def worker() -> Iterator[subprocess.Popen[bytes]]:
    """A process that writes shards; the test does it in its name."""
    process = subprocess.Popen(["sleep", "3600"])
    try:
        yield process
    finally:
        process.kill()
        process.wait()
