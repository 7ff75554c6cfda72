"""How a worker talks with checkpoint servers: against small ones, over a unix socket and over mutual TLS."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest

from edriver.model.ids import RoundId
from edriver.model.memory_checkpoint import CheckpointId, Refusal
from edriver.v1 import checkpoints_pb2 as pb
from edriver.v1 import checkpoints_pb2_grpc
from edriver.wire.tls_files import AUTHORITY_FILE, MEMBER_FILE
from edriver.worker.checkpoints.memory import server_link
from edriver.worker.checkpoints.memory.server_link import Reserved, ServerLink, ServerLostError, ShardName
from tests.torch.run_credentials import tls_credentials

CHECKPOINT = CheckpointId(RoundId(3, 4), 70, 2)
SHARD = ShardName(CHECKPOINT, 1, b"layout")
CONTENT = bytes(range(256))


class Server(checkpoints_pb2_grpc.CheckpointServiceServicer, checkpoints_pb2_grpc.ShardServiceServicer):
    """Has one shard, and room for one of 100 bytes."""

    def __init__(self) -> None:
        self.committed: list[pb.Shard] = []
        self.changed = False

    def Reserve(self, request: pb.ReserveRequest, context: Any) -> pb.ReserveResponse:
        del context
        assert (request.checkpoint.step, request.rank, request.pid) == (70, 1, 12)
        if request.bytes > 100:
            return pb.ReserveResponse(refusal=pb.REFUSAL_TOO_LARGE, limit=100, used=10)
        return pb.ReserveResponse(path="/proc/1/fd/7", limit=100, used=10)

    def Commit(self, request: pb.CommitRequest, context: Any) -> pb.CommitResponse:
        if request.shard.layout != SHARD.layout:
            context.abort(grpc.StatusCode.FAILED_PRECONDITION, "no memory is reserved for it")
        self.committed.append(request.shard)
        return pb.CommitResponse()

    def Open(self, request: pb.OpenRequest, context: Any) -> pb.OpenResponse:
        if request.shard.rank != 1:
            context.abort(grpc.StatusCode.NOT_FOUND, "not here")
        return pb.OpenResponse(path="/proc/1/fd/8", bytes=256)

    def Hold(self, request_iterator: Any, context: Any) -> Iterator[pb.HoldResponse]:
        raise AssertionError("the agent's")

    def Fetch(self, request: pb.FetchRequest, context: Any) -> Iterator[pb.FetchResponse]:
        del context
        digest = hashlib.sha256()
        for part in request.ranges:
            data = CONTENT[part.offset : part.offset + part.length]
            digest.update(data)
            yield pb.FetchResponse(data=data)
        yield pb.FetchResponse(digest=b"" if self.changed else digest.digest())


@pytest.fixture
def server() -> Server:
    return Server()


@pytest.fixture
def serving(server: Server) -> Iterator[grpc.Server]:
    made = grpc.server(ThreadPoolExecutor(2))
    checkpoints_pb2_grpc.add_CheckpointServiceServicer_to_server(server, made)
    checkpoints_pb2_grpc.add_ShardServiceServicer_to_server(server, made)
    yield made
    made.stop(None).wait()


def test_this_hosts_server_is_waited_for_once(
    server: Server, serving: grpc.Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_link, "START_TIMEOUT", 0.2)
    link = ServerLink(str(tmp_path / "none.sock"), None)
    with pytest.raises(ServerLostError, match=r"this host's checkpoint server: .*DEADLINE_EXCEEDED"):
        link.reserve(CHECKPOINT, 1, 10, 12)
    with pytest.raises(ServerLostError, match=r"checkpoint server: it cannot be reached$"):  # at once
        link.reserve(CHECKPOINT, 1, 10, 12)
    monkeypatch.setattr(server_link, "START_TIMEOUT", 60.0)
    link = ServerLink(str(tmp_path / "c.sock"), None)
    with ThreadPoolExecutor(1) as thread:
        asked = thread.submit(link.reserve, CHECKPOINT, 1, 10, 12)
        serving.add_insecure_port(f"unix:{tmp_path / 'c.sock'}")
        serving.start()
        assert asked.result() == Reserved("/proc/1/fd/7", None, 100, 10)
    assert link.reserve(CHECKPOINT, 1, 101, 12) == Reserved("", Refusal.TOO_LARGE, 100, 10)
    link.commit(SHARD, 99)
    assert [(shard.checkpoint.round_id.n, shard.rank, shard.bytes) for shard in server.committed] == [(4, 1, 99)]
    with pytest.raises(ServerLostError, match="no memory is reserved for it"):
        link.commit(SHARD._replace(layout=b"other"), 99)
    assert link.open(SHARD) == "/proc/1/fd/8"
    assert link.open(SHARD._replace(rank=0)) is None


def test_another_hosts_server_and_the_worker_show_each_other_the_runs_certificate(
    server: Server, serving: grpc.Server, tmp_path: Path
) -> None:
    folder = tls_credentials(tmp_path / "ours")
    member, authority = (folder / MEMBER_FILE).read_bytes(), (folder / AUTHORITY_FILE).read_bytes()
    credentials = grpc.ssl_server_credentials([(member, member)], authority, require_client_auth=True)
    address = f"127.0.0.1:{serving.add_secure_port('127.0.0.1:0', credentials)}"
    serving.start()
    link = ServerLink(str(tmp_path / "c.sock"), folder)
    assert b"".join(link.fetch(address, SHARD, [(10, 5), (0, 2)])) == CONTENT[10:15] + CONTENT[:2]
    server.changed = True
    with pytest.raises(ServerLostError, match="was changed, or cut, on the way"):
        list(link.fetch(address, SHARD, [(10, 5)]))
    for stranger in (tls_credentials(tmp_path / "theirs", "other"), None):
        with pytest.raises(ServerLostError, match=r"cannot be reached|cannot be trusted"):
            list(ServerLink(str(tmp_path / "c.sock"), stranger).fetch(address, SHARD, [(10, 5)]))
