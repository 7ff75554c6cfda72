"""What the ends of gRPC links have in common: their options, how a stream breaks, how a channel finds its way back."""

from __future__ import annotations

import asyncio
import urllib.parse
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import grpc
import grpc.aio

NO_BANDWIDTH_PROBE = (("grpc.http2.bdp_probe", 0),)
"""For channels and servers: every message would be followed by a ping in each direction, to measure a link that carries
a handful a second. On two cores that took 1 % of the training speed."""

CHANNEL_OPTIONS = (
    *NO_BANDWIDTH_PROBE,
    # A driver or a worker is reached directly: a proxy for the web has no part in it.
    ("grpc.enable_http_proxy", 0),
    # gRPC would wait for 1 s, then up to 2 minutes, before it connects again, and for 20 s on one attempt. Survivors
    # may wait for the next driver, so an agent looks for one ten times a second, which takes it 1 % of a core.
    ("grpc.initial_reconnect_backoff_ms", 100),  # gRPC takes no less
    ("grpc.min_reconnect_backoff_ms", 1000),
    ("grpc.max_reconnect_backoff_ms", 100),
)

BULK_CHANNEL_OPTIONS = tuple(option for option in CHANNEL_OPTIONS if option not in NO_BANDWIDTH_PROBE)
"""For channels that receive many bytes. Without its probe gRPC takes 64 KiB for each round trip at most."""

SILENT_PEER_OPTIONS = (
    ("grpc.keepalive_time_ms", 2000),
    ("grpc.keepalive_timeout_ms", 2000),
    # Newer versions of gRPC wait for the longer of the two, and this is 60 s if it is not set.
    ("grpc.http2.ping_timeout_ms", 2000),
)
"""For the channel to a driver that others may replace: after four seconds without a word, be its machine gone or its
process stopped, the connection is broken, and the others are looked for. Drivers speak once a second; in a large
run they speak less often, and are asked."""

SILENT_PEER_SERVER_OPTIONS = (("grpc.http2.min_ping_interval_without_data_ms", 1000),)
"""For the servers of such channels: gRPC takes frequent pings for abuse."""


MAX_MESSAGE_BYTES: Final = 16 * 1024 * 1024
"""Bytes of the largest message either side takes: an assignment of thousands of ranks, with room to spare."""

SERVER_OPTIONS: Final = (
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.so_reuseport", 0),
    *NO_BANDWIDTH_PROBE,
    *SILENT_PEER_SERVER_OPTIONS,
)
"""For the servers of the driver and of a rendezvous."""


def address_of(peer: str) -> str:
    """The network address in what gRPC calls a peer (ipv4:10.0.0.1:50, ipv6:%5B::1%5D:50); empty for a unix socket."""
    family, _, where = peer.partition(":")
    return urllib.parse.unquote(where).rpartition(":")[0].strip("[]") if family in ("ipv4", "ipv6") else ""


class StreamBrokenError(ConnectionError):
    """A stream has ended otherwise than in order.

    Attributes:
        code: the status that gRPC gives as the reason.
    """

    def __init__(self, code: grpc.StatusCode, details: str) -> None:
        super().__init__(f"{code.name}: {details}")
        self.code = code


@contextmanager
def stream_errors() -> Iterator[None]:
    """For reads and writes of a stream: turns all errors with which gRPC reports a broken stream into one.

    Raises:
        StreamBrokenError: the stream has ended with an error.
    """
    try:
        yield
    except grpc.aio.AioRpcError as error:
        raise StreamBrokenError(error.code(), error.details() or "") from None
    except asyncio.InvalidStateError as error:
        raise StreamBrokenError(grpc.StatusCode.UNKNOWN, str(error)) from None
    except asyncio.CancelledError:
        # gRPC raises this too when the *other* side ends a stream as cancelled; only our own cancellation may pass.
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise
        raise StreamBrokenError(grpc.StatusCode.CANCELLED, "the other side has cancelled the stream") from None
