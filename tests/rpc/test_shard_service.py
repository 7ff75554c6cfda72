"""A checkpoint server's ShardService and its copies, in this process: readers that stand still or leave, orders that
change.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import pytest

from edriver.checkpoint_server.copies import Copier
from edriver.checkpoint_server.keeper import Keeper
from edriver.checkpoint_server.service import ShardServer, in_messages, shard_server
from edriver.checkpoint_server.shards import PAGE, ShardKey
from edriver.model.ids import RoundId
from edriver.model.memory_checkpoint import CheckpointId, Refusal, Shard, ShardCopy
from edriver.v1 import checkpoints_pb2 as pb
from edriver.v1 import checkpoints_pb2_grpc
from edriver.wire.checkpoints import checkpoint_id_message
from tests.checkpoint_servers import LAYOUT, worker, write
from tests.waiting import BOUND, until

SIZE = 32 << 20


def key(step: int) -> ShardKey:
    return ShardKey(CheckpointId(RoundId(1, 1), step, 2), 0)


@dataclass
class Served:
    """A host with memory for one shard, which it holds."""

    keeper: Keeper
    address: str
    fetch: Any

    def request(self) -> pb.FetchRequest:
        return pb.FetchRequest(
            shard=pb.Shard(checkpoint=checkpoint_id_message(key(10).checkpoint), rank=0, layout=LAYOUT)
        )

    def memory_for_another(self) -> bool:
        """Whether a writer gets its memory."""
        return isinstance(self.keeper.reserve(key(30), SIZE, os.getpid()), str)


@contextmanager
def served(standstill: float) -> Iterator[Served]:
    keeper = Keeper(SIZE)
    with worker() as writer:
        path = keeper.reserve(key(10), SIZE, writer.pid)
        assert isinstance(path, str)
        write(path, os.urandom(SIZE))
        keeper.commit(Shard(*key(10), LAYOUT, SIZE))
    server = shard_server(ShardServer(keeper, standstill=standstill), ())
    with tempfile.TemporaryDirectory(prefix="ed-") as folder:
        address = f"unix:{Path(folder, 's')}"
        server.add_insecure_port(address)
        server.start()
        with grpc.insecure_channel(address, (("grpc.max_receive_message_length", 2 << 20),)) as channel:
            yield Served(keeper, address, checkpoints_pb2_grpc.ShardServiceStub(channel).Fetch)
        server.stop(None).wait(BOUND)


def test_what_is_being_read_is_not_given_to_a_writer_until_the_reader_has_gone() -> None:
    with served(standstill=BOUND) as host:
        call = host.fetch(host.request(), timeout=BOUND)
        next(call)
        host.keeper.keep(key(20).checkpoint, [])
        assert not host.memory_for_another()
        call.cancel()
        until(host.memory_for_another, "the memory that nobody reads any more")


def test_a_reader_that_stands_still_loses_its_call() -> None:
    with served(standstill=0.1) as host:
        call = host.fetch(host.request(), timeout=BOUND)

        def stand_still() -> None:
            next(call)  # on a busy machine it may have lost it by now
            host.keeper.keep(key(20).checkpoint, [])
            until(host.memory_for_another, "the memory that nobody reads any more")
            list(call)

        with pytest.raises(grpc.RpcError):
            stand_still()
        assert call.code() is grpc.StatusCode.CANCELLED


def test_an_order_ends_a_copy_that_is_not_wanted_any_more() -> None:
    with served(standstill=BOUND) as host:
        keeper = Keeper(SIZE)
        copier = Copier(keeper, grpc.insecure_channel, bytes_per_second=1)
        copier.start()
        copier.order([ShardCopy(Shard(*key(10), LAYOUT, SIZE), host.address)])
        until(lambda: keeper.held().used == SIZE, "the beginning of the copy")
        assert keeper.reserve(key(20), SIZE, os.getpid()) is Refusal.BUSY
        copier.order([])
        until(lambda: isinstance(keeper.reserve(key(20), SIZE, os.getpid()), str), "the memory of the copy")
        assert keeper.held().shards == ()
        assert keeper.held().trouble == ""


def test_a_source_that_sends_nothing_is_named() -> None:
    with served(standstill=BOUND) as host:
        keeper = Keeper(SIZE)

        class Silent(checkpoints_pb2_grpc.ShardServiceServicer):
            def Fetch(self, request: pb.FetchRequest, context: grpc.ServicerContext) -> Iterator[pb.FetchResponse]:
                ended.wait_for_change(ended_before)
                yield from ()

        ended = Keeper(PAGE)
        ended_before = ended.wait_for_change(-1)
        server = shard_server(Silent(), ())  # type: ignore[arg-type]
        address = f"{host.address}2"
        server.add_insecure_port(address)
        server.start()
        copier = Copier(keeper, grpc.insecure_channel, standstill=0.1)
        copier.start()
        copier.order([ShardCopy(Shard(*key(10), LAYOUT, SIZE), address)])
        until(lambda: keeper.held().trouble, "the trouble")
        assert keeper.held().trouble == f"step 10, rank 0 could not be copied from {address}: nothing came for 0.1 s"
        copier.order([ShardCopy(Shard(*key(10), LAYOUT, SIZE), host.address)])
        until(lambda: keeper.held().shards, "the copy")
        assert keeper.held().trouble == ""
        ended.wake()
        server.stop(None).wait(BOUND)


def test_a_wrong_digest_is_no_copy() -> None:
    class Liar(ShardServer):
        def Fetch(self, request: pb.FetchRequest, context: grpc.ServicerContext) -> Iterator[pb.FetchResponse]:
            for answer in super().Fetch(request, context):
                if answer.data:
                    answer.data = answer.data[:-1] + bytes([answer.data[-1] ^ 1])
                yield answer

    with served(standstill=BOUND) as host:
        server = shard_server(Liar(host.keeper), ())
        address = f"{host.address}2"
        server.add_insecure_port(address)
        server.start()
        keeper = Keeper(SIZE)
        copier = Copier(keeper, lambda to: grpc.insecure_channel(to))
        copier.start()
        copier.order([ShardCopy(Shard(*key(10), LAYOUT, SIZE), address)])
        until(lambda: keeper.held().trouble.endswith("the digest of the bytes that came is not right"), keeper.held)
        assert keeper.held().shards == ()
        copier.order([])
        server.stop(None).wait(BOUND)


@pytest.mark.parametrize(
    ("ranges", "messages"),
    [
        pytest.param([], [], id="none"),
        pytest.param([(5, 0)], [], id="empty"),
        pytest.param([(0, 10)], [[(0, 10)]], id="one"),
        pytest.param([(0, 25)], [[(0, 10)], [(10, 10)], [(20, 5)]], id="cut"),
        pytest.param([(7, 3), (0, 4), (50, 6)], [[(7, 3), (0, 4), (50, 3)], [(53, 3)]], id="put-together"),
    ],
)
def test_messages_are_full(ranges: list[tuple[int, int]], messages: list[list[tuple[int, int]]]) -> None:
    assert list(in_messages(ranges, 10)) == messages
