"""The flags of what happens if the driver is killed."""

from __future__ import annotations

import argparse


def add_resume_flags(group: argparse._ArgumentGroup) -> None:
    """Add them."""
    group.add_argument(
        "--run",
        metavar="NAME",
        help="start the run with this name or, if there is one whose driver was killed, resume that: for command lines "
        "that are started again, by systemd for instance",
    )
    group.add_argument(
        "--supervise", action="store_true", help="start the driver again, and resume the run, if it is killed"
    )
    group.add_argument(
        "--no-journal", action="store_true", help="end the run if its driver is killed: it cannot be resumed then"
    )
