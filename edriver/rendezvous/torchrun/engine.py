"""Torch's dynamic rendezvous, made of torchrun's parameters."""

from __future__ import annotations

import logging
from datetime import timedelta
from typing import Any, Final

from torch.distributed.elastic.events.handlers import get_logging_handler
from torch.distributed.elastic.rendezvous.api import RendezvousConnectionError, RendezvousInfo, RendezvousParameters
from torch.distributed.elastic.rendezvous.dynamic_rendezvous import DynamicRendezvousHandler, RendezvousTimeout
from torch.distributed.elastic.rendezvous.utils import parse_rendezvous_endpoint

from edriver.common.join_config import at_port
from edriver.rendezvous.address import DEFAULT_PORT, CredentialsError, credentials_of
from edriver.rendezvous.torchrun.backend import EdriverBackend
from edriver.rendezvous.torchrun.client import RendezvousClient
from edriver.rendezvous.torchrun.replica import Replica
from edriver.rendezvous.torchrun.store import RendezvousStore

EVENTS: Final = "dynamic_rendezvous"
"""Where torch's engine records its events."""

READ_TIMEOUT: Final = 300
"""Seconds for which a server that is away is waited for, and a key of the store; --rdzv-conf read_timeout=S."""


class EdriverRendezvousHandler(DynamicRendezvousHandler):
    """Torch's handler, with a new store for the workers of each round.

    Torch 2.13 keeps the address of rank 0's TCPStore from one round to the next. So a node that joins a later round
    waits for an address that rank 0 does not publish again, and where rank 0's node is lost, others than the new rank 0
    have the address of the old one.

    Torch also gives each event of its engine the name of a method, which it finds by two looks through the whole call
    stack, before it asks whether events are recorded at all: unless a site has installed a handler, they are not.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if isinstance(get_logging_handler(EVENTS), logging.NullHandler):
            recording: tuple[Any, ...] = (self, self._op_executor)
            for part in recording:
                part._record = _ignore

    def next_rendezvous(self) -> RendezvousInfo:
        self._bootstrap_store_info = None
        self._shared_tcp_store_server = None
        return super().next_rendezvous()


def _ignore(*_: object, **__: object) -> None:
    """An event that is not recorded."""


def engine_of(params: RendezvousParameters) -> EdriverRendezvousHandler:
    """The handler; see edriver.rendezvous.torchrun.handler.create_handler."""
    try:
        credentials = credentials_of(params.get("credentials"))
    except CredentialsError as error:
        raise RendezvousConnectionError(str(error)) from None
    timeout = params.get_as_int("read_timeout", READ_TIMEOUT)
    interval = params.get_as_int("keep_alive_interval", 5)  # torch's own defaults
    attempts = params.get_as_int("keep_alive_max_attempt", 3)
    if not timeout or timeout < 0 or not interval or not attempts:
        raise ValueError("read_timeout, keep_alive_interval and keep_alive_max_attempt must be positive.")
    target = at_port(*parse_rendezvous_endpoint(params.endpoint, DEFAULT_PORT)) if params.endpoint else ""
    client = RendezvousClient(target or credentials.drivers[0], credentials)
    nodes = params.min_nodes, params.max_nodes
    backend = EdriverBackend(client, Replica(), params.run_id, nodes, interval * attempts, timeout)
    store = RendezvousStore(client, params.run_id, timeout)
    limits = (params.get_as_int(f"{name}_timeout") for name in ("join", "last_call", "close", "heartbeat"))
    handler: EdriverRendezvousHandler = EdriverRendezvousHandler.from_backend(
        params.run_id,
        store,
        backend,
        *nodes,
        params.local_addr,
        RendezvousTimeout(*(None if seconds is None else timedelta(seconds=seconds) for seconds in limits)),
        keep_alive_interval=interval,
        keep_alive_max_attempt=attempts,
    )
    return handler
