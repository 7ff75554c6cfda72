"""A driver, one that stands by, and two hosts that train."""

from __future__ import annotations

import socket
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tests.etcd.cluster import Cluster
from tests.process.dialling import Agents, dialled
from tests.process.resuming import TRAIN, environ_of
from tests.process.running import ROOT, Printing, Run


class Standby(Printing):
    """A driver that stands by for the run of a test, with a folder of its own for records."""

    def __init__(self, args: list[str], folder: Path) -> None:
        environ = {"PYTHONPATH": str(ROOT), "XDG_STATE_HOME": str(folder / "state-of-standby")}
        super().__init__([sys.executable, "-m", "edriver", "--standby", *args], folder, environ)


class Pair:
    """A run with a driver and a standby, and two hosts that have dialled in and train."""

    def __init__(self, run: Run, agents: Agents, standby: Standby, command: list[str]) -> None:
        self.run, self.agents, self.standby, self.standby_command = run, agents, standby, command
        self.pids = run.pids()


@contextmanager
def pair(cluster: Cluster, folder: Path, **environ: str) -> Iterator[Pair]:
    with ExitStack() as held:
        ports = [held.enter_context(socket.create_server(("127.0.0.1", 0))).getsockname()[1] for _ in range(2)]
    addresses = ",".join(f"127.0.0.1:{port}" for port in ports)
    flags = ["-np", "2", "--min-np", "1", "--run", "big", "--etcd", cluster.urls, "--driver-addresses", addresses]
    with dialled(folder, *flags, "--port", str(ports[0]), environ=environ_of(folder, **environ)) as (run, agents):
        agents.start("a", drivers=addresses)
        agents.start("b", drivers="")
        run.line("rank 1 passed step 5")
        command = [*flags, "--port", str(ports[1]), "--hosts-dial-in", "--credentials", str(folder / "c.json"), *TRAIN]
        standby = Standby(command, folder)
        try:
            standby.line("standing by for run big, whose driver is ")
            yield Pair(run, agents, standby, command)
        finally:
            standby.process.kill()
            standby.process.wait()
