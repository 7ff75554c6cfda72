"""`edriver logs`: the latest output of the workers, including those that have ended."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from typing import Final

from edriver.client import RunError, WorkerLine
from edriver.commands.which_run import add_run_flags, client_of
from edriver.text.command_parser import CommandParser

EXIT_INTERRUPTED: Final = 130


def parser() -> argparse.ArgumentParser:
    """The flags."""
    made = CommandParser(
        prog="edriver logs",
        description="Prints the latest output of the workers, including those that have ended. The driver keeps some "
        "hundred KB "
        "per worker; --output-filename writes all of it to files.",
    )
    made.add_argument(
        "worker",
        nargs="?",
        metavar="RANK|HOST:SLOT|HOST",
        help="print only the output of a rank, of a slot, or of a host (default: all workers)",
    )
    made.add_argument(
        "-f", "--follow", action="store_true", help="follow the output until the run ends or you press Ctrl-C"
    )
    made.add_argument("-n", "--lines", metavar="N", type=int, default=0, help="start with the last N lines")
    add_run_flags(made, "--status-credentials")
    return made


def logs(arguments: Sequence[str], write: Callable[[bytes], object] | None = None) -> int:
    """Print them; returns the exit code.

    Raises:
        RunError: the driver does not answer, or keeps no output.
    """
    flags = parser().parse_args(arguments)
    put = write or _write
    if flags.lines < 0:
        raise RunError(f"--lines {flags.lines}: give how many, at least 1")
    rank, host, slot = chosen(flags.worker)
    lines = 0
    try:
        with client_of(flags) as client:
            for line in client.output(rank=rank, host=host, slot=slot, follow=flags.follow, lines=flags.lines):
                lines += 1
                put(text_of(line, alone=rank is not None or slot is not None))
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except BrokenPipeError:  # `| head`; what Python writes at its exit has no reader, either
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    if not lines:
        sys.stderr.write(
            f"edriver: {flags.worker or 'no worker'} has written nothing yet: edriver status lists workers\n"
        )
    return 0


def chosen(worker: str | None) -> tuple[int | None, str, int | None]:
    """A rank, a host, and a slot, of which none, the first, the second or the last two are given.

    Raises:
        RunError: it is none of them.
    """
    if worker is None:
        return None, "", None
    if worker.isascii() and worker.isdecimal():
        return int(worker), "", None
    host, colon, slot = worker.rpartition(":")
    if not colon:
        return None, worker, None
    if not (host and slot.isascii() and slot.isdecimal()):
        raise RunError(f"{worker!r} is not a RANK, HOST:SLOT or HOST")
    return None, host.removeprefix("[").removesuffix("]"), int(slot)


def text_of(line: WorkerLine, alone: bool) -> bytes:
    """A line as it is printed; where lines of several workers come, with Horovod's prefix, as the run prints it."""
    if alone:
        return bytes(line.text) + b"\n"
    place = str(line.rank) if line.HasField("rank") else f"{line.host}:{line.slot}"
    return f"[{place}]<{'stderr' if line.stderr else 'stdout'}>:".encode() + line.text + b"\n"


def _write(line: bytes) -> None:
    sys.stdout.buffer.write(line)
    sys.stdout.buffer.flush()
