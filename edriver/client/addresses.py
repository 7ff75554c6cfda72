"""The address of a run's driver, and the credentials for it."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from pathlib import Path

from edriver.client.errors import RunError
from edriver.common.join_config import JoinConfig
from edriver.system.record_folder import RUN_FILE, default_root, is_run_id
from edriver.system.runs import living_runs

__all__ = ["Address", "elsewhere", "here", "living_runs"]


@dataclass(frozen=True, slots=True, repr=False)
class Address:
    """The address of a run's driver.

    Attributes:
        run_id: the ID of the run.
        target: the driver's gRPC target.
        authority: the CA certificate (PEM) that verifies the driver; empty: no TLS.
        token: the token to authenticate with.
    """

    run_id: str
    target: str
    authority: str = ""
    token: str = ""


def here(run_id: str | None = None) -> Address:
    """Return the address of a run of this user on this machine.

    Args:
        run_id: the run's ID; None: the only run on this machine.

    Raises:
        RunError: the run does not exist, or there are several.
    """
    runs = living_runs()
    if run_id is None and len(runs) == 1:
        run_id = next(iter(runs))
    if run_id is None or run_id not in runs:
        raise RunError(_which(run_id, list(runs)))
    return Address(run_id, f"unix:{runs[run_id]}")


def elsewhere(credentials: Path, driver: str | None = None) -> Address:
    """Return the address of the run that has written these credentials.

    Args:
        credentials: the file that --status-credentials or --control-credentials names.
        driver: HOST:PORT of the driver; None: as in the file.

    Raises:
        RunError: the file cannot be used.
    """
    try:
        shown = JoinConfig.from_json(credentials.read_bytes())
    except OSError as error:
        raise RunError(f"--credentials {credentials}: {error.strerror}") from None
    except ValueError as error:
        raise RunError(f"--credentials {credentials}: {error}") from None
    if not driver and not shown.drivers:
        raise RunError(f"--credentials {credentials} does not contain the driver's address: give --driver HOST:PORT")
    target = driver or shown.drivers[0]
    if not driver and shown.other_drivers:
        from edriver.wire.driver_channel import target_of  # imports gRPC, which help and hints do not need

        target = target_of((*shown.drivers, *shown.other_drivers))
    return Address(shown.run_id, target, shown.authority, shown.token)


def _which(wanted: str | None, runs: list[str]) -> str:
    if wanted is not None and _has_records(wanted):
        return f"run {wanted} has ended: edriver report {wanted} shows how"
    if not runs:
        return "you have no run on this machine: run this where its driver runs, or give --credentials"
    names = ", ".join(runs)
    if wanted is None:
        return f"there are several runs: choose one with --run: {names}"
    return f"you have no run {wanted!r} here, only {names}"


def _has_records(run_id: str) -> bool:
    """Whether a run of this user has written records in the default folder."""
    with contextlib.suppress(RuntimeError, OSError, ValueError):
        return is_run_id(run_id) and (default_root(os.environ) / run_id / RUN_FILE).exists()
    return False
