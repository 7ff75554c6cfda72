"""Writes this host's part of a checkpoint to disk: in a process with the workers' torch, one at a time.

That process (edriver.worker.checkpoints.memory.to_disk) gets its job as a line of JSON, says how far it is in lines of
JSON, and ends when its standard input does, which is when this server ends.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import threading
from collections.abc import Callable
from dataclasses import replace
from signal import Signals
from typing import Any, Final

from edriver.checkpoint_server.keeper import sentence
from edriver.model.memory_checkpoint import DiskReport, DiskWrite

WRITER: Final = "edriver.worker.checkpoints.memory.to_disk"
"""The module that writes."""

WRITER_NICENESS: Final = 5
"""Training goes before it, and yet it comes to its end on a busy machine. Once training has ended, it has the priority
of other processes: with a lower one, the end of a run once took nine minutes on a machine at load 14."""

WRITE_TIMEOUT: Final = 3600.0
"""Seconds that a host may take to write its part."""

STOP_TIMEOUT: Final = 10.0
"""Seconds that the process may take to end if its part is not wanted any more."""

SEAL: Final = b"seal\n"
"""Has the process complete the checkpoint."""


class DiskWriter:
    """Carries out orders to write.

    Args:
        report: takes how far the last order is.
        socket: of this server, for the process to find shards.
        run_id: the run,
        host: and this host, to whom the folder belongs.
        timeout: see WRITE_TIMEOUT.
        local: where this host has an interpreter that all hosts have.
        start: starts a process: subprocess.Popen.
    """

    def __init__(
        self,
        report: Callable[[DiskReport], None],
        socket: str,
        run_id: str,
        host: str,
        timeout: float = WRITE_TIMEOUT,
        start: Callable[..., subprocess.Popen[bytes]] = subprocess.Popen,
        local: Callable[[str], str] = lambda interpreter: interpreter,
    ) -> None:
        self._report = report
        self._socket = socket
        self._run_id = run_id
        self._host = host
        self._timeout = timeout
        self._start = start
        self._local = local
        self._lock = threading.Lock()
        self._job: _Job | None = None
        self._number = 0
        self._unfinished = ""

    def order(self, write: DiskWrite | None) -> None:
        """Write this, and nothing else any more; None: nothing."""
        with self._lock:
            if write is None:
                self._stop()
            elif write.number != self._number:
                self._stop()
                self._begin(write)
            elif write.seal and self._job is not None:
                self._job.seal()

    def close(self) -> None:
        """End what is being written."""
        with self._lock:
            self._stop()

    def _begin(self, write: DiskWrite) -> None:
        self._number = write.number
        job = {
            "socket": self._socket,
            "round_id": write.checkpoint.round_id,
            "step": write.checkpoint.step,
            "size": write.checkpoint.size,
            "layout": write.layout.hex(),
            "ranks": write.ranks,
            "location": write.target.location,
            "keep": write.target.keep,
            "name": write.name,
            "unfinished": self._unfinished if write.leads else "",
        }
        environment = {
            **os.environ,
            "EDRIVER_RUN_ID": self._run_id,
            "EDRIVER_HOST": self._host,
            "EDRIVER_AGENT_PID": str(os.getppid()),
            "OMP_NUM_THREADS": "1",
        }
        report = DiskReport(write.number, write.name)
        interpreter = self._local(write.target.interpreter)
        try:
            process = self._start(
                [interpreter, "-m", WRITER],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env=environment,
            )
        except OSError as error:
            self._report(replace(report, trouble=sentence(f"{interpreter} cannot be started: {error}")))
            return
        if not write.urgent:
            with contextlib.suppress(OSError):  # it has ended already
                os.setpriority(os.PRIO_PROCESS, process.pid, WRITER_NICENESS)
        self._report(report)
        self._job = _Job(process, write.leads, report, self._say, self._timeout)
        self._job.start(json.dumps(job).encode() + b"\n")

    def _say(self, job: _Job, report: DiskReport) -> None:
        with self._lock:
            if job is self._job:
                if report.name and job.leads:
                    self._unfinished = "" if report.sealed else report.name
                self._report(report)

    def _stop(self) -> None:
        if self._job is not None:
            self._job.stop()
            self._job = None


class _Job:
    """One process, with the thread that reads what it says and reaps it."""

    def __init__(
        self,
        process: subprocess.Popen[bytes],
        leads: bool,
        report: DiskReport,
        say: Callable[[_Job, DiskReport], None],
        timeout: float,
    ) -> None:
        self.leads = leads
        self._process = process
        self._report = report
        self._say = say
        self._timeout = timeout
        self._late = threading.Event()

    def start(self, job: bytes) -> None:
        self._send(job)
        threading.Thread(target=self._run, name="edriver-disk", daemon=True).start()

    def seal(self) -> None:
        self._send(SEAL)

    def stop(self) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()  # it removes what it has begun, and ends
        timer = threading.Timer(STOP_TIMEOUT, self._process.kill)
        timer.daemon = True
        timer.start()

    def _send(self, line: bytes) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):  # it has ended: the thread says so
            self._process.stdin.write(line)
            self._process.stdin.flush()

    def _run(self) -> None:
        assert self._process.stdout is not None
        assert self._process.stdin is not None
        timer = threading.Timer(self._timeout, self._end_late)
        timer.daemon = True
        timer.start()
        for line in self._process.stdout:
            self._take(line)
        code = self._process.wait()
        timer.cancel()
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        self._process.stdout.close()
        report = self._report
        if report.trouble or report.sealed or (report.written and not self.leads):
            return
        reason = f"has taken longer than {self._timeout:g} s" if self._late.is_set() else f"has ended with {_end(code)}"
        self._note({"trouble": f"the process that writes it {reason}"})

    def _end_late(self) -> None:
        self._late.set()
        self._process.kill()

    def _take(self, line: bytes) -> None:
        with contextlib.suppress(ValueError):  # something else printed it
            found = json.loads(line)
            if isinstance(found, dict):
                self._note(found)

    def _note(self, found: dict[str, Any]) -> None:
        before = self._report
        self._report = replace(
            before,
            name=str(found.get("name", before.name)),
            written=before.written or found.get("written") is True,
            sealed=before.sealed or found.get("sealed") is True,
            trouble=sentence(str(found.get("trouble", before.trouble))),
        )
        self._say(self, self._report)


def _end(code: int) -> str:
    return Signals(-code).name if code < 0 else f"exit code {code}"
