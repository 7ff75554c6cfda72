"""The checkpoint server's process that writes to disk: what it is sent, what is reported of it, and how it ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from edriver.checkpoint_server.disk import WRITER_NICENESS, DiskWriter
from edriver.common.copied_environment import moved
from edriver.model.ids import RoundId
from edriver.model.memory_checkpoint import CheckpointId, DiskReport, DiskTarget, DiskWrite
from tests.waiting import BOUND, until

OBEDIENT = """
import json, os, sys
job = json.loads(sys.stdin.readline())
print("a library prints this")
print(json.dumps({"name": "checkpoint-000001", "written": True}), flush=True)
for line in sys.stdin:
    print(json.dumps({"sealed": True}), flush=True)
    sys.exit()
open("gave-up", "w").write(json.dumps(job))
"""
NEVER_ENDS = "import time\ntime.sleep(3600)"
FULL = """
import json, sys
sys.stdin.readline()
print(json.dumps({"trouble": "/c: No space left on device\\n"}), flush=True)
sys.exit(1)
"""


class Host:
    """A server's writer, whose process runs a text."""

    def __init__(self, text: str, folder: Path, timeout: float = 3600.0) -> None:
        self.reports: list[DiskReport] = []
        self.processes: list[subprocess.Popen[bytes]] = []
        self.folder = folder

        def start(command: list[str], **options: object) -> subprocess.Popen[bytes]:
            assert command[0] == "/the/workers/python"
            process = subprocess.Popen([sys.executable, "-c", text], cwd=folder, **options)  # type: ignore[call-overload]
            self.processes.append(process)
            return process  # type: ignore[no-any-return]

        self.writer = DiskWriter(self.reports.append, "/agent/checkpoints.sock", "run", "a", timeout, start)

    def order(self, number: int = 1, *, seal: bool = False) -> None:
        target = DiskTarget("/shared", 3, "/the/workers/python")
        self.writer.order(DiskWrite(number, CheckpointId(RoundId(1, 2), 30, 4), b"l", (0, 1), target, "", seal))

    @property
    def last(self) -> DiskReport:
        return self.reports[-1]


@contextmanager
def host(text: str, folder: Path, timeout: float = 3600.0) -> Iterator[Host]:
    made = Host(text, folder, timeout)
    try:
        yield made
    finally:
        for process in made.processes:
            process.kill()


def test_it_reports_what_the_process_says_and_passes_on_that_all_parts_are_there(tmp_path: Path) -> None:
    with host(OBEDIENT, tmp_path) as made:
        made.order()
        until(lambda: made.last.written, "its part")
        assert made.last == DiskReport(1, "checkpoint-000001", written=True)
        made.order(seal=True)
        until(lambda: made.last.sealed, "the whole")
        assert made.processes[0].wait(BOUND) == 0
        assert not made.last.trouble
        assert len(made.processes) == 1, "the same order twice is one"


def test_training_goes_first(tmp_path: Path) -> None:
    with host(NEVER_ENDS, tmp_path) as made:
        made.order()
        assert os.getpriority(os.PRIO_PROCESS, made.processes[0].pid) == WRITER_NICENESS


def test_what_is_not_wanted_any_more_is_given_up_and_says_nothing_more(tmp_path: Path) -> None:
    with host(OBEDIENT, tmp_path) as made:
        made.order()
        until(lambda: made.last.written, "its part")
        made.writer.order(None)
        assert made.processes[0].wait(BOUND) == 0
        job = json.loads((tmp_path / "gave-up").read_text())
        assert (job["round_id"], job["step"], job["ranks"], job["location"]) == ([1, 2], 30, [0, 1], "/shared")
        assert not made.last.trouble


def test_the_next_one_removes_what_a_process_that_was_killed_has_left(tmp_path: Path) -> None:
    with host(OBEDIENT, tmp_path) as made:
        made.order()
        until(lambda: made.last.written, "its part")
        made.processes[0].kill()
        until(lambda: made.last.trouble, "a word")
        assert made.last.trouble == "the process that writes it has ended with SIGKILL"
        made.order(2)
        until(lambda: made.last.number == 2 and made.last.written, "its part")
        made.writer.close()
        until((tmp_path / "gave-up").exists, "the job")
        assert until(lambda: (tmp_path / "gave-up").read_text(), "the job").count("checkpoint-000001") == 1


def test_a_full_disk_is_reported_in_a_line(tmp_path: Path) -> None:
    with host(FULL, tmp_path) as made:
        made.order()
        until(lambda: made.last.trouble, "a word")
        assert made.last == DiskReport(1, trouble="/c: No space left on device?")


def test_a_process_that_takes_too_long_is_killed(tmp_path: Path) -> None:
    with host(NEVER_ENDS, tmp_path, timeout=0.1) as made:
        made.order()
        until(lambda: made.last.trouble, "a word")
        assert made.last.trouble == "the process that writes it has taken longer than 0.1 s"
        assert made.processes[0].wait(BOUND) == -signal.SIGKILL


def test_an_interpreter_that_is_gone_is_reported(tmp_path: Path) -> None:
    reports: list[DiskReport] = []
    writer = DiskWriter(reports.append, "/s", "run", "a")
    target = DiskTarget("/shared", 3, str(tmp_path / "python"))
    writer.order(DiskWrite(1, CheckpointId(RoundId(1, 1), 1, 1), b"", (0,), target))
    assert "cannot be started" in reports[-1].trouble


def test_the_interpreter_is_this_hosts_own_copy(tmp_path: Path) -> None:
    reports: list[DiskReport] = []
    writer = DiskWriter(reports.append, "/s", "run", "a", local=lambda path: moved(path, "/shared", str(tmp_path)))
    target = DiskTarget("/shared", 3, "/shared/bin/python")
    writer.order(DiskWrite(1, CheckpointId(RoundId(1, 1), 1, 1), b"", (0,), target))
    assert reports[-1].trouble.startswith(f"{tmp_path}/bin/python cannot be started")
