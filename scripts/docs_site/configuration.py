"""The reference of settings, bounds and limits: what `edriver --explain` prints, and those of agents and workers."""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final
from unittest import mock

from edriver.agent.workers import worker_environment
from edriver.cli import explain
from edriver.cli.main import parser
from edriver.driver.config.options import RunOptions, options_of
from scripts.docs_site.command_line import anchor_of, flag_of
from scripts.docs_site.constants import constant, constants
from scripts.docs_site.markdown import cell, table
from scripts.docs_site.words import words

EXAMPLE: Final = ("-np", "4", sys.executable, "train.py")
"""The command line whose settings are shown: nothing is given that need not be."""

WORKER_BOUNDS: Final = (
    ("an agent's heartbeat to the driver, every", "edriver.agent.control_stream.HEARTBEAT_PERIOD"),
    (
        "an agent finds nothing listening at the driver's address for, and ends",
        "edriver.agent.control_stream.DRIVER_GONE_TIMEOUT",
    ),
    ("a host stays after SIGTERM to its agent (`--grace`)", "edriver.common.join_config.GRACE"),
    ("and its workers, between SIGTERM and SIGKILL, once it ends them", "edriver.agent.worker.TERMINATION_GRACE"),
    (
        "a worker whose agent's stream has ended ends its process group after",
        "edriver.worker.rounds.notification.ORPHAN_TIMEOUT",
    ),
    ("the members of a group prove their membership within", "edriver.worker.group.proven_pairs.PROOF_TIMEOUT"),
    (
        "a caller at a worker's store proves that it is a member within",
        "edriver.worker.group.store_server.AUTHENTICATION_TIMEOUT",
    ),
    ("a store that has no free descriptor pauses for", "edriver.worker.group.store_server._ACCEPT_RETRY_DELAY"),
    (
        "Gloo accepts what connected before its listener was closed within",
        "edriver.worker.backend.gloo.listener_filter.QUEUE_TIMEOUT",
    ),
    ("NCCL's communicators abort within, or the worker ends", "edriver.worker.backend.nccl.ABORT_TIMEOUT"),
    (
        "a worker leaves a collective of an aborted round within, or is suspected",
        "edriver.worker.rounds.severing.STUCK_BOUND",
    ),
    (
        "a worker reports that it stands still in a collective after",
        "edriver.worker.watch.blocked.BLOCKED_REPORT_DELAY",
    ),
    (
        "a script's thread that keeps the process is named after",
        "edriver.worker.watch.lingering.LINGERING_REPORT_DELAY",
    ),
)
"""What agents and workers wait for, by the constant's name."""


_HOME: Final = "/home/you"

_nobodys_environment = mock.patch.dict(os.environ, {"HOME": _HOME}, clear=True)
"""What is shown does not depend on whoever writes the page."""


@_nobodys_environment
def settings() -> str:
    """Every setting of a run with its default, grouped as --help is."""
    return "\n".join(_settings())


def _settings() -> Iterator[str]:
    top = parser()
    flags, judged = _judged()
    for group in top._action_groups:
        rows = []
        for action in group._group_actions:
            if action.dest in explain.OMITTED_FLAGS:
                continue
            text, origin = explain.value_of(action.dest, flags, judged, frozenset({"np"}))
            link = f"[`{flag_of(action)}`](command-line.md#{anchor_of(action)})"
            rows.append((link, cell(_anywhere(text)), cell("as given" if origin == explain.FLAG_ORIGIN else origin)))
        if rows:
            yield f"### {group.title and group.title[0].upper() + group.title[1:]}\n"
            yield table(("setting", "default", "origin"), rows)


@_nobodys_environment
def bounds() -> str:
    """The driver's bounds."""
    flags, judged = _judged()
    found = explain.bounds_of(judged, flags, frozenset({"np"}))
    return table(
        ("bound", "value", "origin"),
        [(cell(name), cell(_anywhere(value)), cell(origin)) for name, value, origin in found],
    )


def worker_bounds() -> str:
    """The bounds in agents and workers."""
    return table(("bound", "value"), [(cell(text), words(constant(name).value)) for text, name in WORKER_BOUNDS])


def limits() -> str:
    """The limits of what comes from outside."""
    rows = [
        (cell(found.words), f"{found.value:,}")
        for name, found in constants("edriver.model.limits").items()
        if not name.startswith("_")
    ]
    return table(("what", "at most"), rows)


def environment() -> str:
    """The variables that workers get unless the user has set them."""
    base = worker_environment.worker_environment(
        {},
        run_id="",
        worker_id=0,
        host="",
        slot=0,
        address="10.0.0.1",
        socket_path=Path(),
        ready_path=Path(),
        life_path=Path(),
        agent_pid=0,
        store_path=Path(),
    )
    return table(
        ("variable", "value"),
        [(f"`{name}`", f"`{value}`") for name, value in base.items() if not name.startswith(("EDRIVER_", "GRPC_"))],
    )


def _judged() -> tuple[argparse.Namespace, RunOptions]:
    flags, _ = parser().parse_known_args(EXAMPLE)
    return flags, options_of(flags)


def _anywhere(text: str) -> str:
    """Without what differs from machine to machine."""
    return re.sub(r" \(\d+ here\)", "", text.replace(_HOME, "~"))
