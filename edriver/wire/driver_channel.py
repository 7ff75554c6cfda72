"""How agents and clients open a channel to the driver, or to a rendezvous server: at one of its addresses, with TLS
under its authority and a token, or at a unix socket.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Sequence
from typing import Final, TypeVar

import grpc

from edriver.common.join_config import SERVER_NAME, JoinConfig, at_port

RESOLVE_TIMEOUT: Final = 5.0
"""How long looking up the driver's names may take, if one of its addresses is known."""

RENDEZVOUS_OPTIONS: Final = (
    ("grpc.enable_http_proxy", 0),
    ("grpc.max_receive_message_length", 64 * 1024 * 1024),
    ("grpc.max_send_message_length", 64 * 1024 * 1024),
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.min_reconnect_backoff_ms", 1000),
    ("grpc.max_reconnect_backoff_ms", 1000),
)

Channel = TypeVar("Channel")


def open_channel(
    target: str,
    authority: str,
    token: str,
    options: tuple[tuple[str, int], ...],
    insecure: Callable[..., Channel],
    secure: Callable[..., Channel],
) -> Channel:
    """A channel to a run's driver.

    Args:
        target: gRPC's name for where the driver is.
        authority: the certificate (PEM) that verifies it; empty: it is reached by a unix socket, without TLS.
        token: the token to authenticate with.
        options: the channel's.
        insecure: `insecure_channel` of grpc or of grpc.aio,
        secure: and `secure_channel` of the same.
    """
    if not authority:
        return insecure(target, options=options)
    credentials = grpc.composite_channel_credentials(
        grpc.ssl_channel_credentials(authority.encode()), grpc.access_token_call_credentials(token)
    )
    return secure(target, credentials, options=(*options, ("grpc.ssl_target_name_override", SERVER_NAME)))


def rendezvous_channel(target: str, credentials: JoinConfig) -> grpc.Channel:
    """A channel to a server of `edriver rendezvous`.

    Args:
        target: HOST:PORT.
        credentials: what the server and its clients know one another by.
    """
    return open_channel(
        target, credentials.authority, credentials.token, RENDEZVOUS_OPTIONS, grpc.insecure_channel, grpc.secure_channel
    )


def target_of(drivers: Sequence[str]) -> str:
    """All addresses of the driver as one target of gRPC's, which tries them in their order.

    gRPC takes several only if all of them are numbers of one family; of others the first kind is taken.

    Raises:
        ValueError: `drivers` is empty.
    """
    if not drivers:
        raise ValueError("the join config contains none of the driver's addresses")
    if drivers[0].startswith("unix:"):
        return drivers[0]
    found: dict[str, list[str]] = {"ipv4": [], "ipv6": []}
    for family, where in _look_up(drivers):
        found["ipv4" if family == socket.AF_INET else "ipv6"].append(where)
    first = max(found, key=lambda kind: (bool(found[kind]), drivers[0] in found[kind]))
    if not found[first]:
        raise ValueError(f"none of the driver's addresses can be resolved here: {', '.join(drivers)}")
    return f"{first}:{','.join(dict.fromkeys(found[first]))}"


def _look_up(drivers: Sequence[str]) -> list[tuple[int, str]]:
    """What these come to in numbers: families, and addresses with ports.

    A name that is not known here may take a name server minutes; it is not waited for if there is anything else.
    """
    found: list[list[tuple[int, str]]] = [[] for _ in drivers]

    def look(driver: str, into: list[tuple[int, str]]) -> None:
        host, _, port = driver.rpartition(":")
        with contextlib.suppress(OSError, UnicodeError):
            for family, _, _, _, where in socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_STREAM):
                into.append((family, at_port(str(where[0]), int(port))))

    lookups = [threading.Thread(target=look, args=task, daemon=True) for task in zip(drivers, found, strict=True)]
    for lookup in lookups:
        lookup.start()
    deadline = time.monotonic() + RESOLVE_TIMEOUT
    for lookup in lookups:
        lookup.join(max(0.0, deadline - time.monotonic()))
    if not any(found):
        for lookup in lookups:
            lookup.join()
    return [where for some in found for where in some]
