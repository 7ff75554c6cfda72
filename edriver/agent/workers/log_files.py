"""Where each stream of a worker goes: into which file, and whether its lines are shown. Pure.

In restart mode that follows from torchrun's --log-dir, --redirects, --tee and --local-ranks-filter; the files lie as
torchrun's do: RUN_HOST/attempt_N/LOCAL_RANK/stdout.log below the folder. Else --output-filename defines it.

A process in restart mode gets its place late, so until its round is assigned its output is held back; it is printed if
there is a lot of it, or if the process ends before.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from edriver.v1 import agent_pb2

ERROR_FILE: Final = "error.json"
"""The name of a copy of the error file that a worker has left."""


@dataclass(frozen=True, slots=True)
class Destination:
    """Where a stream of a worker goes.

    Attributes:
        file: the file; None: none.
        shown: whether its lines are sent to the driver.
        append: whether what the file has stays: a resize begins no new attempt.
        held: whether its lines are held back, because the worker's place, which decides on the rest, is not known yet.
    """

    file: Path | None = None
    shown: bool = True
    append: bool = False
    held: bool = False


TO_DRIVER: Final = (Destination(), Destination())
"""Both streams, stdout and stderr, are shown, and go to no file."""

HELD_BACK: Final = (Destination(held=True), Destination(held=True))
"""Both streams wait for the worker's place."""


def worker_files(folder: Path, worker_id: int) -> tuple[Destination, Destination]:
    """What --output-filename means for a worker.

    Args:
        folder: that of its slot.
        worker_id: its id.

    Returns:
        where its stdout and its stderr go.
    """
    name = f"worker.{worker_id}"
    return Destination(folder / f"{name}.stdout"), Destination(folder / f"{name}.stderr")


@dataclass(frozen=True, slots=True)
class LogFiles:
    """What torchrun's flags mean for the workers of a host.

    Attributes:
        folder: of this run and this host.
        choice: the flags.
    """

    folder: Path
    choice: agent_pb2.WorkerLogs

    def of_worker(self, attempt: int, local_rank: int) -> Path:
        """The folder of a worker's files.

        Args:
            attempt: how often the script was restarted after a failure (TORCHELASTIC_RESTART_COUNT).
            local_rank: the worker's, in its round.
        """
        return self.folder / f"attempt_{attempt}" / str(local_rank)

    def destinations(self, attempt: int, local_rank: int) -> tuple[Destination, Destination]:
        """Where a worker's stdout and stderr go; the arguments are those of `of_worker`."""
        redirected, teed = (_streams(each, local_rank) for each in (self.choice.redirects, self.choice.tee))
        filed = redirected | teed
        shown = teed | ~redirected
        if self.choice.shown_local_ranks and local_rank not in self.choice.shown_local_ranks:
            shown = agent_pb2.STREAMS_UNSPECIFIED
        folder = self.of_worker(attempt, local_rank)

        def of(stream: int, name: str) -> Destination:
            return Destination(folder / name if filed & stream else None, bool(shown & stream), append=True)

        return of(agent_pb2.STREAMS_STDOUT, "stdout.log"), of(agent_pb2.STREAMS_STDERR, "stderr.log")


def _streams(choice: agent_pb2.StreamChoice, local_rank: int) -> int:
    return choice.by_local_rank.get(local_rank, choice.others)
