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
    group.add_argument(
        "--etcd",
        metavar="URL,...",
        help="keep the journal in etcd instead of the run's records, so that a driver on another machine can take "
        "over: the members, as https://HOST:PORT; their TLS files as for etcdctl (ETCDCTL_CACERT, ETCDCTL_CERT, "
        "ETCDCTL_KEY)",
    )
    group.add_argument(
        "--standby",
        action="store_true",
        help="with --etcd: if the run has a driver, wait, and take over when that one is gone",
    )
    group.add_argument(
        "--driver-addresses",
        metavar="HOST:PORT,...",
        help="where hosts look for the run's driver if it is not where it was: on this machine and those on which the "
        "run may be resumed, each with its --port",
    )
