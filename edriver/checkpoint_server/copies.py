"""Copies of other hosts' shards: one after the other, in a thread that lets training go first.

A copy counts once all of its bytes are here and their digest is right. What fails is tried again after growing pauses,
until it is made or another order does not want it any more.
"""

from __future__ import annotations

import hashlib
import math
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

import grpc

from edriver.checkpoint_server.bulk import STANDSTILL, BoundedCall, let_training_go_first
from edriver.checkpoint_server.keeper import Keeper, sentence, write_all
from edriver.model.memory_checkpoint import Refusal, ShardCopy
from edriver.v1 import checkpoints_pb2 as pb
from edriver.v1 import checkpoints_pb2_grpc
from edriver.wire.checkpoints import shard_message

FIRST_PAUSE: Final = 1.0
"""Seconds until a copy that has failed is tried again; twice as many after each failure,"""

LONGEST_PAUSE: Final = 60.0
"""and at most so many."""

_REFUSALS: Final = {
    Refusal.TOO_LARGE: "it does not fit into the memory that checkpoints may use on this host",
    Refusal.BUSY: "the memory that checkpoints may use on this host is taken by others that must be kept",
}


class CopyError(Exception):
    """A copy cannot be made now; the message says why."""


@dataclass(slots=True)
class _Attempt:
    """What becomes of a copy.

    Attributes:
        at: when it is tried next.
        pause: seconds before that.
        trouble: why it failed the last time; empty: it has not.
    """

    at: float = -math.inf
    pause: float = 0.0
    trouble: str = ""


class Copier:
    """Makes copies.

    Args:
        keeper: what the host holds.
        channel_to: opens a channel to an address; raises ValueError or OSError if that cannot be done.
        bytes_per_second: how many are received at most.
        standstill: seconds for which nothing may come.
        clock: the time, in seconds.
    """

    def __init__(
        self,
        keeper: Keeper,
        channel_to: Callable[[str], grpc.Channel],
        bytes_per_second: float = math.inf,
        standstill: float = STANDSTILL,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._keeper = keeper
        self._channel_to = channel_to
        self._bytes_per_second = bytes_per_second
        self._standstill = standstill
        self._clock = clock
        self._changed = threading.Condition()
        self._wanted: dict[ShardCopy, _Attempt] = {}
        self._current: ShardCopy | None = None
        self._call: Any = None

    def start(self) -> None:
        """Begin, in a thread that ends with the process."""
        threading.Thread(target=self._run, name="edriver-copies", daemon=True).start()

    def order(self, copies: Sequence[ShardCopy]) -> None:
        """Make these copies, in this order, and no others any more."""
        with self._changed:
            before = self._wanted
            self._wanted = {
                copy: _Attempt(trouble=before[copy].trouble) if copy in before else _Attempt() for copy in copies
            }
            if self._call is not None and self._current not in self._wanted:
                self._call.cancel()
            self._say()
            self._changed.notify_all()

    def _run(self) -> None:
        let_training_go_first()
        while True:
            copy = self._next()
            trouble = ""
            try:
                self._make(copy)
            except CopyError as error:
                trouble = _sentence(copy, str(error))
            except Exception as error:  # noqa: BLE001  the thread goes on: other copies may be possible
                trouble = _sentence(copy, f"{type(error).__name__}: {error}")
            self._note(copy, trouble)

    def _next(self) -> ShardCopy:
        """Wait until a copy is to be made."""
        with self._changed:
            while True:
                now = self._clock()
                for copy, attempt in self._wanted.items():
                    if attempt.at <= now:
                        self._current = copy
                        return copy
                first = min((attempt.at for attempt in self._wanted.values()), default=None)
                self._changed.wait(None if first is None else first - now)

    def _note(self, copy: ShardCopy, trouble: str) -> None:
        with self._changed:
            self._current = self._call = None
            attempt = self._wanted.get(copy)
            if attempt is None:
                return  # it is not wanted any more
            attempt.trouble = trouble
            if trouble:
                attempt.pause = min(2 * attempt.pause or FIRST_PAUSE, LONGEST_PAUSE)
                attempt.at = self._clock() + attempt.pause
            else:
                del self._wanted[copy]
            self._say()

    def _say(self) -> None:
        self._keeper.say(next((each.trouble for each in self._wanted.values() if each.trouble), ""))

    def _make(self, copy: ShardCopy) -> None:
        with self._keeper.receiving(copy.shard) as memory:
            if memory is Refusal.COMMITTED:
                return
            if isinstance(memory, Refusal):
                raise CopyError(_REFUSALS[memory])
            try:
                with self._channel_to(copy.address) as channel:
                    self._receive(copy, memory, channel)
            except (ValueError, OSError) as error:
                raise CopyError(str(error)) from None

    def _receive(self, copy: ShardCopy, memory: int, channel: grpc.Channel) -> None:
        """Read a shard into memory.

        Raises:
            CopyError: it is not here, complete.
        """
        request = pb.FetchRequest(shard=shard_message(copy.shard))
        call: Any = checkpoints_pb2_grpc.ShardServiceStub(channel).Fetch(request)
        with self._changed:
            self._call = call
            if copy not in self._wanted:
                call.cancel()
        digest, told, received, began = hashlib.sha256(), b"", 0, self._clock()
        with BoundedCall(call.cancel, self._standstill) as bound:
            try:
                for answer in call:
                    if received + len(answer.data) > copy.shard.nbytes:
                        raise CopyError("it sent more bytes than the shard has")
                    write_all(memory, answer.data, received)
                    digest.update(answer.data)
                    received += len(answer.data)
                    told = answer.digest or told
                    bound.moved()
                    self._pace(copy, received, began)
            except grpc.RpcError as error:
                raise CopyError(_reason(error, bound.is_over, self._standstill)) from None
            finally:
                call.cancel()
        if received != copy.shard.nbytes:
            raise CopyError(f"it sent {received} bytes, and the shard has {copy.shard.nbytes}")
        if told != digest.digest():
            raise CopyError("the digest of the bytes that came is not right")

    def _pace(self, copy: ShardCopy, received: int, began: float) -> None:
        """Wait, if bytes came faster than they may, or until the copy is not wanted any more."""
        ahead = received / self._bytes_per_second - (self._clock() - began)
        if ahead > 0:
            with self._changed:
                self._changed.wait_for(lambda: copy not in self._wanted, ahead)


def _reason(error: grpc.RpcError, stood_still: bool, standstill: float) -> str:
    if stood_still:
        return f"nothing came for {standstill:g} s"
    if not isinstance(error, grpc.Call):
        return "the call failed"
    with suppress(KeyError):
        return {
            grpc.StatusCode.UNAVAILABLE: "it cannot be reached",
            grpc.StatusCode.NOT_FOUND: "it does not hold the shard any more",
            grpc.StatusCode.RESOURCE_EXHAUSTED: "it has too many readers",
        }[error.code()]
    return f"{error.details()} ({error.code().name})"


def _sentence(copy: ShardCopy, reason: str) -> str:
    step, rank = copy.shard.checkpoint.step, copy.shard.rank
    return sentence(f"step {step}, rank {rank} could not be copied from {copy.address}: {reason}")
