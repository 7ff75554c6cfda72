"""Loggers that write into folders: one folder for the whole run, whichever worker is rank 0."""

from __future__ import annotations

import csv
from collections.abc import Iterable

from lightning.pytorch.loggers import CSVLogger, Logger, TensorBoardLogger
from lightning.pytorch.loggers.csv_logs import ExperimentWriter
from lightning.pytorch.strategies import Strategy


class _ContinuedWriter(ExperimentWriter):
    """Continues a file that another worker began; Lightning's writer would delete it."""

    def __init__(self, log_dir: str) -> None:
        super().__init__(log_dir)
        if self._fs.isfile(self.metrics_file_path):
            with self._fs.open(self.metrics_file_path, "r", newline="") as file:
                self.metrics_keys = list(csv.DictReader(file).fieldnames or ())

    def _check_log_dir_exists(self) -> None:
        """Keep existing files."""


def take_over(loggers: Iterable[Logger], strategy: Strategy, begun: bool) -> None:
    """Give all members rank 0's version of each logger, which is a number of a folder that a newcomer would not find.

    Args:
        loggers: the trainer's; collective, so the same on all members.
        strategy: the trainer's.
        begun: whether another worker may have logged before.
    """
    for logger in loggers:
        if not isinstance(logger, CSVLogger | TensorBoardLogger):
            continue
        logger._version = strategy.broadcast(logger.version)
        if isinstance(logger, CSVLogger) and begun and strategy.is_global_zero and logger._experiment is None:
            logger._experiment = _ContinuedWriter(logger.log_dir)
