"""Real checkpoint servers: what their workers write, what other hosts read, and what ends in the middle of it."""

from __future__ import annotations

import hashlib
import itertools
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import grpc
import pytest

from edriver.checkpoint_server.bulk import BULK_NICENESS
from edriver.checkpoint_server.copies import Copier
from edriver.checkpoint_server.keeper import Keeper
from edriver.checkpoint_server.main import MAX_UNAUTHENTICATED
from edriver.checkpoint_server.shards import key_of
from edriver.model.memory_checkpoint import Shard, ShardCopy
from edriver.v1 import checkpoints_pb2 as pb
from edriver.v1 import checkpoints_pb2_grpc
from edriver.wire.checkpoints import checkpoint_id_of
from tests.checkpoint_servers import (
    LAYOUT,
    PAGE,
    checkpoint,
    checkpoint_server,
    fetch,
    read,
    shard,
    worker,
    write,
)
from tests.torch.run_credentials import tls_credentials
from tests.waiting import BOUND, until

MIB = 1 << 20


def code_of(caught: pytest.ExceptionInfo[grpc.RpcError]) -> grpc.StatusCode:
    error = caught.value
    assert isinstance(error, grpc.Call)
    return error.code()


def data_of(size: int, seed: int = 1) -> bytes:
    return (hashlib.sha256(b"%d" % seed).digest() * (size // 32 + 1))[:size]


def test_a_shard_is_written_opened_and_fetched() -> None:
    data = data_of(3 * MIB + 77)
    with checkpoint_server(8 * MIB) as server, worker() as writer:
        server.save(10, 2, data, writer.pid)
        until(lambda: server.steps() == [(10, 2)], "the report")
        opened = server.here.Open(pb.OpenRequest(shard=shard(10, 2, 0), pid=os.getpid()))
        assert read(opened.path, opened.bytes) == data
        answers = list(fetch(server.held.address, shard(10, 2, 0)))
        assert b"".join(each.data for each in answers) == data
        assert [len(each.data) for each in answers] == [MIB, MIB, MIB, 77, 0]
        assert answers[-1].digest == hashlib.sha256(data).digest()
        assert server.held.limit == 8 * MIB
        spare = 3 * MIB + PAGE
        until(lambda: server.held.used == 3 * MIB + PAGE + spare, lambda: server.held)


def test_signals_that_end_all_of_a_job_leave_it_to_its_agent() -> None:
    with checkpoint_server() as server, worker() as writer:
        for number in (signal.SIGTERM, signal.SIGINT):
            os.kill(server.process.pid, number)
        server.save(10, 2, data_of(100), writer.pid)
        until(lambda: server.steps() == [(10, 2)], "the report")


def test_what_moves_bulk_lets_training_go_first() -> None:
    with checkpoint_server() as server, worker() as writer:
        usual = os.getpriority(os.PRIO_PROCESS, server.process.pid)
        assert usual == os.getpriority(os.PRIO_PROCESS, 0)
        less = min(19, usual + BULK_NICENESS)

        def lower() -> list[int]:
            threads = [int(each.name) for each in Path(f"/proc/{server.process.pid}/task").iterdir()]
            return [found for thread in threads if (found := os.getpriority(os.PRIO_PROCESS, thread)) != usual]

        until(lambda: lower() == [less] * 2, lower)  # those that make copies and spare buffers
        server.save(10, 2, data_of(100), writer.pid)
        list(fetch(server.held.address, shard(10, 2, 0)))
        until(lambda: lower() == [less] * 3, lower)


def test_a_question_is_answered_with_all_that_was_committed_before() -> None:
    with checkpoint_server() as server, worker() as writer:
        server.save(10, 2, data_of(100), writer.pid)
        server.orders.put(pb.HoldRequest(question=7))
        until(lambda: 7 in server.answered, lambda: server.answered)
        assert [each.rank for each in server.told[server.answered.index(7)].shards] == [2]
        server.orders.put(pb.HoldRequest(question=8))  # nothing has changed
        until(lambda: 8 in server.answered, lambda: server.answered)


def test_the_second_save_finds_memory_that_has_been_written_to() -> None:
    keeper, size = Keeper(8 * MIB), 3 * MIB
    first, second = (Shard(checkpoint_id_of(checkpoint(step)), 2, LAYOUT, size) for step in (10, 20))
    with worker() as writer:
        assert isinstance(keeper.reserve(key_of(first), size, writer.pid), str)
        keeper.commit(first)
        keeper.prepare_spares()
        keeper.prepare_spares()  # one is enough
        assert keeper.held().used == 2 * size
        path = keeper.reserve(key_of(second), size, writer.pid)
        assert isinstance(path, str)
        assert Path(path).stat().st_blocks * 512 == size


def test_parts_of_a_shard_come_in_the_order_asked_for() -> None:
    data = data_of(2 * MIB)
    with checkpoint_server(8 * MIB) as server, worker() as writer:
        server.save(10, 2, data, writer.pid)
        answers = list(fetch(server.held.address, shard(10, 2, 0), [(MIB + 5, MIB - 5), (3, 4), (0, 0), (9, 1)]))
        wanted = data[MIB + 5 :] + data[3:7] + data[9:10]
        assert [each.data for each in answers] == [wanted, b""]
        assert answers[-1].digest == hashlib.sha256(wanted).digest()


@pytest.mark.parametrize(
    ("wanted", "ranges", "code"),
    [
        pytest.param(shard(10, 1, 0), (), grpc.StatusCode.NOT_FOUND, id="another-rank"),
        pytest.param(pb.Shard(checkpoint=checkpoint(10), layout=b"other"), (), grpc.StatusCode.NOT_FOUND, id="layout"),
        pytest.param(shard(10, 0, 0), [(90, 11)], grpc.StatusCode.OUT_OF_RANGE, id="beyond-its-end"),
        pytest.param(shard(10, 4, 0), (), grpc.StatusCode.INVALID_ARGUMENT, id="rank"),
    ],
)
def test_what_cannot_be_fetched(wanted: pb.Shard, ranges: list[tuple[int, int]], code: grpc.StatusCode) -> None:
    with checkpoint_server() as server, worker() as writer:
        server.save(10, 0, data_of(100), writer.pid)
        with pytest.raises(grpc.RpcError) as caught:
            list(fetch(server.held.address, wanted, ranges))
        assert code_of(caught) is code


def test_what_is_not_valid_is_refused() -> None:
    with checkpoint_server() as server:
        for method, request in (
            (server.here.Reserve, pb.ReserveRequest(checkpoint=checkpoint(1), rank=9, bytes=1, pid=os.getpid())),
            (server.here.Reserve, pb.ReserveRequest(checkpoint=checkpoint(1), bytes=1, pid=2**31)),
            (server.here.Reserve, pb.ReserveRequest(checkpoint=checkpoint(1), bytes=1)),
            (server.here.Commit, pb.CommitRequest(shard=pb.Shard(checkpoint=checkpoint(1), layout=b"x" * 2000))),
        ):
            with pytest.raises(grpc.RpcError) as caught:
                method(request, timeout=BOUND)
            assert code_of(caught) is grpc.StatusCode.INVALID_ARGUMENT
        with pytest.raises(grpc.RpcError) as caught:
            server.here.Commit(pb.CommitRequest(shard=shard(1, 0, 1)), timeout=BOUND)
        assert code_of(caught) is grpc.StatusCode.FAILED_PRECONDITION


def test_a_worker_killed_before_it_commits_leaves_no_shard() -> None:
    with checkpoint_server(2 * PAGE) as server, worker() as other:
        with worker() as writer:
            server.save(10, 0, b"old", writer.pid)
            write(server.reserve(20, 0, PAGE, writer.pid).path, b"half")
            assert server.reserve(20, 1, PAGE, other.pid).refusal == pb.REFUSAL_BUSY
        until(lambda: server.reserve(20, 1, PAGE, other.pid).path, "the memory of the process that has ended")
        until(lambda: server.steps() == [(10, 0)], lambda: server.held)
        with pytest.raises(grpc.RpcError) as caught:
            server.here.Commit(pb.CommitRequest(shard=shard(20, 0, 4)), timeout=BOUND)
        assert code_of(caught) is grpc.StatusCode.FAILED_PRECONDITION
        with pytest.raises(grpc.RpcError) as caught:
            server.here.Open(pb.OpenRequest(shard=shard(20, 0, 0), pid=other.pid), timeout=BOUND)
        assert code_of(caught) is grpc.StatusCode.NOT_FOUND


def test_the_memory_of_a_stopped_writer_is_not_given_away() -> None:
    with checkpoint_server(PAGE) as server, worker() as stopped, worker() as other:
        assert server.reserve(10, 0, PAGE, stopped.pid).path
        stopped.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, stopped.pid, os.WSTOPPED | os.WNOWAIT)
        refused = server.reserve(10, 0, PAGE, other.pid, n=2)
        assert (refused.refusal, refused.path) == (pb.REFUSAL_BUSY, "")
        stopped.kill()
        until(lambda: server.reserve(10, 0, PAGE, other.pid, n=2).path, "the memory of the process that has ended")


def test_the_memory_limit_holds() -> None:
    with checkpoint_server(3 * PAGE) as server, worker() as writer:
        assert server.reserve(10, 0, 3 * PAGE + 1, writer.pid).refusal == pb.REFUSAL_TOO_LARGE
        server.save(10, 0, data_of(PAGE), writer.pid)
        server.save(20, 0, data_of(PAGE), writer.pid)
        refused = server.reserve(30, 0, 2 * PAGE, writer.pid)
        assert (refused.refusal, refused.limit) == (pb.REFUSAL_BUSY, 3 * PAGE)
        assert refused.used in (2 * PAGE, 3 * PAGE), "there may be a spare buffer"
        server.order(checkpoint(20), [checkpoint(20)])
        until(lambda: server.steps() == [(20, 0)], "the order's effect")
        answer = server.reserve(30, 0, 2 * PAGE, writer.pid)
        assert (bool(answer.path), answer.used) == (True, 3 * PAGE)
        assert server.reserve(20, 0, PAGE, writer.pid).refusal == pb.REFUSAL_COMMITTED
        assert server.reserve(10, 0, PAGE, writer.pid).refusal == pb.REFUSAL_OUTDATED


def test_a_path_never_means_other_memory() -> None:
    """A worker keeps its mappings, and knows them by their paths."""
    with checkpoint_server(8 * PAGE) as server, worker() as writer:
        paths = []
        for step in range(1, 9):  # each needs a larger buffer than those before, which make room for it
            paths.append(server.save(step, 0, data_of(PAGE * step), writer.pid))
            until(server.steps, "the report")
            server.order(checkpoint(step, size=5), [])
            until(lambda: not server.steps(), "the order's effect")
        assert len(set(paths)) == 8


def test_a_copy_is_made_and_keeps_the_shard_when_its_source_dies() -> None:
    data = data_of(5 * MIB + 1)
    with checkpoint_server(8 * MIB) as target, worker() as writer:
        with checkpoint_server(8 * MIB) as source:
            source.save(10, 2, data, writer.pid)
            target.order(checkpoint(5), [checkpoint(5)], [(shard(10, 2, len(data)), source.held.address)])
            until(lambda: target.steps() == [(10, 2)], lambda: target.held)
        [copied] = target.held.shards
        assert copied.copy
        assert target.held.trouble == ""
        opened = target.here.Open(pb.OpenRequest(shard=shard(10, 2, 0), pid=os.getpid()))
        assert read(opened.path, opened.bytes) == data


def test_a_source_that_is_killed_in_the_middle_is_named_and_another_is_tried() -> None:
    data, wanted = data_of(8 * MIB), Shard(checkpoint_id_of(checkpoint(10)), 2, LAYOUT, 8 * MIB)
    some, killed = threading.Event(), threading.Event()
    told = itertools.count()

    def clock() -> float:
        """Asked when a call begins, and after each message."""
        if next(told) == 5:
            some.set()
            assert killed.wait(BOUND)
        return time.monotonic()

    def little_ahead(address: str) -> grpc.Channel:
        """A channel that does not take in the rest of a shard while its reader waits."""
        return grpc.insecure_channel(address, (("grpc.http2.bdp_probe", 0), ("grpc.http2.lookahead_bytes", 1 << 16)))

    keeper = Keeper(16 * MIB)
    copier = Copier(keeper, little_ahead, clock=clock)
    with checkpoint_server(16 * MIB) as source, checkpoint_server(16 * MIB) as other, worker() as writer:
        source.save(10, 2, data, writer.pid)
        other.save(10, 2, data, writer.pid)
        copier.start()
        copier.order([ShardCopy(wanted, source.held.address)])
        assert some.wait(BOUND)
        os.kill(source.process.pid, signal.SIGKILL)
        killed.set()
        until(lambda: keeper.held().trouble, "the trouble")
        assert keeper.held().trouble.startswith(f"step 10, rank 2 could not be copied from {source.held.address}: ")
        assert keeper.held().shards == ()
        copier.order([ShardCopy(wanted, other.held.address)])
        until(lambda: keeper.held().shards == (replace(wanted, copy=True),), keeper.held)
        assert keeper.held().trouble == ""
        with keeper.reading(key_of(wanted), LAYOUT) as found:
            assert found is not None
            assert os.pread(found[0], found[1], 0) == data
        copier.order([])


@pytest.mark.parametrize(
    ("length", "memory", "reason"),
    [
        pytest.param(99, 64 * PAGE, "it sent more bytes than the shard has", id="longer"),
        pytest.param(101, 64 * PAGE, "it sent 100 bytes, and the shard has 101", id="shorter"),
        pytest.param(2 * PAGE, PAGE, "it does not fit into the memory", id="too-large"),
    ],
)
def test_a_copy_that_is_not_right_is_none(length: int, memory: int, reason: str) -> None:
    with checkpoint_server(memory) as target, checkpoint_server() as source, worker() as writer:
        source.save(10, 2, data_of(100), writer.pid)
        target.order(None, [], [(shard(10, 2, length), source.held.address)])
        until(lambda: reason in target.held.trouble, lambda: target.held)
        assert target.steps() == []
        target.order()
        until(lambda: not target.held.trouble, "the end of the trouble")


def test_between_hosts_only_members_of_the_run_are_served(tmp_path: Path) -> None:
    run, stranger = tls_credentials(tmp_path / "run"), tls_credentials(tmp_path / "stranger")
    data = data_of(100)
    with (
        checkpoint_server(address="127.0.0.1", tls=run) as source,
        checkpoint_server(address="127.0.0.1", tls=run) as target,
        worker() as writer,
    ):
        source.save(10, 2, data, writer.pid)
        address = source.held.address
        assert address.startswith("127.0.0.1:")
        with pytest.raises(grpc.RpcError) as caught:
            list(fetch(address, shard(10, 2, 0), tls=stranger))
        assert code_of(caught) is grpc.StatusCode.UNAVAILABLE
        request = pb.FetchRequest(shard=shard(10, 2, 0))
        authority = (run / "authority.pem").read_bytes()  # it trusts the server, and shows nothing itself
        options = (("grpc.ssl_target_name_override", "member.edriver"),)
        with grpc.secure_channel(address, grpc.ssl_channel_credentials(authority), options) as channel:
            with pytest.raises(grpc.RpcError) as caught:
                next(checkpoints_pb2_grpc.ShardServiceStub(channel).Fetch(request, timeout=BOUND))
            assert code_of(caught) is grpc.StatusCode.UNAVAILABLE
        with grpc.insecure_channel(address) as channel, pytest.raises(grpc.RpcError) as caught:
            next(checkpoints_pb2_grpc.ShardServiceStub(channel).Fetch(request, timeout=BOUND))
        assert code_of(caught) is grpc.StatusCode.UNAVAILABLE
        assert b"".join(each.data for each in fetch(address, shard(10, 2, 0), tls=run)) == data
        target.order(None, [], [(shard(10, 2, len(data)), address)])
        until(lambda: target.steps() == [(10, 2)], lambda: target.held)


def test_strangers_who_say_nothing_are_hung_up_on_when_there_are_too_many(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    run = tls_credentials(tmp_path / "run")
    with checkpoint_server(address="127.0.0.1", tls=run) as server, worker() as writer, ExitStack() as strangers:
        server.save(10, 2, b"data", writer.pid)
        host, _, port = server.held.address.rpartition(":")
        first = strangers.enter_context(socket.create_connection((host, int(port))))
        first.settimeout(BOUND)
        for _ in range(MAX_UNAUTHENTICATED + 20):
            strangers.enter_context(socket.create_connection((host, int(port))))
        assert until(lambda: not first.recv(1 << 16), "the end of the oldest")
        said: list[str] = []

        def named() -> bool:
            said.append(capfd.readouterr().err)
            return "showed no certificate" in "".join(said)

        until(named, "the line", bound=30)  # what ended it was not its time
        assert b"".join(each.data for each in fetch(server.held.address, shard(10, 2, 0), tls=run)) == b"data"


def test_it_ends_with_its_agents_stream_and_leaves_no_file() -> None:
    with checkpoint_server() as server, worker() as writer:
        server.save(10, 0, data_of(100), writer.pid)
        server.orders.put(None)
        server.channel.close()
        assert server.process.wait(BOUND) == 0
        assert list(server.folder.iterdir()) == []


def test_a_second_agent_is_refused() -> None:
    with checkpoint_server() as server:
        with pytest.raises(grpc.RpcError) as caught:
            next(server.here.Hold(iter(()), timeout=BOUND))
        assert code_of(caught) is grpc.StatusCode.ALREADY_EXISTS
        assert server.process.poll() is None


def test_a_port_without_credentials_is_refused() -> None:
    text = b'{"folder": "/nowhere", "address": "127.0.0.1"}'
    done = subprocess.run(
        [sys.executable, "-m", "edriver.checkpoint_server"], input=text, capture_output=True, timeout=BOUND, check=False
    )
    assert done.returncode == 1
    assert b"only with the run's TLS credentials" in done.stderr


def test_what_it_imports_is_little() -> None:
    heavy = "{'torch', 'numpy', 'psutil', 'rich', 'edriver.driver', 'edriver.agent', 'cryptography'}"
    program = f"""
import sys, edriver.checkpoint_server.main, edriver.checkpoint_server.service
sys.exit(', '.join({heavy} & sys.modules.keys()) or 0)
"""
    assert subprocess.run([sys.executable, "-c", program], timeout=BOUND, check=False).returncode == 0
