"""While a run has no driver, another process takes the driver's ports: the next driver names it and waits."""

from __future__ import annotations

import os
import re
import signal
import socket
import sys
from pathlib import Path

from tests.process.running import ROOT, SCRIPTS, Printing, Run, running

TRAIN = [sys.executable, str(SCRIPTS / "train.py")]


def resumed(run: Run, folder: Path) -> Printing:
    words = [sys.executable, "-m", "edriver", "resume", run.id]
    return Printing(words, folder, {"PYTHONPATH": str(ROOT), "XDG_STATE_HOME": str(folder / "state")})


def test_its_ports_are_waited_for_and_the_run_goes_on(tmp_path: Path) -> None:
    with socket.create_server(("", 0)) as free:
        metrics = free.getsockname()[1]
    flags = ["-np", "2", "--status-credentials", "status.json", "--metrics-port", str(metrics)]
    environ = {"XDG_STATE_HOME": str(tmp_path / "state"), "EPOCHS": "40000"}
    with running([*flags, *TRAIN], tmp_path, environ) as run:
        run.line("rank 1 passed step 5")
        port = int(re.search(r":(\d+)", (tmp_path / "status.json").read_text())[1])  # type: ignore[index]
        run.process.kill()
        run.process.wait()
        with socket.create_server(("", metrics)):
            with socket.create_server(("", port)):
                waiting = resumed(run, tmp_path)
                said = rf"port {port}, .*, is taken by process {os.getpid()} \(\S+\) of account \S+\. End that"
                waiting.line(said)
                waiting.process.send_signal(signal.SIGINT)
                assert waiting.end() == 130
                assert "SIGINT: the run continues" in waiting.text
                again = resumed(run, tmp_path)
                again.line(said)
            again.line("another driver has taken over")
            again.line(f"the run continues without metrics: .* at 127.0.0.1:{metrics}: Address already in use")
            again.line("rank 0 passed step ")
            again.process.send_signal(signal.SIGINT)
            assert again.end() == 130, again.text
        assert run.gone(), run.left_behind()
    assert "round 2." not in again.text  # no worker was started again
    assert "internal error" not in waiting.text + again.text
