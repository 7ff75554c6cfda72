"""Calls of one rendezvous server, repeated while it is away: a restart of it must end no training."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Final

import grpc
from torch.distributed.elastic.rendezvous.api import RendezvousConnectionError, RendezvousError, RendezvousStateError

from edriver.common.join_config import JoinConfig
from edriver.v1 import rendezvous_pb2_grpc
from edriver.wire.driver_channel import rendezvous_channel

ATTEMPT_TIMEOUT: Final = 10.0
"""Seconds that a server may take to answer a call that waits for nothing."""

RETRY_DELAY: Final = 0.1
"""Seconds between two tries."""

_AWAY: Final = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.CANCELLED)
_REFUSED: Final = (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED)


class RendezvousClient:
    """A channel to a server. All threads of a process may use it.

    Args:
        target: HOST:PORT.
        credentials: what the server knows its clients by, and they it.

    Attributes:
        target: as given.
        rendezvous: RendezvousService's methods.
        store: StoreService's.
    """

    def __init__(self, target: str, credentials: JoinConfig) -> None:
        self.target = target
        self._channel = rendezvous_channel(target, credentials)
        self.rendezvous = rendezvous_pb2_grpc.RendezvousServiceStub(self._channel)
        self.store = rendezvous_pb2_grpc.StoreServiceStub(self._channel)

    def close(self) -> None:
        """Close the channel; calls that are under way raise RendezvousConnectionError."""
        self._channel.close()

    def call(self, method: Callable[..., Any], request: object, limit: float, wait: bool = False) -> Any:
        """Make a call, again and again while the server is away.

        Args:
            method: of one of the services.
            request: what is sent.
            limit: seconds for all tries; 0: there is one.
            wait: whether the server may take all that time to answer.

        Raises:
            TimeoutError: a call that waits was not answered in time.
            RendezvousConnectionError: the server cannot be reached, or does not let this client in.
            RendezvousStateError: the answer makes no sense.
            RendezvousError: the server refuses: a bound is reached.
        """
        deadline = time.monotonic() + limit
        while True:
            left = deadline - time.monotonic()
            try:
                return method(request, timeout=max(left, 0.001) if wait else ATTEMPT_TIMEOUT)
            except grpc.RpcError as error:
                self._judge(error)
                left = deadline - time.monotonic()
                if left <= 0:
                    if wait and error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
                        raise TimeoutError from None
                    raise RendezvousConnectionError(
                        f"edriver's rendezvous server at {self.target} cannot be reached: {error.details()}"
                    ) from error
            except ValueError as error:  # the channel is closed
                raise RendezvousConnectionError(str(error)) from error
            time.sleep(min(RETRY_DELAY, left))

    def _judge(self, error: grpc.RpcError) -> None:
        """Raise what no repetition can change."""
        code, text = error.code(), error.details()
        if code in _AWAY:
            return
        if code in _REFUSED:
            raise RendezvousConnectionError(
                f"edriver's rendezvous server at {self.target} refuses this client: {text}; its credentials "
                "are another server's"
            ) from error
        if code in (grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN, grpc.StatusCode.DATA_LOSS):
            raise RendezvousStateError(f"edriver's rendezvous server at {self.target}: {text}") from error
        raise RendezvousError(f"edriver's rendezvous server at {self.target}: {text}") from error
