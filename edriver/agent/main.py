"""The agent's start: an invitation on standard input, then its life. A launcher starts it; nobody types it."""

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

from edriver.common.invitation import Invitation
from edriver.system.descriptors import raise_limit
from edriver.system.guard import Guard
from edriver.system.leftovers import PREFIX, hold, remove_leftovers

LONGEST = 4 * 1024 * 1024
"""Bytes of the largest invitation: the environment is the most of it."""


def parser() -> argparse.ArgumentParser:
    """The agent's options."""
    made = argparse.ArgumentParser(prog="edriver-agent", description="Runs one host's workers for an edriver driver.")
    made.add_argument("--host", required=True, help="which host this is: for whoever looks at the processes")
    return made


async def serve(invitation: Invitation, folder: Path, guard: Guard) -> int:
    """Run the agent; returns its exit code."""
    # Imported here, because gRPC looks at GRPC_ENABLE_FORK_SUPPORT when it is imported.
    import grpc.aio

    from edriver.agent.agent import Agent, AgentSettings
    from edriver.agent.health.listening import nothing_listens
    from edriver.common.driver_channel import open_channel
    from edriver.common.grpc_streams import CHANNEL_OPTIONS
    from edriver.v1 import agent_pb2_grpc

    settings = AgentSettings(
        run_id=invitation.run_id,
        host=invitation.host,
        agent_id=invitation.agent_id,
        address=invitation.address,
        folder=folder,
        interface=invitation.interface,
        slots=invitation.slots,
        secret=bytes.fromhex(invitation.secret),
    )
    target = invitation.drivers[0]
    if not target.startswith("unix:"):
        from edriver.agent.addresses import drivers_by_ssh, target_of

        target = target_of(drivers_by_ssh(os.environ, invitation.drivers))
    channel = open_channel(
        target,
        invitation.authority,
        invitation.token,
        CHANNEL_OPTIONS,
        grpc.aio.insecure_channel,
        grpc.aio.secure_channel,
    )
    async with channel:
        stub = agent_pb2_grpc.AgentServiceStub(channel)
        return await Agent(settings, stub, os.environ, guard, lambda: nothing_listens(target)).run()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the agent; returns its exit code."""
    parser().parse_args(arguments)
    try:
        return live(Invitation.from_json(_standard_input()))
    except ValueError as error:
        parser().error(str(error))


def live(invitation: Invitation) -> int:
    """Be the agent that this invites; returns its exit code.

    Raises:
        ValueError: the invitation cannot be followed here.
    """
    raise_limit()  # workers inherit it
    logging.basicConfig(level=logging.WARNING, format=f"edriver agent on {invitation.host}: %(message)s")
    os.environ |= invitation.environment or {}
    # Our processes are started by vfork and exec, which gRPC need not know of.
    os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "0"
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")  # a connection that breaks is ours to tell of
    _enter(invitation.directory)
    if invitation.interface:
        from edriver.agent.addresses import addresses_of

        addresses_of(invitation.interface)  # without it the driver cannot be reached either, which would say less
    with _folder(invitation.folder) as (folder, guard):
        return asyncio.run(serve(invitation, folder, guard))


def _standard_input() -> bytes:
    """All of it. What comes after, workers included, finds nothing there: it holds the token.

    Raises:
        ValueError: it is too long.
    """
    text = sys.stdin.buffer.read(LONGEST + 1)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, sys.stdin.fileno())
    os.close(nothing)
    if len(text) > LONGEST:
        raise ValueError("what is on standard input is too long for an invitation")
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
    from edriver.agent.workers.worker_environment import READY

    folder = Path(given or Path(tempfile.gettempdir(), f"{PREFIX}{secrets.token_hex(8)}"))
    check_folder(folder)
    if not given:  # else the driver has done it
        for leftover in remove_leftovers():
            logging.getLogger("edriver.agent").warning("%s", leftover)
    guard = Guard(None if given else folder, mark=f"{READY}={folder / READY_SOCKET}")
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
