"""The processes that report a run to experiment trackers (edriver/reporting): started with it, and ended with it."""

from __future__ import annotations

import asyncio
import logging
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from typing import IO, Final

from edriver.system.child import Child
from edriver.text.printable import printable_line

_log = logging.getLogger("edriver.driver")

END_TIMEOUT: Final = 300.0
"""Most seconds that a run that has ended waits until the trackers have all of it,"""

QUIET_END: Final = 2.0
"""and those after which it says that it waits."""


class Reporters:
    """One process for each library. Training goes on if it ends, whatever it dies of.

    Args:
        libraries: see edriver.reporting.LIBRARIES.
        run_id: the run.
        resumed: whether it has had another driver.
        start: starts a process whose output is a pipe.
    """

    def __init__(
        self,
        libraries: Sequence[str],
        run_id: str,
        *,
        resumed: bool,
        start: Callable[[Sequence[str]], Child] | None = None,
    ) -> None:
        more = ["--resumed"] if resumed else []
        self._commands = {
            library: [sys.executable, "-m", "edriver.reporting", library, run_id, *more] for library in libraries
        }
        self._start = start or _with_pipe
        self._running: dict[str, Child] = {}
        self._ended = asyncio.Event()

    @property
    def running(self) -> list[str]:
        """The libraries whose processes have not ended."""
        return list(self._running)

    def start(self) -> None:
        """Start them, once the run's driver answers at its socket."""
        for library, command in self._commands.items():
            try:
                child = self._start(command)
                child.watch(lambda library=library: self._exited(library))  # type: ignore[misc]
            except OSError as error:
                _log.warning("%s: the run is not reported to it: %s", library, error)
                continue
            self._running[library] = child
            assert child.stdout is not None
            name = f"edriver-report-{library}"
            threading.Thread(target=_print, args=(library, child.stdout), name=name, daemon=True).start()

    async def end(self, hurry: asyncio.Event) -> None:
        """Wait until they have reported how the run ended, which they have been sent.

        Args:
            hurry: set when the operator does not want to wait.
        """
        for bound in (QUIET_END, END_TIMEOUT):
            if not self._running or hurry.is_set():
                break
            if bound == END_TIMEOUT:
                names = " and ".join(self._running)
                _log.info("waiting up to %.0f s for %s to have the whole run (Ctrl-C: no longer)", bound, names)
            waits = {asyncio.create_task(self._ended.wait()), asyncio.create_task(hurry.wait())}
            await asyncio.wait(waits, timeout=bound, return_when=asyncio.FIRST_COMPLETED)
            for wait in waits:
                wait.cancel()
        self.close()

    def close(self) -> None:
        """Kill those that have not ended."""
        for library, child in self._running.items():
            child.reap()
            _log.warning("%s: it did not take the last of the run in time", library)
        self._running.clear()

    def _exited(self, library: str) -> None:
        child = self._running.pop(library, None)
        if child is None:
            return
        code = child.reap()
        if code:
            _log.warning(
                "%s: the run is no longer reported to it (exit code %s); training is not affected", library, code
            )
        if not self._running:
            self._ended.set()


def _with_pipe(command: Sequence[str]) -> Child:
    return Child(command, stdout=subprocess.PIPE, tethered=True)


def _print(library: str, lines: IO[bytes]) -> None:
    with lines:
        for line in lines:
            _log.info("%s: %s", library, printable_line(line.decode(errors="replace").rstrip("\n")))
