"""The address of a run's driver, and the credentials for it."""

from __future__ import annotations

import contextlib
import os
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from edriver.client.errors import RunError
from edriver.common.join_config import JoinConfig
from edriver.system.record_folder import called, default_root, has_journal, recorded_names
from edriver.system.runs import living_names, living_runs
from edriver.text.phrases import runs_text
from edriver.text.suggestion import did_you_mean_run

__all__ = ["Address", "elsewhere", "here", "living_names", "living_runs"]


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


def here(run: str | None = None) -> Address:
    """Return the address of a run of this user on this machine.

    Args:
        run: the run's ID, or its name; None: the only run on this machine.

    Raises:
        RunError: the run does not exist, or there are several.
    """
    sockets = living_runs()
    names = living_names(sockets)
    meant = list(sockets) if run is None else called(run, names)
    if len(meant) != 1:
        raise RunError(_which(run, meant, names))
    return Address(meant[0], f"unix:{sockets[meant[0]]}")


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


def _which(wanted: str | None, meant: list[str], names: Mapping[str, str]) -> str:
    """Why it is not one run that is meant.

    Args:
        wanted: its ID or name, if one was given.
        meant: the runs that it could be.
        names: the names of all runs in progress, by run_id.
    """
    if meant:
        several = "there are several runs" if wanted is None else f"several runs have the name {wanted!r}"
        return f"{several}: choose one with --run: {runs_text(meant, names)}"
    if wanted is not None and (state := _without_driver(wanted)):
        return state
    if not names:
        return "you have no run on this machine: run this where its driver runs, or give --credentials"
    suggestion = did_you_mean_run(str(wanted), names) or f", only {runs_text(names, names)}"
    return f"you have no run {wanted!r} here{suggestion}"


def _without_driver(run: str) -> str:
    """The state of a run of which only its records are here; empty: it has none in the default folder."""
    with contextlib.suppress(RuntimeError):
        root = default_root(os.environ)
        if recorded := called(run, recorded_names(root)):
            if has_journal(root / recorded[0]):
                return f"run {run} has no driver now: if none is taking it over, edriver resume {shlex.quote(run)} does"
            return f"run {run} has ended: edriver report {shlex.quote(run)} shows how"
    return ""
