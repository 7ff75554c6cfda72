"""The flags of what a run writes (output, logs, events, records, metrics), and of what it is called."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Final, TypeVar

from edriver.common.extras import missing_extra
from edriver.driver.config.training_script import ModeChoice
from edriver.driver.config.usage_error import UsageError
from edriver.model.mode import Mode
from edriver.model.worker_logs import StreamChoice, WorkerLogs, local_ranks
from edriver.reporting import LIBRARIES
from edriver.system.private_files import open_private
from edriver.system.record_folder import default_root

MAX_NAME_LENGTH: Final = 200
"""Characters of a run's name, and of a tag."""

SUPERVISED_PREFIX: Final = "supervised-"
"""How the names begin that --supervise gives to --run where its user does not."""

DEFAULT_METRICS_ADDRESS = "127.0.0.1"
"""Where metrics are by default."""


Judged = TypeVar("Judged")


def folder_of(flag: str, name: str | None) -> str:
    """The absolute path of a folder for output; empty: none.

    Raises:
        UsageError: it cannot be.
    """
    if name is None:
        return ""
    if not name or (Path(name).exists() and not Path(name).is_dir()):
        raise UsageError(f"{flag} {name!r} is not a folder: give one, or a name that does not exist yet")
    return str(Path(name).absolute())


def logs_of(flags: argparse.Namespace, mode: ModeChoice) -> WorkerLogs | None:
    """Where the output of workers in restart mode goes.

    Raises:
        UsageError: it cannot be.
    """
    given = {
        "--log-dir": flags.log_dir,
        "--redirects": flags.redirects,
        "--tee": flags.tee,
        "--local-ranks-filter": flags.local_ranks_filter,
    }
    first = next((flag for flag, text in given.items() if text is not None), None)
    if first is None:
        return None
    if mode.mode is not Mode.RESTART:
        first = flags.variables.get(first.lstrip("-").replace("-", "_"), first)
        raise UsageError(
            f"{first} is for restart mode, in which a worker has one local rank: give --output-filename instead, or "
            "--mode restart"
        )
    if flags.output_filename is not None:
        raise UsageError(f"--output-filename and {first} both define where output goes: give only one of them")
    return WorkerLogs(
        folder_of("--log-dir", flags.log_dir),
        _read("--redirects", flags.redirects, StreamChoice.of, StreamChoice()),
        _read("--tee", flags.tee, StreamChoice.of, StreamChoice()),
        _read("--local-ranks-filter", flags.local_ranks_filter, local_ranks, ()),
    )


def _read(flag: str, text: str | None, reader: Callable[[str], Judged], default: Judged) -> Judged:
    try:
        return default if text is None else reader(text)
    except ValueError as error:
        raise UsageError(f"{flag}: {error}") from None


def metrics_of(port: int | None, address: str | None) -> tuple[str, int] | None:
    """Where Prometheus finds metrics.

    Raises:
        UsageError: it cannot be.
    """
    if port is None:
        if address is not None:
            raise UsageError("--metrics-address needs --metrics-port")
        return None
    if not 0 <= port < 65536:
        raise UsageError(f"--metrics-port is {port}: ports lie between 1 and 65535, and 0 is any free port")
    if address == "":
        raise UsageError("--metrics-address is empty: give an address of this machine, or 0.0.0.0 for all of them")
    if missing := missing_extra("--metrics-port", "prometheus_client", "metrics"):
        raise UsageError(missing)
    return address or DEFAULT_METRICS_ADDRESS, port


def report_to_of(text: str | None) -> tuple[str, ...]:
    """The libraries to which the run is reported.

    Raises:
        UsageError: one is unknown, or is not installed here.
    """
    if text is None:
        return ()
    names = tuple(dict.fromkeys(name.strip().lower() for name in text.split(",")))
    for name in names:
        if name not in LIBRARIES:
            raise UsageError(f"--report-to {name!r}: give {' or '.join(LIBRARIES)}, or several with commas between")
        if find_spec(name) is None:
            raise UsageError(f"--report-to {name} needs {name} on this machine: pip install {name}")
    return names


def event_log_of(name: str | None) -> Path | None:
    """The file of the event log, which is there from now on.

    Raises:
        UsageError: it cannot be.
    """
    if name is None:
        return None
    path = Path(name).absolute()
    try:
        os.close(open_private(path, os.O_APPEND))
    except OSError as error:
        raise UsageError(f"--event-log {name!r} cannot be written: {error.strerror}") from None
    return path


def name_of(name: str | None, run: str | None) -> str:
    """The run's name, by which all commands know it.

    Args:
        name: what --name gives.
        run: what --run gives.

    Raises:
        UsageError: it cannot be, or there are two.
    """
    if name is not None and not 0 < len(name) <= MAX_NAME_LENGTH:
        raise UsageError(f"--name is {len(name)} characters long: give 1 to {MAX_NAME_LENGTH}")
    if name is None or run is None or run.startswith(SUPERVISED_PREFIX):
        return name or run or ""
    if name != run:
        raise UsageError(f"--run {run} and --name {name} give the run two names: leave out --name")
    return name


def tag_of(text: str) -> tuple[str, str]:
    """One tag.

    Raises:
        UsageError: it cannot be.
    """
    name, equals, value = text.partition("=")
    if not (name and equals):
        raise UsageError(f"--tag {text!r}: give NAME=VALUE")
    if len(text) > MAX_NAME_LENGTH:
        raise UsageError(f"--tag {name[:20]}...: it has {len(text)} characters, more than {MAX_NAME_LENGTH}")
    return name, value


def records_of(flags: argparse.Namespace, environ: Mapping[str, str]) -> Path | None:
    """The folder in which the run gets one for its records.

    Raises:
        UsageError: it cannot be.
    """
    if flags.records is not None and flags.no_records:
        raise UsageError("--records and --no-records exclude each other: give only one of them")
    if flags.no_records:
        return None
    if flags.records is None:
        try:
            return default_root(environ)
        except RuntimeError:  # a user without a home
            return None
    if not flags.records:
        raise UsageError("--records '' is not a folder: name one, or give --no-records")
    return Path(flags.records).absolute()
