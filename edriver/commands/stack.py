"""`edriver stack`: the current stack traces of workers."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence

from edriver.commands.logs import chosen
from edriver.commands.which_run import add_run_flags, client_of
from edriver.text.command_parser import CommandParser
from edriver.text.message_writer import plain
from edriver.text.stacks_text import stacks_text


def parser() -> argparse.ArgumentParser:
    """The flags."""
    made = CommandParser(
        prog="edriver stack",
        description="Prints where each worker's script is, then the current stack trace of each of its threads, the "
        "training thread first, without stopping the workers.",
    )
    made.add_argument(
        "worker",
        nargs="?",
        metavar="RANK|HOST:SLOT|HOST",
        help="print only the stacks of a rank, of a slot, or of a host (default: all workers)",
    )
    made.add_argument(
        "--json", action="store_true", help="print JSON as of protobuf: an array of ReadStacksResponse in status.proto"
    )
    add_run_flags(made, "--status-credentials")
    return made


def stack(arguments: Sequence[str]) -> str:
    """Query the workers; returns their answers as text.

    Raises:
        RunError: the driver does not answer, or the worker does not exist.
    """
    flags = parser().parse_args(arguments)
    rank, host, slot = chosen(flags.worker)
    with client_of(flags) as client:
        found = client.stacks(rank=rank, host=host, slot=slot)
        if flags.json:
            return json.dumps([plain(each) for each in found], indent=2)
        return "\n\n".join(map(stacks_text, found))
