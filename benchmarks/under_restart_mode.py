"""A run of torchrun's own script under edriver, in restart mode."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Final

from benchmarks.jobs import HarnessError
from benchmarks.under_edriver import EdriverJob

_IDLE_SECONDS: Final = 1.0
"""For how long a standby uses no processor that has imported everything."""

_READY_BOUND: Final = 120.0


class RestartJob(EdriverJob):
    """A run under edriver of the script that torchrun runs, unchanged."""

    script = "benchmarks.torchrun_job"

    def settle(self) -> None:
        """Wait until each slot has a standby that has imported what the script did.

        Raises:
            HarnessError: they are not there in time.
        """
        deadline = time.monotonic() + _READY_BOUND
        used: dict[int, int] = {}
        while time.monotonic() < deadline:
            trained = {start.pid for start in self.look()[-1].starts.values()}
            waiting = [
                pid
                for pid, command in self.processes().items()
                if pid not in trained and "edriver.worker.restart" in command and "-m edriver -np" not in command
            ]
            before, used = used, {pid: _ticks(pid) for pid in waiting}
            if len(used) >= len(trained) and used == before:
                return
            time.sleep(_IDLE_SECONDS)
        raise HarnessError("not every slot has a standby", self.folder)


def _ticks(pid: int) -> int:
    """The processor time that a process has used, in ticks (proc(5): /proc/PID/stat)."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])
