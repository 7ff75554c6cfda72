"""The way to the driver of a run that goes on, for commands that ask it something."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import grpc

from edriver.driver.runs import living_runs
from edriver.invitation import SERVER_NAME, Invitation

ANSWER_BOUND: Final = 10.0
"""Seconds that the driver may take to answer."""


class UnansweredError(Exception):
    """It cannot be done; the message is one sentence for whoever has asked."""


@contextlib.contextmanager
def run_here(wanted: str | None) -> Iterator[tuple[str, grpc.Channel]]:
    """The id of a run of this user on this machine, and the way to its driver.

    Args:
        wanted: its id; None: the only one that there is.

    Raises:
        UnansweredError: there is no such run, or several; the driver refuses what it is asked.
    """
    runs = living_runs()
    if wanted is None and len(runs) == 1:
        wanted = next(iter(runs))
    if wanted not in runs:
        raise UnansweredError(_which(wanted, list(runs)))
    assert wanted is not None
    with grpc.insecure_channel(f"unix:{runs[wanted]}") as channel, _answers(wanted):
        yield wanted, channel


@contextlib.contextmanager
def run_elsewhere(credentials: Path, driver: str | None) -> Iterator[tuple[str, grpc.Channel]]:
    """The id of the run that has written these credentials, and the way to its driver.

    Args:
        credentials: the file.
        driver: HOST:PORT; None: as the file says.

    Raises:
        UnansweredError: the file cannot be used; the driver does not answer, or refuses what it is asked.
    """
    try:
        shown = Invitation.from_json(credentials.read_bytes())
    except OSError as error:
        raise UnansweredError(f"--credentials {credentials}: {error.strerror}") from None
    except ValueError as error:
        raise UnansweredError(f"--credentials {credentials}: {error}") from None
    (where,) = (driver,) if driver else shown.drivers[:1] or ("",)
    if not where:
        raise UnansweredError(f"--credentials {credentials} does not say where the driver is: give --driver HOST:PORT")
    with _channel(where, shown) as channel, _answers(shown.run_id):
        yield shown.run_id, channel


def _channel(where: str, shown: Invitation) -> grpc.Channel:
    if not shown.authority:
        return grpc.insecure_channel(where, options=(("grpc.enable_http_proxy", 0),))
    papers = grpc.composite_channel_credentials(
        grpc.ssl_channel_credentials(shown.authority.encode()), grpc.access_token_call_credentials(shown.token)
    )
    options = (("grpc.ssl_target_name_override", SERVER_NAME), ("grpc.enable_http_proxy", 0))
    return grpc.secure_channel(where, papers, options=options)


@contextlib.contextmanager
def _answers(run_id: str) -> Iterator[None]:
    try:
        yield
    except grpc.RpcError as error:
        raise UnansweredError(f"run {run_id}: {error.details()}") from None


def _which(wanted: str | None, runs: list[str]) -> str:
    if not runs:
        return "no run of yours is on this machine: ask where its driver runs"
    names = ", ".join(runs)
    if wanted is None:
        return f"there are several runs, say which by --run: {names}"
    return f"there is no run {wanted!r} of yours here; there is {names}"
