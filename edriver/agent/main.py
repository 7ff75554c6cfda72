"""The agent's start: a join config on standard input, then its life. A launcher starts it; it is not for the command
line.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import secrets
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from edriver.common.join_config import JoinConfig
from edriver.system.descriptors import raise_limit
from edriver.system.guard import Guard
from edriver.system.leftovers import FOLDER_PREFIX, hold, remove_leftovers
from edriver.wire.grpc_log import silence_grpc

QUIET_WAIT: Final = 10.0
"""Seconds that an agent waits for its driver before it says that it waits."""

MAX_JOIN_CONFIG_BYTES = 4 * 1024 * 1024
"""Bytes of the largest join config: the environment is the most of it."""


def parser() -> argparse.ArgumentParser:
    """The agent's options."""
    made = argparse.ArgumentParser(prog="edriver-agent", description="Runs one host's workers for an edriver driver.")
    made.add_argument("--host", required=True, help="this host's name, as shown in process lists")
    return made


async def serve(join_config: JoinConfig, folder: Path, guard: Guard) -> int:
    """Run the agent; returns its exit code."""
    # Imported here, because gRPC looks at GRPC_ENABLE_FORK_SUPPORT when it is imported.
    import grpc.aio

    from edriver.agent.agent import Agent
    from edriver.agent.health.listening import nothing_listens
    from edriver.agent.settings import AgentSettings
    from edriver.v1 import agent_pb2_grpc
    from edriver.wire.driver_channel import open_channel
    from edriver.wire.grpc_streams import CHANNEL_OPTIONS, SILENT_PEER_OPTIONS
    from edriver.wire.health_port import HealthPort

    settings = AgentSettings(
        run_id=join_config.run_id,
        host=join_config.host,
        agent_id=join_config.agent_id,
        address=join_config.address,
        folder=folder,
        interface=join_config.interface,
        slots=join_config.slots,
        left_code=join_config.left_code,
        secret=bytes.fromhex(join_config.secret),
        grace=join_config.grace,
    )
    target = join_config.drivers[0]
    if not target.startswith("unix:"):
        from edriver.agent.addresses import drivers_by_ssh
        from edriver.wire.driver_channel import target_of

        target = target_of((*drivers_by_ssh(os.environ, join_config.drivers), *join_config.other_drivers))
    channel = open_channel(
        target,
        join_config.authority,
        join_config.token,
        (*CHANNEL_OPTIONS, *(SILENT_PEER_OPTIONS if join_config.other_drivers else ())),
        grpc.aio.insecure_channel,
        grpc.aio.secure_channel,
    )
    welcomed = asyncio.Event()
    health = HealthPort(join_config.health_port, welcomed) if join_config.health_port else None
    async with channel:
        stub = agent_pb2_grpc.AgentServiceStub(channel)
        agent = Agent(settings, stub, os.environ, guard, lambda: nothing_listens(target), welcomed)
        saying = asyncio.create_task(_say_that_it_waits(welcomed, target))
        try:
            if health is not None:
                await health.open()
            return await agent.run()
        finally:
            saying.cancel()
            if health is not None:
                await health.close()


async def _say_that_it_waits(welcomed: asyncio.Event, address: str) -> None:
    try:
        async with asyncio.timeout(QUIET_WAIT):
            await welcomed.wait()
    except TimeoutError:
        logging.getLogger("edriver.agent").warning(
            "the driver at %s has not let this host in yet: it may not run yet, have no use for this host now, or be "
            "at another address",
            address,
        )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the agent; returns its exit code."""
    parser().parse_args(arguments)
    try:
        return run_agent(JoinConfig.from_json(_standard_input()))
    except ValueError as error:
        parser().error(str(error))


def run_agent(join_config: JoinConfig) -> int:
    """Run the agent that this configures; returns its exit code.

    Raises:
        ValueError: the configuration cannot be used on this host.
        OSError: its health port cannot be opened.
    """
    raise_limit()  # workers inherit it
    logging.basicConfig(level=logging.WARNING, format=f"edriver agent on {join_config.host}: %(message)s")
    os.environ |= join_config.environment or {}
    # Our processes are started by vfork and exec, which gRPC need not know of.
    os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "0"
    silence_grpc()
    _enter(join_config.directory)
    if join_config.interface:
        from edriver.agent.addresses import addresses_of

        addresses_of(join_config.interface)  # without it the driver cannot be reached either, with a less helpful error
    with _folder(join_config.folder) as (folder, guard):
        return asyncio.run(serve(join_config, folder, guard))


def _standard_input() -> bytes:
    """Read all of standard input, which holds the token, so that later readers, workers included, find it empty.

    Raises:
        ValueError: the input is too long.
    """
    text = sys.stdin.buffer.read(MAX_JOIN_CONFIG_BYTES + 1)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, sys.stdin.fileno())
    os.close(nothing)
    if len(text) > MAX_JOIN_CONFIG_BYTES:
        raise ValueError("the data on standard input is too long to be a join config")
    return text


def _enter(directory: str) -> None:
    """Make this the working directory.

    Raises:
        ValueError: that cannot be done.
    """
    if directory:
        try:
            os.chdir(directory)
        except OSError as error:
            raise ValueError(
                f"the workers' folder {directory} cannot be entered ({error.strerror}): the script has to lie at the "
                "same path on all hosts"
            ) from None


@contextmanager
def _folder(given: str) -> Iterator[tuple[Path, Guard]]:
    """The agent's private folder, and its guard; a folder that it has made itself is removed in the end.

    Raises:
        ValueError: its path is too long for sockets.
    """
    from edriver.agent.workers.ready_socket import READY_SOCKET, check_folder
    from edriver.agent.workers.worker_environment import READY_VARIABLE

    folder = Path(given or Path(tempfile.gettempdir(), f"{FOLDER_PREFIX}{secrets.token_hex(8)}"))
    check_folder(folder)
    if not given:  # else the driver has done it
        for leftover in remove_leftovers():
            logging.getLogger("edriver.agent").warning("%s", leftover)
    guard = Guard(None if given else folder, mark=f"{READY_VARIABLE}={folder / READY_SOCKET}")
    guard.start()
    try:
        if not given:
            folder.mkdir(mode=0o700)
        hold(folder)
        yield folder, guard
    finally:
        if not given:
            shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
