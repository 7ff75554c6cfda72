"""The files of one worker in its agent's folder."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from edriver.system import stack_dump


@dataclass(frozen=True, slots=True)
class WorkerFiles:
    """Where a worker's files are.

    Attributes:
        folder: the agent's.
        worker_id: the worker.
    """

    folder: Path
    worker_id: int

    @property
    def socket(self) -> Path:
        """Where its notification service listens."""
        return self._path("sock")

    @property
    def life(self) -> Path:
        """Its life lock."""
        return self._path("life")

    @property
    def store(self) -> Path:
        """Where its store listens."""
        return self._path("store")

    @property
    def error(self) -> Path:
        """Where torch's @record writes the exception that ended the script."""
        return self._path("error.json")

    @property
    def stacks(self) -> Path:
        """Where its signal handler writes where its threads stand."""
        return stack_dump.file_beside(self.socket)

    def _path(self, kind: str) -> Path:
        return self.folder / f"w{self.worker_id}.{kind}"
