"""The flags that select a command's run."""

from __future__ import annotations

import argparse
from pathlib import Path

from edriver.client import Address, Client, RunError, elsewhere, here


def add_run_flags(parser: argparse.ArgumentParser, file: str) -> None:
    """Add them.

    Args:
        parser: the command's.
        file: the flag of `edriver` that names the credentials' file.
    """
    parser.add_argument("--run", metavar="RUN", help="the name or ID of the run, if you have several on this machine")
    parser.add_argument(
        "--credentials",
        metavar="FILE",
        type=Path,
        help=f"for a run on another machine: the file that its driver has written ({file})",
    )
    parser.add_argument(
        "--driver", metavar="HOST:PORT", help="with --credentials: the address of the driver (default: as in FILE)"
    )


def add_recorded_run(parser: argparse.ArgumentParser) -> None:
    """Add the run of a command that reads records, as an argument or, as for all other commands, as --run."""
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument(
        "run",
        metavar="RUN",
        nargs="?",
        default=argparse.SUPPRESS,
        help="a run's name (the latest of that name) or ID, the folder with its records, or an event log",
    )
    which.add_argument("--run", metavar="RUN", help="the same")


def client_of(flags: argparse.Namespace) -> Client:
    """A client of the selected run.

    Raises:
        RunError: no such run was found.
    """
    return Client(address_of(flags))


def address_of(flags: argparse.Namespace) -> Address:
    """The address of the selected run.

    Raises:
        RunError: no such run was found.
    """
    if flags.credentials is not None:
        return elsewhere(flags.credentials, flags.driver)
    if flags.driver is not None:
        raise RunError("--driver is for a run elsewhere: give the --credentials that its driver has written")
    return here(flags.run)
