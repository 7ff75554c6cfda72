"""The life of a checkpoint server: its configuration on standard input, then its services, until its agent is gone."""

from __future__ import annotations

import asyncio
import logging
import math
import os
import signal
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from edriver.common.checkpoint_server import SERVER_SOCKET, SHARDS_SOCKET, ServerConfig
from edriver.common.copied_environment import moved
from edriver.common.join_config import at_port
from edriver.system.cgroups import CGROUP_ROOT, memory_groups
from edriver.system.descriptors import raise_limit
from edriver.system.proc_stat import PROC_ROOT, kernel_text
from edriver.wire.grpc_log import silence_grpc

if TYPE_CHECKING:
    import grpc

    from edriver.checkpoint_server.keeper import Keeper
    from edriver.checkpoint_server.service import ShardServer

ATTACH_TIMEOUT: Final = 30.0
"""Seconds that a server waits for its agent's stream."""

MAX_CONFIG_BYTES: Final = 64 * 1024
"""Bytes of the longest configuration."""

STOP_TIMEOUT: Final = 5.0
"""Seconds that calls may take to end once the server ends."""

MAX_UNAUTHENTICATED: Final = 256
"""Connections at a time that have made no call yet. When there are more, the oldest are closed."""

_PORT_OPTIONS: Final = (
    ("grpc.server_handshake_timeout_ms", 10_000),
    ("grpc.max_connection_idle_ms", 60_000),
    ("grpc.max_metadata_size", 8 * 1024),
    # Room for those that come between two looks at the connections.
    ("grpc.max_allowed_incoming_connections", 4096),
)

_log = logging.getLogger("edriver.checkpoint_server")


def half_of_memory(proc: Path = PROC_ROOT, cgroups: Path = CGROUP_ROOT) -> int:
    """Half of the bytes of memory that this process may use: of the machine's, or of its container's limit."""
    most = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    with suppress(OSError):
        for group in memory_groups(kernel_text(proc / "self" / "cgroup"), cgroups):
            most = min(most, group.limit() or most)
    return most // 2


def serve(config: ServerConfig) -> None:
    """Serve until the agent's stream has ended.

    Raises:
        OSError: it cannot listen there, or the credentials cannot be read.
    """
    # Imported here, because gRPC looks at its environment when it is imported.
    from edriver.checkpoint_server.copies import Copier
    from edriver.checkpoint_server.disk import DiskWriter
    from edriver.checkpoint_server.keeper import Keeper
    from edriver.checkpoint_server.service import CheckpointServer, ShardServer, host_server, shard_server
    from edriver.wire.grpc_streams import BULK_CHANNEL_OPTIONS
    from edriver.wire.tls_files import member_channel

    tls_folder = Path(config.tls_folder) if config.tls_folder else None
    attached, ended = threading.Event(), threading.Event()
    keeper = Keeper(config.memory_limit or half_of_memory())
    copier = Copier(
        keeper,
        lambda address: member_channel(address, tls_folder, BULK_CHANNEL_OPTIONS),
        bytes_per_second=config.bandwidth or math.inf,
    )
    folder = Path(config.folder)
    disk = DiskWriter(
        keeper.say_disk,
        str(folder / SERVER_SOCKET),
        config.run_id,
        config.host,
        local=lambda path: moved(path, config.environment, config.environment_copy),
    )
    if tls_folder is None or not config.address:
        others, address = shard_server(ShardServer(keeper), ()), f"unix:{folder / SHARDS_SOCKET}"
        _listen(others.add_insecure_port, address)
    else:
        others, address = _open_port(partial(ShardServer, keeper), config.address, tls_folder)
    here = host_server(CheckpointServer(keeper, copier.order, disk.order, address, attached, ended))
    try:
        _listen(here.add_insecure_port, f"unix:{folder / SERVER_SOCKET}")
        others.start()
        copier.start()
        here.start()
        threading.Thread(target=_prepare_spares, args=(keeper, ended), name="edriver-spares", daemon=True).start()
        threading.Thread(target=_await_agent, args=(attached, ended), name="edriver-agent", daemon=True).start()
        ended.wait()
    finally:
        disk.close()
        for server in (here, others):
            server.stop(None).wait(STOP_TIMEOUT)  # gRPC removes its unix sockets


def _prepare_spares(keeper: Keeper, ended: threading.Event) -> None:
    from edriver.checkpoint_server.bulk import let_training_go_first

    let_training_go_first()
    seen = -1
    while not ended.is_set():
        seen = keeper.wait_for_change(seen)
        keeper.prepare_spares()


def _listen(add_port: Callable[[str], int], where: str) -> int:
    try:
        return add_port(where)
    except RuntimeError as error:
        raise OSError(f"the checkpoint server cannot listen at {where}: {error}") from None


def _open_port(
    make_service: Callable[[Callable[[str], None]], ShardServer], address: str, tls_folder: Path
) -> tuple[grpc.Server, str]:
    """Open a TCP port through which members of the run get alone; returns the server, and where it listens.

    Raises:
        OSError: that cannot be done.
    """
    from edriver.checkpoint_server.service import shard_server
    from edriver.wire.grpc_streams import address_of
    from edriver.wire.port_watch import AcceptedSocket, PortLimit, close_surplus, plain_address
    from edriver.wire.tls_files import member_server_credentials

    # gRPC ends a handshake that takes too long. A member whose call waits for a thread is not known yet, so age alone
    # closes nothing here.
    limit = PortLimit(MAX_UNAUTHENTICATED, math.inf)
    loop = asyncio.new_event_loop()

    def called(peer: str) -> None:
        where = plain_address(address_of(peer)), int(peer.rpartition(":")[2])
        loop.call_soon_threadsafe(limit.authenticate, where)

    def name(surplus: AcceptedSocket) -> None:
        _log.warning("too many callers, from %s and perhaps others, showed no certificate", surplus.where[0])

    credentials = member_server_credentials(tls_folder)
    server = shard_server(make_service(called), _PORT_OPTIONS)
    port = _listen(lambda where: server.add_secure_port(where, credentials), at_port(address, 0))
    watch = close_surplus(port, limit, name)
    threading.Thread(target=loop.run_until_complete, args=(watch,), name="edriver-port", daemon=True).start()
    return server, at_port(address, port)


def _await_agent(attached: threading.Event, ended: threading.Event) -> None:
    if not attached.wait(ATTACH_TIMEOUT):
        _log.warning("the agent has not come within %g s", ATTACH_TIMEOUT)
        ended.set()


def main() -> int:
    """Read the configuration, and serve; returns the exit code."""
    # Batch systems send SIGTERM to each process of a job. The agent gets it, too, and ends this process once what is in
    # memory has been copied or written. The process that writes to disk inherits this.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    logging.basicConfig(level=logging.WARNING, format="edriver checkpoint server: %(message)s")
    os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "0"
    silence_grpc()
    try:
        raise_limit()  # a buffer has a descriptor
        serve(ServerConfig.from_json(sys.stdin.buffer.read(MAX_CONFIG_BYTES)))
    except (ValueError, OSError) as error:
        _log.error("%s", error)
        return 1
    return 0
