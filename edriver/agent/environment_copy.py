"""This host's copy of the Python environment that its workers run in (--copy-environment): made, and removed again.

It is copied in threads: the agent's heartbeats go on, and a stop of the run ends it soon. The folder is this agent's
own, locked like all of them, so that its guard or the next run removes it if the agent cannot. The agent that replaces
one that was killed makes another copy.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import shutil
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

from edriver.agent.workers.relocation import Relocation, environment_folder, lead_programs_into
from edriver.system.folder_copy import CopyStoppedError, copy_folder
from edriver.system.guard import Guard
from edriver.system.leftovers import FOLDER_PREFIX, hold, remove_leftovers
from edriver.text.wire_text import wire_text
from edriver.v1 import agent_pb2
from edriver.wire.conversion import duration

logger = logging.getLogger("edriver.agent")


class EnvironmentCopy:
    """The copy of this host.

    Args:
        guard: removes it if the agent cannot.
        say: sends the driver how far it is.
        clock: seconds, never set back.
    """

    def __init__(
        self,
        guard: Guard,
        say: Callable[[agent_pb2.EnvironmentCopy], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._guard = guard
        self._say = say
        self._clock = clock
        self._stopped = threading.Event()
        self._folder: Path | None = None

    async def make(self, where: str, command: Sequence[str], environment: Mapping[str, str]) -> Relocation | None:
        """Copy the environment in which a command runs.

        Args:
            where: the folder below which the copy is made; variables in it are this host's.
            command: a worker's command.
            environment: the workers' variables.

        Returns:
            how to start workers in it; None: there is no copy, and the driver knows why.
        """
        try:
            source = await asyncio.to_thread(environment_folder, command, environment)
        except OSError as error:
            self._say(agent_pb2.EnvironmentCopy(trouble=wire_text(_reason(error))))
            return None
        if source is None:
            text = "the workers' command runs in the Python of the system, or in none: nothing is copied"
            self._say(agent_pb2.EnvironmentCopy(trouble=text))
            return None
        folder = os.path.expandvars(where)
        news = partial(agent_pb2.EnvironmentCopy, source=wire_text(str(source)), folder=wire_text(folder))
        self._say(news())
        began = self._clock()
        try:
            copy, size = await asyncio.to_thread(self._copy, source, Path(folder))
        except CopyStoppedError:
            return None
        except (OSError, ValueError) as error:
            await self.remove()
            self._say(news(trouble=wire_text(_reason(error))))
            return None
        self._say(news(took=duration(self._clock() - began), bytes=size))
        return Relocation(source, copy)

    def stop(self) -> None:
        """Copy no further: the run ends."""
        self._stopped.set()

    async def remove(self) -> None:
        """Remove what was copied."""
        if self._folder is not None:
            await asyncio.to_thread(shutil.rmtree, self._folder, ignore_errors=True)

    def _copy(self, source: Path, where: Path) -> tuple[Path, int]:
        """Make the copy below a folder; returns its path, and how many bytes it has.

        Raises:
            OSError: it cannot be made.
            ValueError: it would be in the environment itself.
            CopyStoppedError: it was stopped.
        """
        where = where.resolve(strict=True)
        if where.is_relative_to(source.resolve()):
            raise ValueError("that is a folder of the environment itself")
        for leftover in remove_leftovers([where]):
            logger.warning("%s", leftover)
        folder = where / f"{FOLDER_PREFIX}{secrets.token_hex(8)}"
        self._guard.also_remove(folder)
        self._folder = folder
        folder.mkdir(mode=0o700)
        hold(folder)
        copy = folder / "python"
        copy.mkdir(mode=0o700)
        copied = copy_folder(source, copy, self._stopped)
        lead_programs_into(source, copy)
        return copy, copied.bytes


def _reason(error: OSError | ValueError) -> str:
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return str(error)
