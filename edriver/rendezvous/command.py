"""`edriver rendezvous`: serve, or show what is served."""

from __future__ import annotations

import argparse
import datetime
import json
import logging
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

import grpc

from edriver.client.errors import RunError
from edriver.rendezvous.address import (
    CREDENTIALS_VARIABLE,
    DEFAULT_PORT,
    CredentialsError,
    credentials_of,
    default_folder,
)
from edriver.text.command_parser import CommandParser
from edriver.text.message_writer import plain
from edriver.text.phrases import count_text
from edriver.text.printable import printable_line
from edriver.v1 import rendezvous_pb2_grpc
from edriver.v1.rendezvous_pb2 import ListRendezvousRequest, ListRendezvousResponse, NodeEntry, Rendezvous
from edriver.wire.driver_channel import rendezvous_channel

ANSWER_TIMEOUT: Final = 10.0
"""Seconds that a server may take to answer."""


def parser() -> argparse.ArgumentParser:
    """The flags of the server."""
    made = CommandParser(
        prog="edriver rendezvous",
        description="Serves torchrun --rdzv-backend=edriver: keeps the state of the rendezvous on disk, outside the "
        "training "
        "nodes. `edriver rendezvous status` shows it.",
    )
    made.add_argument(
        "--port",
        type=int,
        default=DEFAULT_PORT,
        metavar="PORT",
        help="the TCP port (default: %(default)s; 0: any free port)",
    )
    made.add_argument(
        "--address",
        default="",
        metavar="ADDRESS",
        help="listen at this address only (default: at all addresses of this machine)",
    )
    made.add_argument(
        "--folder",
        type=Path,
        metavar="DIR",
        help="keep state and credentials in DIR (default: $XDG_STATE_HOME/edriver/rendezvous, or "
        "~/.local/state/edriver/rendezvous)",
    )
    return made


def status_parser() -> argparse.ArgumentParser:
    """The flags of the status command."""
    made = CommandParser(
        prog="edriver rendezvous status",
        description="Shows the runs of a rendezvous server: round, participants, wait list, deadline.",
    )
    made.add_argument(
        "--json", action="store_true", help="print JSON as of protobuf: ListRendezvousResponse in rendezvous.proto"
    )
    made.add_argument(
        "--credentials",
        metavar="FILE",
        help=f"the file that the server has written (default: ${CREDENTIALS_VARIABLE}, or the file in its default "
        f"folder)",
    )
    made.add_argument("--endpoint", metavar="HOST:PORT", help="the address of the server (default: as in FILE)")
    return made


def rendezvous(arguments: Sequence[str]) -> int:
    """Serve until a signal; returns the exit code."""
    from edriver.rendezvous.server.serve import serve

    flags = parser().parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="edriver: %(message)s", stream=sys.stdout, force=True)
    try:
        folder = flags.folder or default_folder()
    except CredentialsError as error:
        sys.stderr.write(f"edriver: {error}\n")
        return 1
    return serve(folder, flags.address, flags.port)


def status(arguments: Sequence[str], now: Callable[[], float]) -> str:
    """Query a server, and describe its answer.

    Args:
        arguments: the arguments of the command line.
        now: the time, in seconds since the epoch.

    Raises:
        RunError: the server does not answer.
    """
    flags = status_parser().parse_args(arguments)
    try:
        shown = credentials_of(flags.credentials)
    except CredentialsError as error:
        raise RunError(str(error)) from None
    target = flags.endpoint or shown.drivers[0]
    with rendezvous_channel(target, shown) as channel:
        try:
            stub = rendezvous_pb2_grpc.RendezvousServiceStub(channel)
            found: ListRendezvousResponse = stub.ListRendezvous(ListRendezvousRequest(), timeout=ANSWER_TIMEOUT)
        except grpc.RpcError as error:
            raise RunError(f"the rendezvous server at {target} does not answer: {error.details()}") from None
    if flags.json:
        return json.dumps(plain(found), indent=2)
    return text_of(found, now()) or "no run yet"


def text_of(found: ListRendezvousResponse, now: float) -> str:
    """All runs as text for a terminal: what clients have said of themselves may be anything."""
    return "\n".join(map(printable_line, lines(found, now)))


def lines(found: ListRendezvousResponse, now: float) -> Iterator[str]:
    """All runs as text."""
    for one in found.rendezvous:
        yield from _lines(one, now)


def _lines(one: Rendezvous, now: float) -> Iterator[str]:
    state, nodes = one.state, one.state.nodes
    participants = sorted((node for node in nodes if node.participant), key=lambda node: node.rank)
    waiting = [node for node in nodes if node.waiting]
    redundant = [node for node in nodes if node.redundant]
    yield (
        f"run {one.run_id}: {_standing(one, now)}; {count_text(len(participants), 'participant')} "
        f"({one.min_nodes} to {one.max_nodes}), {len(waiting)} waiting, {len(redundant)} redundant; "
        f"{count_text(one.store_keys, 'key')} in its store"
    )
    for node in participants:
        yield f"    {f'rank {node.rank}' if state.complete else 'joined'}: {_name(node, state.closed)}"
    for node in waiting:
        yield f"    waits for the next round: {_name(node, state.closed)}"
    for node in redundant:
        yield f"    redundant: {_name(node, state.closed)}"


def _standing(one: Rendezvous, now: float) -> str:
    state = one.state
    if state.closed:
        return "closed"
    if state.complete:
        return f"round {state.round} is complete"
    if not state.HasField("deadline"):
        return f"round {state.round} waits for more nodes"
    at = state.deadline.ToDatetime(datetime.UTC)
    return (
        f"round {state.round} is complete in {max(0.0, at.timestamp() - now):.0f} s ({at:%H:%M:%S} UTC), or when full"
    )


def _name(entry: NodeEntry, closed: bool) -> str:
    node = entry.node
    silent = ", no heartbeat: lost" if entry.expired and not closed else ""
    return f"{node.address}, process {node.pid}{silent}"
