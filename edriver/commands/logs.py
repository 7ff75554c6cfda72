"""`edriver logs`: the output of the workers, of a run in progress or of one that has ended."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO, Final

from edriver.client import RunError, WorkerLine, living_names, living_runs
from edriver.commands.which_run import add_run_flags, client_of
from edriver.history.records import RecordError, Records, records_of
from edriver.history.run_list import recorded_runs
from edriver.history.worker_output import recorded_output
from edriver.system.record_folder import called, default_root
from edriver.text.command_parser import CommandParser
from edriver.text.unfinished_lines import StatesInFile, StatesOnTerminal, can_replace, columns_of, erased

EXIT_INTERRUPTED: Final = 130


def parser() -> argparse.ArgumentParser:
    """The flags."""
    made = CommandParser(
        prog="edriver logs",
        description="Prints the output of the workers, including those that have ended. Of a run in progress, its "
        "driver answers, which keeps the latest 256 KiB of each worker. Of a run that has ended, its records have "
        "the latest 64 MiB of each worker. Without --run, and without a run in progress, it is your latest run.",
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
    made.add_argument(
        "-n", "--tail", "--lines", dest="lines", metavar="N", type=int, default=0, help="start with the last N lines"
    )
    add_run_flags(made, "--status-credentials")
    return made


def logs(arguments: Sequence[str]) -> int:
    """Print them; returns the exit code.

    Raises:
        RunError: the driver does not answer, there is no such run, or nothing of its output is kept.
    """
    flags = parser().parse_args(arguments)
    if flags.lines < 0:
        raise RunError(f"--tail {flags.lines}: give how many, at least 1")
    rank, host, slot = chosen(flags.worker)
    screen = Screen(sys.stdout.buffer, time.monotonic, alone=rank is not None or slot is not None)
    lines = 0
    records = ended_run(flags)
    wanted: dict[str, Any] = {"rank": rank, "host": host, "slot": slot, "lines": flags.lines}
    try:
        with contextlib.ExitStack() as stack:
            stack.callback(screen.close)
            found = _recorded(records, wanted) if records else _answered(flags, wanted, stack)
            for line in found:
                lines += 1
                screen.put(line)
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except BrokenPipeError:  # `| head`; what Python writes at its exit has no reader, either
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    if not lines:
        worker = flags.worker or "no worker"
        if records:
            sys.stderr.write(f"edriver: {worker} has written nothing that was kept\n")
        else:
            sys.stderr.write(f"edriver: {worker} has written nothing yet: edriver status lists workers\n")
    return 0


def ended_run(flags: argparse.Namespace) -> Records | None:
    """The records of the selected run, if it has ended; None: its driver is to answer.

    Raises:
        RunError: the run has no records, or they do not have its workers' output.
    """
    if flags.credentials is not None or flags.driver is not None:
        return None
    living = living_runs()
    if living and (flags.run is None or called(flags.run, living_names(living))):
        return None
    named = flags.run
    try:
        if named is None:
            named = _latest_run()
            if named is None:
                return None  # who asks the driver hears what to do
            sys.stderr.write(f"edriver: no run is in progress; this is your latest, {named}\n")
        records = records_of(named)
    except RecordError as error:
        raise RunError(f"no run {named} is in progress, and {error}") from None
    except OSError as error:
        raise RunError(f"{error.filename}: {error.strerror}") from None
    if records.output is None:
        raise RunError(
            f"the records of run {named} do not have the output of its workers: it wrote none, or ran with --no-logs "
            "or an earlier release"
        )
    return records


def _latest_run() -> str | None:
    try:
        root = default_root(os.environ)
    except RuntimeError:
        return None
    found = recorded_runs(root) if root.is_dir() else []
    return found[0].run_id if found else None


def _recorded(records: Records, wanted: dict[str, Any]) -> Iterator[WorkerLine]:
    try:
        yield from recorded_output(records.output or Path(), **wanted)
    except OSError as error:
        raise RunError(f"{error.filename}: {error.strerror}") from None


def _answered(flags: argparse.Namespace, wanted: dict[str, Any], stack: contextlib.ExitStack) -> Iterator[WorkerLine]:
    return stack.enter_context(client_of(flags)).output(follow=flags.follow, **wanted)


def chosen(worker: str | None) -> tuple[int | None, str, int | None]:
    """A rank, a host, and a slot, of which none, the first, the second or the last two are given.

    Raises:
        RunError: it is not one of them.
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


class Screen:
    """Where lines are printed: on a terminal, lines that have not ended stand below the others.

    Args:
        file: where they go.
        clock: seconds that only grow.
        alone: whether they are of one worker, so that none says of which.
    """

    def __init__(self, file: BinaryIO, clock: Callable[[], float], *, alone: bool) -> None:
        self._file = file
        self._clock = clock
        self._alone = alone
        self._terminal = StatesOnTerminal() if can_replace(file.fileno(), os.environ) else None
        self._states: StatesInFile[WorkerLine] = StatesInFile()
        self._drawn = b""

    def put(self, line: WorkerLine) -> None:
        """Print a line, or keep a state of one."""
        now, printed = self._clock(), text_of(line, self._alone)
        if self._terminal is None:
            if self._states.take(line, now):
                self._write(printed)
            return
        above = [*self._terminal.stale(now), *self._terminal.take(line, printed, now)]
        rows = b"\n".join(self._terminal.rows(columns_of(self._file.fileno())))
        self._write(erased(self._drawn) + b"".join(above) + rows)
        self._drawn = rows

    def close(self) -> None:
        """Nothing comes any more: lines that have not ended are lines like others."""
        if self._terminal is None:
            self._write(b"".join(text_of(line, self._alone) for line in self._states.rest()))
        else:
            self._write(erased(self._drawn) + b"".join(self._terminal.rest()))
            self._drawn = b""

    def _write(self, data: bytes) -> None:
        self._file.write(data)
        self._file.flush()
