"""`edriver agent`: an agent that anything may start (a pod, a batch job), and that dials in on its own."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from edriver.agent.workers.worker_environment import cuda_devices
from edriver.common.join_config import ENDED_KEY, GRACE, JoinConfig
from edriver.model import limits
from edriver.text.command_parser import CommandParser, seconds_between

NO_AGENT_ID: Final = 0
"""The agent_id of an agent that has not been assigned one yet."""

MAX_GRACE: Final = 24 * 3600.0
"""Most seconds that a host may stay after SIGTERM to its agent."""

LISTEN_TIMEOUT: Final = 5.0
"""Seconds that a driver may take to accept a connection; taking longer does not mean that it is gone."""


def parser() -> argparse.ArgumentParser:
    """The flags."""
    made = CommandParser(
        prog="edriver agent",
        description="Joins this host to a run that was started with --hosts-dial-in, until the run ends.",
    )
    made.add_argument(
        "--driver",
        metavar="HOST:PORT,...",
        help="the address of the run's driver, and those of drivers that stand by (default: as in the credentials)",
    )
    made.add_argument(
        "--credentials",
        required=True,
        metavar="FILE",
        type=Path,
        help="the file that the run's driver has written (--credentials)",
    )
    made.add_argument(
        "--host",
        default=socket.gethostname(),
        metavar="NAME",
        help="the name of this host in the run (default: its hostname)",
    )
    made.add_argument(
        "--slots", type=int, metavar="N", help="number of workers that this host takes (default: one per GPU, or 1)"
    )
    made.add_argument(
        "--no-wait",
        action="store_true",
        help="end at once if no driver listens at its address, instead of waiting for it: for jobs that the run itself "
        "has submitted, and that may start after its end",
    )
    made.add_argument(
        "--network-interface",
        default="",
        metavar="NAME",
        help="the network interface through which other hosts reach this one",
    )
    made.add_argument(
        "--exit-code-if-drained",
        dest="left_code",
        type=int,
        choices=range(256),
        default=0,
        metavar="CODE",
        help="the exit code if this host leaves while the run continues, for a service that then starts a replacement "
        "(default: 0)",
    )
    made.add_argument(
        "--grace",
        type=seconds_between(1, MAX_GRACE),
        default=GRACE,
        metavar="SECONDS",
        help="how long this host stays after SIGTERM or SIGUSR1 to the agent: meanwhile its workers train on until "
        f"others can take their places (default: {GRACE:g})",
    )
    made.add_argument(
        "--health-port",
        type=int,
        default=0,
        metavar="PORT",
        help="serve grpc.health.v1 there, without TLS, for probes: liveness, and readiness once the run has let this "
        "host in",
    )
    return made


def join_config_of(arguments: Sequence[str]) -> JoinConfig:
    """What the flags and the credentials come to.

    Raises:
        ValueError: the credentials cannot be used.
        RunEndedError: their run has ended.
    """
    flags = parser().parse_args(arguments)
    if flags.no_wait and not flags.credentials.exists():
        raise ValueError(f"the run has ended: its credentials {flags.credentials} no longer exist")
    try:
        _check_private(flags.credentials)
        credentials = flags.credentials.read_bytes()
        _check_not_ended(credentials)
        run = JoinConfig.from_json(credentials)
    except OSError as error:
        raise ValueError(f"--credentials {flags.credentials}: {error.strerror}") from None
    drivers = _drivers_of(flags, run)
    if flags.no_wait:
        _see_that_it_listens(drivers)
    limits.check_host(flags.host, "--host")
    slots = limits.check_slots(max(1, len(cuda_devices(os.environ))) if flags.slots is None else flags.slots, "--slots")
    return JoinConfig(
        run_id=run.run_id,
        host=flags.host,
        agent_id=NO_AGENT_ID,
        drivers=drivers[:1],
        other_drivers=drivers[1:],
        authority=run.authority,
        token=run.token,
        interface=flags.network_interface,
        slots=slots,
        health_port=_health_port_of(flags.health_port),
        left_code=flags.left_code,
        grace=flags.grace,
    )


def _drivers_of(flags: argparse.Namespace, run: JoinConfig) -> tuple[str, ...]:
    """Where the driver may be: as the flag says, or the credentials.

    Raises:
        ValueError: neither says it.
    """
    if flags.driver is not None:
        try:
            return limits.addresses_of(flags.driver)
        except ValueError as error:
            raise ValueError(f"--driver {error}") from None
    if drivers := (*run.drivers, *run.other_drivers):
        return drivers
    raise ValueError(
        f"--credentials {flags.credentials} does not contain the driver's address: give --driver HOST:PORT"
    )


def _see_that_it_listens(drivers: Sequence[str]) -> None:
    """See whether a driver listens at one of these addresses.

    Raises:
        ValueError: none does. A driver that cannot be reached for another reason may be there.
    """
    for driver in drivers:
        host, _, port = driver.rpartition(":")
        try:
            socket.create_connection((host.strip("[]"), int(port)), LISTEN_TIMEOUT).close()
        except ConnectionRefusedError:
            continue
        except OSError:
            pass  # the agent itself dials again and again
        return
    raise ValueError(f"the run has ended: nothing listens at its driver's address, {', '.join(drivers)}")


class RunEndedError(Exception):
    """The run that the credentials are of has ended; the message says so."""


def _check_not_ended(credentials: bytes) -> None:
    """Look whether the driver has put the end of its run in the place of its credentials.

    Raises:
        RunEndedError: it has.
    """
    with contextlib.suppress(ValueError):
        found = json.loads(credentials)
        if isinstance(found, dict) and ENDED_KEY in found:
            raise RunEndedError(f"run {found.get('run_id', '')} has ended: there is nothing to do for this host")


def _check_private(path: Path) -> None:
    """Check that only authorized accounts can read the file.

    A group-readable file of root is one that root has given to this user: the kubelet does so with a Secret in a pod
    with an fsGroup.

    Raises:
        OSError: the file does not exist.
        ValueError: others can read it.
    """
    found = path.stat()
    if found.st_mode & (0o007 if found.st_uid == 0 else 0o077):
        raise ValueError(f"{path} can be read by others: chmod 600 it, for it holds the run's token")


def _health_port_of(port: int) -> int:
    if not 0 <= port < 65536:
        raise ValueError(f"--health-port is {port}: ports lie between 1 and 65535")
    return port
