"""How agents and clients open a channel to the driver: TLS under the run's authority with a token, or a unix socket."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import grpc

from edriver.common.join_config import SERVER_NAME

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
