"""How a watch that was cut off continues: it reconnects, for a while, from the last event received."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any, Final, TypedDict

import grpc
import grpc.aio
import tenacity
from tenacity.retry import retry_base
from tenacity.stop import stop_base
from tenacity.wait import wait_base

from edriver.v1 import status_pb2

REDIAL_TIMEOUT: Final = 30.0
"""Seconds for which a watcher that was cut off tries to reach the driver again."""


class Policy(TypedDict):
    """Tenacity's arguments."""

    retry: retry_base
    wait: wait_base
    stop: stop_base
    reraise: bool


class Watching(stop_base):
    """The position of a watch in the events, and the condition for giving it up.

    Args:
        since: the number of the last known event.
        progress: whether the driver should also send the progress.
        clock: a monotonic clock, in seconds.

    Attributes:
        over: whether the run has ended. The watch need not wait for the stream's end, since the driver ends too.
    """

    def __init__(self, since: int, progress: bool, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._seq = since
        self.over = False
        self._progress = progress
        self._last_received = self._clock()

    @property
    def request(self) -> status_pb2.WatchRequest:
        """The request that continues the watch."""
        return status_pb2.WatchRequest(since=self._seq, progress=self._progress, reads_more=True)

    @property
    def policy(self) -> Policy:
        """The policy for reconnecting."""
        return Policy(
            retry=tenacity.retry_if_exception(is_cut_off), wait=tenacity.wait_random(0.05, 0.5), stop=self, reraise=True
        )

    def parts_of(self, response: status_pb2.WatchResponse) -> Iterator[status_pb2.WatchResponse]:
        """Yield the events or the progress of this message, one by one, and continue the watch after each.

        The time limit restarts after each, too: how long a caller takes for it is not the driver's silence.
        """
        more = list(response.more)
        response.ClearField("more")
        for each in (response, *(status_pb2.WatchResponse(event=event) for event in more)):
            self._seq = each.event.seq or self._seq
            self.over = each.event.HasField("run_ended")
            self._last_received = self._clock()
            yield each
            self._last_received = self._clock()

    def __call__(self, _state: tenacity.RetryCallState) -> bool:
        """Whether the driver has been silent for longer than the time limit, so that the watch gives up."""
        return self._clock() - self._last_received > REDIAL_TIMEOUT


class Redialling(tenacity.Retrying):
    """Retries a watch that one thread may begin and another continue.

    Tenacity keeps its statistics per thread, and raises a KeyError in a thread that did not begin the retries.
    """

    @property
    def statistics(self) -> dict[str, Any]:
        """The statistics of this watch, from whichever thread."""
        counts: dict[str, Any] = self.__dict__.setdefault("counts", {})
        return counts


def is_cut_off(error: BaseException) -> bool:
    """Whether a call failed for lack of a connection."""
    return isinstance(error, grpc.aio.AioRpcError | grpc.Call) and error.code() is grpc.StatusCode.UNAVAILABLE
