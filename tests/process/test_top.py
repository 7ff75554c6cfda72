"""`edriver top` in a real terminal: tmux, 80 columns and 24 lines."""

from __future__ import annotations

import shlex
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.needs import TMUX, require
from tests.process.running import BOUND, ROOT, SCRIPTS, Run, running
from tests.waiting import until

TRAIN = [sys.executable, str(SCRIPTS / "train.py")]


class Terminal:
    """A terminal of tmux's that runs one command and stays when that has ended."""

    def __init__(self, socket: Path, run_id: str) -> None:
        self._tmux = ["tmux", "-S", str(socket), "-f", "/dev/null"]
        top = shlex.join([sys.executable, "-m", "edriver", "top", "--run", run_id])
        command = f"cd {shlex.quote(str(ROOT))}; {top}; echo top ended by $?; exec cat"
        subprocess.run([*self._tmux, "new-session", "-d", "-x", "80", "-y", "24", command], check=True, timeout=BOUND)

    @property
    def lines(self) -> list[str]:
        """What it shows."""
        shown = subprocess.run([*self._tmux, "capture-pane", "-p"], check=True, timeout=BOUND, capture_output=True)
        return shown.stdout.decode().splitlines()

    def press(self, *keys: str) -> None:
        subprocess.run([*self._tmux, "send-keys", *keys], check=True, timeout=BOUND)

    def until(self, *wanted: str) -> list[str]:
        """Wait until it shows all of these; returns its lines."""

        def look() -> list[str]:
            lines = self.lines
            return lines if all(text in "\n".join(lines) for text in wanted) else []

        return until(look, lambda: f"all of {wanted} in\n" + "\n".join(self.lines))

    def close(self) -> None:
        subprocess.run([*self._tmux, "kill-server"], check=False, timeout=BOUND)


@pytest.fixture
def top_of() -> Iterator[Callable[[Run], Terminal]]:
    """A terminal with the top of a run."""
    require(TMUX)
    folder = Path(tempfile.mkdtemp(prefix="t-"))  # short: tmux's socket lies in it
    opened: list[Terminal] = []

    def terminal(run: Run) -> Terminal:
        opened.append(Terminal(folder / "tmux", run.id))
        return opened[-1]

    yield terminal
    for each in opened:
        each.close()


def test_four_workers_and_the_newest_events_fit_and_q_ends(tmp_path: Path, top_of: Callable[[Run], Terminal]) -> None:
    with running(["-np", "4", *TRAIN], tmp_path, {"EPOCHS": "40000"}) as run:
        run.line("rank 3 passed step 5")
        terminal = top_of(run)
        lines = terminal.until("localhost:0", "localhost:3", "steps/s", "round 1.1: 4 workers on localhost", "q Quit")
        assert len(lines) <= 24
        ranks = [line.split()[:4] for line in lines if "localhost:" in line]
        assert [rank[0] for rank in ranks] == ["0", "1", "2", "3"]
        assert {rank[2] for rank in ranks} == {"training"}
        terminal.press("q")
        terminal.until("top ended by 0")
        assert run.process.poll() is None


def test_it_follows_a_run_to_its_end(tmp_path: Path, top_of: Callable[[Run], Terminal]) -> None:
    with running(["-np", "2", *TRAIN], tmp_path, {"EPOCHS": "40000"}) as run:
        run.line("rank 1 passed step 5")
        terminal = top_of(run)
        terminal.until("training")
        run.process.send_signal(signal.SIGINT)
        assert run.end() == 130
        run_id = run.id
        terminal.until(f"run {run_id} has ended: the driver received SIGINT", "top ended by 0")
