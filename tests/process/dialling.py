"""Runs whose hosts dial in by themselves, on this machine."""

from __future__ import annotations

import contextlib
import os
import shlex
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.process.running import BOUND, ROOT, SCRIPTS, Run, running

CREDENTIALS = "a run.json"

TRAIN = [sys.executable, str(SCRIPTS / "train.py")]


class Agents:
    """Agents that dial a run, by the line that it prints.

    Args:
        run: the run.
        folder: for what they say.
        environ: more variables for them and their workers.
    """

    def __init__(self, run: Run, folder: Path, environ: dict[str, str]) -> None:
        self._run = run
        self._folder = folder
        self._environ = {"PYTHONPATH": str(ROOT), "EDRIVER_TEST": run.mark, **environ}
        self._started: list[subprocess.Popen[bytes]] = []

    def start(self, host: str, slots: int = 1, drivers: str | None = None) -> subprocess.Popen[bytes]:
        """Start one, as a host of this name; it looks for the driver there, or where the credentials say ("")."""
        printed = self._run.line(r"edriver agent --driver \S+:(\d+) --credentials (.+)$")
        (credentials,) = shlex.split(printed[2])
        drivers = f"127.0.0.1:{printed[1]}" if drivers is None else drivers
        with self._said_by(len(self._started)).open("wb") as message:
            agent = subprocess.Popen(
                [
                    *(sys.executable, "-m", "edriver", "agent", *(["--driver", drivers] if drivers else [])),
                    *("--credentials", credentials, "--host", host, "--slots", str(slots)),
                ],
                env={**os.environ, **self._environ},
                stdin=subprocess.DEVNULL,
                stderr=message,
                start_new_session=True,
            )
        self._started.append(agent)
        return agent

    def end(self) -> list[tuple[int, str]]:
        """Wait for all of them; what each ended with and said."""
        return [(agent.wait(BOUND), self._said_by(number).read_text()) for number, agent in enumerate(self._started)]

    def kill(self) -> None:
        """Kill those that live."""
        for agent in self._started:
            agent.kill()  # does nothing to one that has been waited for
            agent.wait()

    def _said_by(self, number: int) -> Path:
        return self._folder / f"agent-{number}.stderr"


@contextlib.contextmanager
def dialled(
    folder: Path, *flags: str, command: Sequence[str] = TRAIN, environ: dict[str, str] | None = None
) -> Iterator[tuple[Run, Agents]]:
    """A run whose hosts dial in, and who starts their agents."""
    environ = environ or {"EPOCHS": "20000"}
    args = ["--hosts-dial-in", "--credentials", str(folder / CREDENTIALS), *flags, *command]
    with running(args, folder, environ) as run:
        agents = Agents(run, folder, environ)
        try:
            yield run, agents
        finally:
            agents.kill()
