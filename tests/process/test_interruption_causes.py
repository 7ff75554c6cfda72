"""What the table of a run's interruptions says of each: how a worker was lost, which host left and who wanted it."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest

from edriver.client import Client, here
from edriver.client.requester import own_name
from edriver.runview.history import History
from tests.process.running import SCRIPTS, Hosts, edriver, running
from tests.waiting import until

TRAIN = [sys.executable, str(SCRIPTS / "train.py")]
FLAGS = ["-np", "3", "--min-np", "1", "--max-np", "3"]
FAR = "127.0.0.2"


def causes(client: Client) -> list[str]:
    """The causes in the table, but for the run's start, as the page and the report make it of the run's events."""
    history = History()
    for event in client.events():
        history.fold(event)
    return [each.cause for each in history.interruptions.all if each.kind not in ("boot", "stall")]


@pytest.mark.long
def test_each_interruption_has_its_cause_with_host_and_operator(tmp_path: Path) -> None:
    hosts = Hosts(tmp_path, "localhost:2", f"{FAR}:1")
    flags = [*FLAGS, "--host-discovery-script", str(hosts.script)]
    with running([*flags, *TRAIN], tmp_path, {"EPOCHS": "20000"}) as run:
        run.line("rank 2 passed step 5")
        with Client(here(run.id)) as client:

            def said(*words: str, times: int = 1) -> str:
                """The cause with these words, once the interruption is over."""

                def look() -> str | None:
                    found = [cause for cause in causes(client) if all(word in cause for word in words)]
                    return found[-1] if len(found) == times else None

                return until(look, lambda: f"{causes(client)}\n{run.text}")

            far, pid = member_on(client, FAR)
            name = f"(rank {far}, {FAR}:0)"
            os.kill(pid, signal.SIGSTOP)
            stopped = "did not answer for 5 s: its process is stopped by a signal (SIGSTOP or Ctrl-Z)"
            assert said(name, stopped).endswith(f"{name} {stopped}")
            said("1 worker joined on 127.0.0.2, 0 left")
            assert stopped in run.text

            os.kill(member_on(client, FAR)[1], signal.SIGKILL)
            said("was killed by SIGKILL")
            said("1 worker joined on 127.0.0.2, 0 left", times=2)
            assert not [cause for cause in causes(client) if cause.endswith("has ended")]

            hosts.are("localhost:2")
            assert said("discovery") == f"0 workers joined, 1 left: host {FAR} no longer named by discovery"
            hosts.are("localhost:2", f"{FAR}:1")
            said("1 worker joined on 127.0.0.2, 0 left", times=3)

            assert edriver("drain", FAR, "--reason", "maintenance", "--run", run.id).returncode == 0
            assert said("drained") == f"0 workers joined, 1 left: host {FAR} drained by {own_name()}: maintenance"

            assert edriver("resize", "1", "--run", run.id).returncode == 0
            assert said("resized") == f"0 workers joined, 1 left: resized to 1 by {own_name()}"

            assert edriver("resize", "2", "--run", run.id).returncode == 0
            assert said("resized to 2") == f"1 worker joined on localhost, 0 left: resized to 2 by {own_name()}"


def member_on(client: Client, host: str) -> tuple[int, int]:
    """The rank and the process id of the member on this host, as the driver knows it."""

    def look() -> list[tuple[int, int]]:
        # An agent names a worker's process in its heartbeat, which may come after its first round has begun.
        return [(worker.rank, worker.pid) for worker in client.status().workers if worker.host == host and worker.pid]

    (found,) = until(look)
    return found
