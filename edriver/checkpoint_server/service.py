"""What a checkpoint server is asked: CheckpointService by the workers and the agent of its host, ShardService by the
servers and workers of other hosts.

The servers are gRPC's synchronous ones. The work is bytes: to read, hash and send 1 MiB takes a millisecond or more,
most of it outside the interpreter's lock. On an event loop that would stand in the way of a worker that waits in
Reserve or Commit inside its training loop; in threads it does not. The two services have separate threads, so that
readers of other hosts cannot use up those of this one. Threads that move bulk let training go first.

A reader that stops reading, or has gone without a word, loses its call after BoundedCall's time for each message.
"""

from __future__ import annotations

import concurrent.futures
import hashlib
import logging
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, NoReturn

import grpc
from google.protobuf.message import Message

from edriver.checkpoint_server.bulk import STANDSTILL, BoundedCall, let_training_go_first
from edriver.checkpoint_server.keeper import Held, Keeper
from edriver.checkpoint_server.shards import NotReservedError, ShardKey
from edriver.model.limits import OutOfBoundsError
from edriver.model.memory_checkpoint import CheckpointId, DiskWrite, Refusal, ShardCopy
from edriver.v1 import checkpoints_pb2 as pb
from edriver.v1 import checkpoints_pb2_grpc
from edriver.wire.checkpoints import (
    checkpoint_id_of,
    disk_report_message,
    disk_write_of,
    refusal_message,
    shard_message,
    shard_of,
)
from edriver.wire.grpc_streams import SERVER_OPTIONS
from edriver.wire.message_limits import check

MESSAGE_BYTES: Final = 1 << 20
"""Bytes of a shard in one message."""

MAX_FETCHES: Final = 16
"""Fetch calls that are served at a time; others wait,"""

MAX_WAITING_FETCHES: Final = 1024
"""and so many at most. More are refused."""

HOST_THREADS: Final = 16
"""Calls of this host that are served at a time, the agent's included."""

_log = logging.getLogger("edriver.checkpoint_server")


class CheckpointServer(checkpoints_pb2_grpc.CheckpointServiceServicer):
    """Serves this host.

    Args:
        keeper: what the host holds.
        order_copies: takes the copies that are to be made, in place of those before.
        order_disk: takes what is to be written to disk, in place of what was before.
        address: where ShardService listens.
        attached: set once the agent's stream is there.
        ended: set once it has ended.
    """

    def __init__(
        self,
        keeper: Keeper,
        order_copies: Callable[[Sequence[ShardCopy]], None],
        order_disk: Callable[[DiskWrite | None], None],
        address: str,
        attached: threading.Event,
        ended: threading.Event,
    ) -> None:
        self._keeper = keeper
        self._order_copies = order_copies
        self._order_disk = order_disk
        self._address = address
        self._attached = attached
        self._ended = ended
        self._attaching = threading.Lock()
        self._question = 0

    def Reserve(  # noqa: N802  gRPC's name
        self, request: pb.ReserveRequest, context: grpc.ServicerContext
    ) -> pb.ReserveResponse:
        _check(request, context)
        key = _key(request, context)
        try:
            found = self._keeper.reserve(key, request.bytes, request.pid)
        except (OSError, OverflowError) as error:
            _refuse_process(request.pid, error, context)
        held = self._keeper.held()
        if isinstance(found, Refusal):
            return pb.ReserveResponse(refusal=refusal_message(found), limit=held.limit, used=held.used)
        return pb.ReserveResponse(path=found, limit=held.limit, used=held.used)

    def Commit(  # noqa: N802
        self, request: pb.CommitRequest, context: grpc.ServicerContext
    ) -> pb.CommitResponse:
        _check(request, context)
        _key(request.shard, context)
        try:
            self._keeper.commit(shard_of(request.shard))
        except NotReservedError as error:
            context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(error))
        return pb.CommitResponse()

    def Open(self, request: pb.OpenRequest, context: grpc.ServicerContext) -> pb.OpenResponse:  # noqa: N802
        _check(request, context)
        try:
            found = self._keeper.open(_key(request.shard, context), request.shard.layout, request.pid)
        except (OSError, OverflowError) as error:
            _refuse_process(request.pid, error, context)
        if found is None:
            context.abort(grpc.StatusCode.NOT_FOUND, "this host does not hold the shard")
        return pb.OpenResponse(path=found[0], bytes=found[1])

    def Hold(  # noqa: N802
        self, request_iterator: Iterator[pb.HoldRequest], context: grpc.ServicerContext
    ) -> Iterator[pb.HoldResponse]:
        with self._attaching:
            if self._attached.is_set():
                context.abort(grpc.StatusCode.ALREADY_EXISTS, "this server has an agent already")
            self._attached.set()

        def over() -> None:
            self._ended.set()
            self._keeper.wake()

        if not context.add_callback(over):
            over()
        threading.Thread(target=self._take_orders, args=(request_iterator,), name="edriver-orders", daemon=True).start()
        seen, sent = -1, None
        while not self._ended.is_set():
            seen = self._keeper.wait_for_change(seen)
            question = self._question  # before `held`: the answer has all that was there when it came
            held = self._keeper.held()
            if (held, question) != sent:
                sent = held, question
                yield pb.HoldResponse(held=_held_message(held, self._address), answered=question)

    def _take_orders(self, requests: Iterator[pb.HoldRequest]) -> None:
        try:
            for request in requests:
                try:
                    check(request)
                    if request.HasField("keep"):
                        self._take_order(request.keep)
                except (OutOfBoundsError, ValueError) as error:
                    _log.error("an order of the agent is not valid: %s", error)
                self._question = request.question
                self._keeper.wake()
        except grpc.RpcError as error:
            _log.debug("the agent's stream has ended: %s", error)

    def _take_order(self, order: pb.KeepCheckpoints) -> None:
        newest, kept, copies = _order(order)
        self._keeper.keep(newest, kept)
        self._order_copies(copies)
        self._order_disk(disk_write_of(order))


class ShardServer(checkpoints_pb2_grpc.ShardServiceServicer):
    """Serves other hosts.

    Args:
        keeper: what the host holds.
        called: told each caller, by gRPC's name for it; None: it does not matter.
        standstill: seconds for which a reader may read nothing.
    """

    def __init__(
        self, keeper: Keeper, called: Callable[[str], None] | None = None, standstill: float = STANDSTILL
    ) -> None:
        self._keeper = keeper
        self._called = called
        self._standstill = standstill

    def Fetch(  # noqa: N802
        self, request: pb.FetchRequest, context: grpc.ServicerContext
    ) -> Iterator[pb.FetchResponse]:
        if self._called is not None:
            self._called(context.peer())
        _check(request, context)
        with self._keeper.reading(_key(request.shard, context), request.shard.layout) as found:
            if found is None:
                context.abort(grpc.StatusCode.NOT_FOUND, "this host does not hold the shard")
            descriptor, length = found
            ranges = [(each.offset, each.length) for each in request.ranges] or [(0, length)]
            if any(offset + count > length for offset, count in ranges):
                context.abort(grpc.StatusCode.OUT_OF_RANGE, f"the shard has {length} bytes")
            digest = hashlib.sha256()
            with BoundedCall(context.cancel, self._standstill) as bound:
                for parts in in_messages(ranges, MESSAGE_BYTES):
                    data = b"".join([os.pread(descriptor, count, offset) for offset, count in parts])
                    digest.update(data)
                    yield pb.FetchResponse(data=data)
                    bound.moved()
                yield pb.FetchResponse(digest=digest.digest())


def in_messages(ranges: Iterable[tuple[int, int]], size: int) -> Iterator[list[tuple[int, int]]]:
    """Parts of a file, cut and put together so that each message has `size` bytes, the last one fewer."""
    parts: list[tuple[int, int]] = []
    room = size
    for offset, length in ranges:
        while length:
            count = min(length, room)
            parts.append((offset, count))
            offset, length, room = offset + count, length - count, room - count
            if not room:
                yield parts
                parts, room = [], size
    if parts:
        yield parts


def host_server(service: CheckpointServer) -> grpc.Server:
    """A server for this host, which listens nowhere yet."""
    server = grpc.server(concurrent.futures.ThreadPoolExecutor(HOST_THREADS), options=SERVER_OPTIONS)
    checkpoints_pb2_grpc.add_CheckpointServiceServicer_to_server(service, server)
    return server


def shard_server(service: ShardServer, options: Iterable[tuple[str, int]]) -> grpc.Server:
    """A server for other hosts, which listens nowhere yet.

    Args:
        service: what it serves.
        options: more options of gRPC's.
    """
    server = grpc.server(
        concurrent.futures.ThreadPoolExecutor(MAX_FETCHES, initializer=let_training_go_first),
        options=(*SERVER_OPTIONS, *options),
        maximum_concurrent_rpcs=MAX_FETCHES + MAX_WAITING_FETCHES,
    )
    checkpoints_pb2_grpc.add_ShardServiceServicer_to_server(service, server)
    return server


def _check(request: Message, context: grpc.ServicerContext) -> None:
    try:
        check(request)
    except OutOfBoundsError as error:
        context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))


def _key(named: pb.Shard | pb.ReserveRequest, context: grpc.ServicerContext) -> ShardKey:
    try:
        return _key_of(named)
    except ValueError as error:
        context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))


def _key_of(named: pb.Shard | pb.ReserveRequest) -> ShardKey:
    if named.rank >= named.checkpoint.size:
        raise ValueError(f"rank {named.rank} of a checkpoint of {named.checkpoint.size} ranks does not exist")
    return ShardKey(checkpoint_id_of(named.checkpoint), named.rank)


def _refuse_process(pid: int, error: Exception, context: grpc.ServicerContext) -> NoReturn:
    context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"process {pid} cannot be watched: {error}")


def _order(message: pb.KeepCheckpoints) -> tuple[CheckpointId | None, list[CheckpointId], list[ShardCopy]]:
    """What an order says: the newest whole checkpoint, all to keep, and the copies to make.

    Raises:
        ValueError: it names what does not exist.
    """
    newest = checkpoint_id_of(message.newest) if message.HasField("newest") else None
    for each in message.copies:
        _key_of(each.shard)
    copies = [ShardCopy(shard_of(each.shard), each.address) for each in message.copies]
    kept = [*map(checkpoint_id_of, message.keep), *(copy.shard.checkpoint for copy in copies)]
    return newest, kept, copies


def _held_message(held: Held, address: str) -> pb.HostCheckpoints:
    return pb.HostCheckpoints(
        shards=map(shard_message, held.shards),
        address=address,
        used=held.used,
        limit=held.limit,
        trouble=held.trouble,
        disk=disk_report_message(held.disk),
    )
