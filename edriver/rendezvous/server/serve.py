"""The process of `edriver rendezvous`: it serves until a signal ends it."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import logging
import signal
import socket
import time
from pathlib import Path
from typing import Final

import grpc
import uvloop

from edriver.common.join_config import JoinConfig, at_port
from edriver.rendezvous.address import CREDENTIALS_FILE
from edriver.rendezvous.server.identity import AUTHORITY_FILE, SERVER_FILE, identity, write_private
from edriver.rendezvous.server.journal import JOURNAL_FILES, CorruptJournalError, JournalHeldError, ServerJournal
from edriver.rendezvous.server.runs import Runs
from edriver.rendezvous.server.service import RENDEZVOUS_SERVICE, STORE_SERVICE, RendezvousService, StoreService
from edriver.system.private_files import NotOwnError, OwnFolder, make_private
from edriver.v1 import rendezvous_pb2_grpc
from edriver.wire.guarded_server import GuardedServer
from edriver.wire.introspection import INTROSPECTION_SERVICES, add_introspection

_log = logging.getLogger("edriver.rendezvous")

RUN_ID: Final = "rendezvous"
"""What stands in the credentials in place of a run's id."""

WARNING_INTERVAL: Final = 24 * 3600.0
"""Seconds between two warnings that the server's certificate ends."""

MAX_CALLS: Final = 10_000
"""Calls at a time of one connection. An agent has few: one that waits in its store also sends heartbeats."""


class ServerError(Exception):
    """The server cannot start, or continue; the message is a sentence for the operator."""


def serve(folder: Path, address: str, port: int) -> int:
    """Serve until SIGINT or SIGTERM; returns the exit code.

    Args:
        folder: where it keeps its state and credentials; it is made if it is not there.
        address: where it listens; empty: at all addresses of this machine.
        port: at which port; 0: any.
    """
    try:
        make_private(folder)
        with OwnFolder(folder) as own:  # whatever becomes of its path, this very folder is used
            own.check((AUTHORITY_FILE, SERVER_FILE, CREDENTIALS_FILE, *JOURNAL_FILES))
            uvloop.run(_serve(own, folder, address, port))
    except NotOwnError as error:
        _log.error("the folder cannot be used: %s", error)
        return 1
    except OSError as error:
        _log.error("%s cannot be created: %s", folder, error.strerror)
        return 1
    except ServerError as error:
        _log.error("%s", error)
        return 1
    return 0


async def _serve(own: OwnFolder, folder: Path, address: str, port: int) -> None:
    try:
        journal = ServerJournal(own, folder)
    except JournalHeldError:
        raise ServerError(f"another server uses this folder: {folder}") from None
    except CorruptJournalError as error:
        raise ServerError(str(error)) from None
    except OSError as error:
        raise ServerError(f"{folder} cannot be used: {error.strerror}") from None
    with contextlib.closing(journal):
        await _serve_from(journal, own, folder, address, port)


async def _serve_from(journal: ServerJournal, own: OwnFolder, folder: Path, address: str, port: int) -> None:
    ended = asyncio.Event()
    faults: list[OSError] = []

    def fatal(error: OSError) -> None:
        faults.append(error)
        ended.set()

    try:
        runs = Runs(journal, time.monotonic)
        known_by = identity(own.pinned, datetime.datetime.now(datetime.UTC))
        server_credentials = grpc.ssl_server_credentials([(known_by.key, known_by.certificate)])
        server = GuardedServer(
            {known_by.token: {RENDEZVOUS_SERVICE, STORE_SERVICE, *INTROSPECTION_SERVICES}},
            server_credentials,
            _log,
            {"grpc.max_concurrent_streams": MAX_CALLS},
        )
        service = RendezvousService(runs, time.monotonic, fatal)
        rendezvous_pb2_grpc.add_RendezvousServiceServicer_to_server(service, server.grpc)
        rendezvous_pb2_grpc.add_StoreServiceServicer_to_server(StoreService(runs, fatal), server.grpc)
        await add_introspection(server.grpc, (RENDEZVOUS_SERVICE, STORE_SERVICE))
        opened = await server.open(address, port)
        endpoint = at_port(address or socket.gethostname(), opened)
        shown = JoinConfig(RUN_ID, "", 0, (endpoint,), known_by.authority, known_by.token)
        write_private(own.pinned / CREDENTIALS_FILE, shown.to_json())
    except CorruptJournalError as error:
        raise ServerError(str(error)) from None
    except OSError as error:
        raise ServerError(f"the server cannot start: {error}") from None
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, ended.set)
    _log.info("rendezvous at %s, credentials: %s", endpoint, folder / CREDENTIALS_FILE)
    _log.info("torchrun --rdzv-backend=edriver --rdzv-endpoint=%s ...", endpoint)
    while not ended.is_set():
        if warning := known_by.warning(datetime.datetime.now(datetime.UTC)):
            _log.warning("%s", warning)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(ended.wait(), WARNING_INTERVAL)
    await server.close(grace=0.5)
    if faults:
        raise ServerError(f"{folder}: the journal cannot be written: {faults[0].strerror}")
