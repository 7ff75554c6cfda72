"""torchrun's own processes on `edriver rendezvous`: nodes, a kill, a restart of the server, and the status command."""

from __future__ import annotations

import os
import re
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.process.running import QUICK_WORKERS, SCRIPTS, Printing, edriver
from tests.rendezvous_server import Server, serving
from tests.strict_json import strict


class Node(Printing):
    """An agent of torchrun."""

    def __init__(self, name: str, server: Server, folder: Path, nodes: str) -> None:
        super().__init__(
            [
                *(sys.executable, "-m", "torch.distributed.run", f"--nnodes={nodes}", "--nproc-per-node=1"),
                *("--rdzv-id=job", "--rdzv-backend=edriver", f"--rdzv-endpoint={server.endpoint}"),
                "--rdzv-conf=last_call_timeout=1,keep_alive_interval=1,keep_alive_max_attempt=3",
                *("--local-addr=127.0.0.1", "--max-restarts=3", "--monitor-interval=0.1"),
                *(str(SCRIPTS / "torchrun_job.py"), str(folder / "end")),
            ],
            environ={
                **QUICK_WORKERS,
                "NODE": name,
                "EDRIVER_RENDEZVOUS_CREDENTIALS": str(server.credentials_file),
            },
        )

    def kill(self) -> None:
        """The agent and its worker, as when the machine is gone."""
        for child in Path(f"/proc/{self.process.pid}/task").glob("*/children"):
            for pid in map(int, child.read_text().split()):
                os.kill(pid, signal.SIGKILL)
        self.process.kill()


@contextmanager
def nodes(names: str, server: Server, folder: Path, asked: str) -> Iterator[list[Node]]:
    made = [Node(name, server, folder, asked) for name in names]
    try:
        yield made
    finally:
        for node in made:
            if node.process.poll() is None:
                node.kill()
            node.end()


def status(server: Server, *flags: str) -> str:
    answer = edriver("rendezvous", "status", "--credentials", str(server.credentials_file), *flags)
    assert answer.returncode == 0, answer.stderr
    return answer.stdout


def test_two_nodes_train_through_a_restart_of_the_server(tmp_path: Path) -> None:
    with serving(tmp_path / "server") as server, nodes("ab", server, tmp_path, "2") as pair:
        for node in pair:
            node.line(r"rank \d of 2 sum 2 restart 0")
        shown = status(server)
        assert re.match(r"run job: round 0 is complete; 2 participants \(2 to 2\), 0 waiting, 0 redundant; ", shown)
        assert re.search(r"rank 0: 127.0.0.1, process \d+\n +rank 1: 127.0.0.1, process \d+", shown)
        server.kill()
        server.start()
        assert "2 participants" in status(server)
        (tmp_path / "end").touch()
        assert [node.end() for node in pair] == [0, 0], "\n".join(pair[0].lines)
        (run,) = strict(status(server, "--json"))["rendezvous"]
        assert run["state"]["closed"]
        assert not any("restart 1" in line for node in pair for line in node.lines)


def test_when_a_node_is_lost_the_others_go_on_and_another_may_join(tmp_path: Path) -> None:
    with serving(tmp_path / "server") as server, nodes("abc", server, tmp_path, "2:3") as three:
        for node in three:
            node.line(r"rank \d of 3 sum 3")
        lost = next(node for node in three if node.line(r"rank (\d) of 3")[1] == "0")
        lost.kill()
        others = [node for node in three if node is not lost]
        for node in others:
            node.line(r"rank \d of 2 sum 2")
        with nodes("d", server, tmp_path, "2:3") as (late,):
            late.line(r"rank \d of 3 sum 3")
            (tmp_path / "end").touch()
            assert [node.end() for node in (*others, late)] == [0, 0, 0]


def test_a_second_server_in_one_folder_and_a_damaged_journal_are_refused_in_a_sentence(tmp_path: Path) -> None:
    folder = tmp_path / "server"
    with serving(folder):
        second = edriver("rendezvous", "--port", "0", "--folder", str(folder))
        assert second.returncode == 1
        assert "another server uses this folder" in second.stdout
    (folder / "journal.sqlite3").write_bytes(bytes(4096))
    damaged = edriver("rendezvous", "--port", "0", "--folder", str(folder))
    assert damaged.returncode == 1
    assert "is damaged (file is not a database): remove it" in damaged.stdout


def test_a_status_without_a_server_says_so(tmp_path: Path) -> None:
    with serving(tmp_path / "server") as server:
        assert status(server) == "no run yet\n"
    answer = edriver("rendezvous", "status", "--credentials", str(server.credentials_file))
    assert answer.returncode == 1
    assert f"the rendezvous server at {server.endpoint} does not answer" in answer.stderr
