"""`edriver credentials`: a run's credentials, made before the run starts."""

from __future__ import annotations

import argparse
import datetime
import os
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from edriver.system.private_files import make_private
from edriver.text.command_parser import CommandParser

DRIVER_FILE, AGENT_FILE = "driver.json", "agent.json"
"""The driver's file, with all secrets of the run; and the agents'."""

_AFTER: Final = (
    "the driver: edriver --hosts-dial-in --run-credentials {driver} --port PORT ...\n"
    "its hosts:  edriver agent --driver HOST:PORT --credentials {agent}"
)


def parser() -> argparse.ArgumentParser:
    """The flags."""
    made = CommandParser(
        prog="edriver credentials",
        description="Makes the credentials of one run before it starts, for hosts that may dial in earlier than the "
        f"driver listens. Writes {DRIVER_FILE} and {AGENT_FILE}, readable by you alone.",
    )
    made.add_argument(
        "folder", metavar="DIR", type=Path, help="the folder for both files; created if it does not exist"
    )
    return made


def credentials(arguments: Sequence[str]) -> str:
    """Write the files; returns what to do with them.

    Raises:
        OSError: they cannot be written, or are there already: another run may depend on them.
    """
    from edriver.driver.services.run_credentials import RunCredentials

    folder: Path = parser().parse_args(arguments).folder
    made = RunCredentials.new(datetime.datetime.now(datetime.UTC))
    make_private(folder)
    for name, content in ((DRIVER_FILE, made.for_driver()), (AGENT_FILE, made.for_agents())):
        with os.fdopen(os.open(folder / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(content)
    driver, agent = (shlex.quote(str(folder / name)) for name in (DRIVER_FILE, AGENT_FILE))
    return _AFTER.format(driver=driver, agent=agent)
