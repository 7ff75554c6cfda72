"""Slurm's commands, each run once, with a bound."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from edriver.discovery.errors import DiscoveryError
from edriver.discovery.script import run_script

COMMAND_TIMEOUT: Final = 15.0
"""Seconds that a command may take. Slurm's own wait for the controller is MessageTimeout, 10 s by default."""

RunCommand = Callable[[Sequence[str]], Awaitable[str]]
"""Runs a command and returns what it prints; raises SlurmError."""


class SlurmError(Exception):
    """A command of Slurm cannot be run or has failed. The message names the command and has its last words."""


async def run_command(words: Sequence[str]) -> str:
    """Run one command; returns what it prints.

    Raises:
        SlurmError: it cannot be started, has failed, or takes too long.
    """
    try:
        return (await run_script(words, COMMAND_TIMEOUT)).decode(errors="replace")
    except OSError as error:
        raise SlurmError(
            f"{words[0]} cannot be run here ({error.strerror}): Slurm's commands have to be on PATH"
        ) from error
    except DiscoveryError as error:
        raise SlurmError(f"{words[0]} {error}") from error
