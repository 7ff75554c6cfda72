"""A run of the digits job on this machine, with kills and resizes shown live, in under a minute.

python demo.py [--out FOLDER]

Each of the names localhost, 127.0.0.1 and 127.0.0.2 is a separate host to edriver, with its own agent. Ends
with the exit code of edriver, after the picture of the run has been drawn.
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import re
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path

HERE = Path(__file__).resolve().parent

EPOCHS = 36

PATIENCE = 90.0
"""Seconds that anything we wait for may take, on a slow machine."""

RANK_LINE = re.compile(r"rank (\d+) of (\d+) is process (\d+)")
EPOCH_LINE = re.compile(r"epoch \d+ loss \S+ \((\d+) worker")


class EndedEarlyError(Exception):
    """edriver ended before the demo was through with it."""


class TrainingRun:
    """A run of edriver: shows its output, and knows from it what the run is doing.

    Args:
        command: what to start.
        environ: its environment.

    Attributes:
        processes: rank to process id in the current round, for the ranks that have printed it.
        size: how many workers the current round has; 0 before the first.
        epochs: how many epochs have ended in the current round.
    """

    def __init__(self, command: list[str], environ: Mapping[str, str]) -> None:
        self.processes: dict[int, int] = {}
        self.size = 0
        self.epochs = 0
        self._ended = False
        self._lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._process = subprocess.Popen(
            command, env=environ, text=True, errors="replace", stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        threading.Thread(target=self._read, daemon=True).start()

    def wait_until(self, what: str, reached: Callable[[TrainingRun], bool]) -> None:
        """Follow the output until the run has got somewhere.

        Raises:
            EndedEarlyError: the run has ended instead.
            TimeoutError: it has not got there in PATIENCE seconds.
        """
        deadline = time.monotonic() + PATIENCE
        while not reached(self):
            if not self._take_line(deadline - time.monotonic(), what):
                raise EndedEarlyError(f"edriver has ended before this: {what}")

    def wait(self) -> int:
        """Follow the output to its end; returns edriver's exit code.

        Raises:
            TimeoutError: there has been no output for PATIENCE seconds.
        """
        while not self._ended:
            self._take_line(PATIENCE, "more output, or its end")
        return self._process.wait(PATIENCE)

    def stop(self) -> None:
        """End the run if it is still there: in order, or else by force (its agents and workers then end themselves)."""
        self._process.terminate()
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            print(line, end="", flush=True)
            self._lines.put(line)
        self._lines.put(None)

    def _take_line(self, patience: float, what: str) -> bool:
        """Take the next line in; returns whether there was one before the output's end."""
        try:
            line = self._lines.get(timeout=max(0.0, patience))
        except queue.Empty:
            raise TimeoutError(f"waited {PATIENCE:g} s in vain for this: {what}") from None
        if line is None:
            self._ended = True
            return False
        self._note(line)
        return True

    def _note(self, line: str) -> None:
        if found := RANK_LINE.search(line):
            rank, size, pid = (int(group) for group in found.groups())
            if size != self.size:
                self.processes.clear()
                self.size, self.epochs = size, 0
            self.processes[rank] = pid
        elif (found := EPOCH_LINE.search(line)) and int(found[1]) == self.size:
            self.epochs += 1


class Demo:
    """The acts, on a run whose hosts are in a file.

    Args:
        run: the run.
        hosts_file: what its discovery script prints.
        log: the run's log, to which the acts are added.
    """

    def __init__(self, run: TrainingRun, hosts_file: Path, log: Path) -> None:
        self._run = run
        self._hosts_file = hosts_file
        self._log = log

    def play(self) -> None:
        """Kill two workers, take a host away, add another one; each once the run has taken the act before in."""
        self._training_with(4)
        self._kill(rank=1)
        self._kill(rank=0)
        self._change_hosts("remove host 127.0.0.1", "localhost:2")
        self._training_with(2)
        self._change_hosts("add host 127.0.0.2", "localhost:2", "127.0.0.2:2")
        self._training_with(4)

    def _kill(self, rank: int) -> None:
        pid = self._run.processes[rank]
        self._show(f"kill -9 rank {rank}", f" (pid {pid})")
        os.kill(pid, signal.SIGKILL)
        self._training_with(4, without=pid)

    def _change_hosts(self, what: str, *hosts: str) -> None:
        self._show(what)
        write_hosts(self._hosts_file, *hosts)

    def _training_with(self, size: int, without: int = 0) -> None:
        """Wait until a round of so many workers, a killed one not among them, has trained for an epoch."""
        self._run.wait_until(
            f"{size} workers train",
            lambda run: (
                len(run.processes) == run.size == size and without not in run.processes.values() and run.epochs > 0
            ),
        )

    def _show(self, what: str, detail: str = "") -> None:
        with self._log.open("a") as file:
            file.write(json.dumps({"time": time.time(), "event": what}) + "\n")
        print(f"demo: {what}{detail}", flush=True)


def write_hosts(file: Path, *hosts: str) -> None:
    """Write the hosts in one go: the script must never see half of them."""
    new = file.with_suffix(".new")
    new.write_text("".join(f"{host}\n" for host in hosts))
    new.replace(file)


def import_seconds() -> float:
    """How long this machine, as busy as it is now, takes to import what a worker imports."""
    start = time.monotonic()
    subprocess.run([sys.executable, "-c", "import torch, sklearn.datasets, edriver"], check=True, timeout=PATIENCE)
    return time.monotonic() - start


def step_seconds(import_seconds: float) -> float:
    """The pause in each step with which the training outlasts the acts.

    The acts wait for three boots, one of them of two workers at a time, and else for some 8 seconds; two fifths of that
    on top are for a machine that gets busier meanwhile. EPOCHS are about 550 steps.
    """
    return 1.4 * (8 + 6 * import_seconds) / 550


def edriver_command(log: Path, pause: float) -> list[str]:
    """The command line."""
    script = ["--host-discovery-script", str(HERE / "discover_hosts.sh")]
    train = [str(HERE / "train.py"), "--epochs", f"{EPOCHS}", "--step-seconds", f"{pause:.3f}", "--log", str(log)]
    counts = ["-np", "4", "--min-np", "2", "--max-np", "4"]
    return [sys.executable, "-m", "edriver", *counts, *script, sys.executable, *train]


def main() -> int:
    """Play the demo; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("out/digits"), help="folder (default: %(default)s)")
    folder: Path = parser.parse_args().out.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    hosts_file, log, picture = folder / "hosts.txt", folder / "log.jsonl", folder / "digits.png"
    log.unlink(missing_ok=True)
    write_hosts(hosts_file, "localhost:2", "127.0.0.1:2")
    command = edriver_command(log, step_seconds(import_seconds()))
    print(f"demo: {shlex.join(word.removeprefix(f'{Path.cwd()}/') for word in command)}", flush=True)
    run = TrainingRun(command, {**os.environ, "EDRIVER_HOSTS": str(hosts_file)})
    try:
        Demo(run, hosts_file, log).play()
        print("demo: no more kills and changes: now it trains to the end", flush=True)
        code = run.wait()
    except EndedEarlyError as error:
        code = run.wait()
        slow = "; this machine is slower than it was at the start: try again" if code == 0 else ""
        print(f"demo: {error}; its exit code is {code}{slow}", file=sys.stderr)
        return max(code, 1)
    except KeyboardInterrupt:
        return 130
    except TimeoutError as error:
        print(f"demo: {error}", file=sys.stderr)
        return 1
    finally:
        run.stop()
    if code == 0:
        draw = [sys.executable, str(HERE.parent / "plot_rounds.py"), str(log), str(picture)]
        title = "Digits: two workers killed, a host removed, a host added"
        subprocess.run([*draw, "--title", title], check=True, timeout=PATIENCE)
        print(f"demo: the picture of this run is {picture}")
    return code


if __name__ == "__main__":
    sys.exit(main())
