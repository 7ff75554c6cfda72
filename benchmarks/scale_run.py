"""A whole driver at a size: simulated agents with the real protocol, gRPC and TLS; no worker trains.

Hosts dial in; a process of simulated agents (simulated_agents.py) has most of them, another one a *rack*: one in twenty
hosts, 50 at most. All times are from the event until the last host has its assignment in a round of the size that must
come of it: the first of that round's assignments comes once the driver has decided.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final

from benchmarks.processes import death, marked, processes_of, usage_of
from edriver.client import Address, AsyncClient, Client, here
from edriver.wire.conversion import epoch_seconds
from tests.waiting import until

SLOTS: Final = 8
BOUND: Final = 600.0
"""Seconds that any of this may take."""

QUIET_SECONDS: Final = 10.0
WATCHERS: Final = 50
SCRIPT: Final = """\
import edriver

state = edriver.ObjectState(step=0)


@edriver.run
def train(state):
    state.commit()


train(state)
"""


class Agents:
    """A process of simulated agents.

    Args:
        credentials: the run's.
        received: gets each line that it prints.
        errors: where it writes its errors to.
    """

    def __init__(self, credentials: Path, received: queue.Queue[dict[str, Any]], errors: IO[bytes]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.simulated_agents", str(credentials), str(SLOTS)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        )
        self._received = received
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self._process.stdout is not None, "it is a pipe"
        for line in self._process.stdout:
            self._received.put(json.loads(line))

    def do(self, what: str, hosts: Sequence[str]) -> float:
        """Give an order for some hosts; returns when."""
        assert self._process.stdin is not None, "it is a pipe"
        at = time.monotonic()
        print(json.dumps([what, *hosts]), file=self._process.stdin, flush=True)
        return at

    def stop(self) -> float:
        """Stop all of them, as when their rack has lost its network: connections stay; returns when."""
        self._process.send_signal(signal.SIGSTOP)
        return time.monotonic()

    def end(self) -> None:
        """Kill it."""
        self._process.kill()
        self._process.wait()


@dataclass(slots=True)
class Assigned:
    """What is known of a round.

    Attributes:
        hosts: how many have been assigned to it.
        seats: how many members these have.
        first, last: when the first and the last of them were.
        bytes: of the largest assignment.
        late: seconds by which a process of simulated agents was late, at most.
        round_id: its ID, as the agents have it: the driver's number, and its own.
    """

    hosts: int = 0
    seats: int = 0
    first: float = float("inf")
    last: float = 0.0
    bytes: int = 0
    late: float = 0.0
    round_id: tuple[int, int] = (0, 0)


class Rounds:
    """Rounds, as the assignments that hosts receive tell of them."""

    def __init__(self) -> None:
        self.received: queue.Queue[dict[str, Any]] = queue.Queue()
        self._found: dict[tuple[int, int], Assigned] = defaultdict(Assigned)

    def of_size(self, workers: int, since: float) -> tuple[Assigned, int]:
        """Wait for a round with so many members that has begun since; returns it, and how many rounds there were.

        Raises:
            TimeoutError: no such round begins within BOUND.
        """
        deadline = time.monotonic() + BOUND
        while time.monotonic() < deadline:
            with contextlib.suppress(queue.Empty):
                line = self.received.get(timeout=1.0)
                if line["what"] != "assigned":
                    raise RuntimeError(f"an agent has ended: {line}")
                found = self._found[tuple(line["round"])]
                found.round_id = tuple(line["round"])
                found.hosts += line["hosts"]
                found.seats += line["seats"]
                found.first = min(found.first, line["first"])
                found.last = max(found.last, line["last"])
                found.bytes = max(found.bytes, line["bytes"])
                found.late = max(found.late, line["late"])
            rounds = [found for found in self._found.values() if found.first > since]
            if whole := next((found for found in rounds if found.seats == workers), None):
                return whole, len(rounds)
        raise TimeoutError(f"no round of {workers} workers within {BOUND:g} s; there were {dict(self._found)}")


class Measured:
    """A driver, and the phases of its run.

    Args:
        pid: the driver's process.
        rounds: what comes to its hosts.
        client: asks the driver what it has recorded.

    Attributes:
        line: the figures, by name.
    """

    def __init__(self, pid: int, rounds: Rounds, client: Client) -> None:
        self._pid, self._rounds, self._client = pid, rounds, client
        self.line: dict[str, Any] = {}

    def until_round(self, name: str, do: Callable[[], float], workers: int) -> None:
        """Do something, and wait for the round of so many workers that must come of it."""
        before = usage_of(self._pid)
        at = do()
        found, rounds = self._rounds.of_size(workers, at)
        after = usage_of(self._pid)
        self.line[name] = {
            "s": round(found.last - at, 3),
            "to_first_assignment_s": round(found.first - at, 3),
            "assignments_s": round(found.last - found.first, 3),
            "rounds": rounds,
            "driver_cpu_s": round(after.seconds - before.seconds, 2),
            "driver_mb": round(after.memory / 1e6),
            "largest_assignment_bytes": found.bytes,
            "agents_late_s": round(found.late, 3),
            **self._phases(at, found),
        }

    def _phases(self, at: float, found: Assigned) -> dict[str, float]:
        """The parts of that time, by what the driver itself has recorded of the round.

        Each is in seconds: from the event to the decision to end the round before; until all members were back and the
        next one was decided; until the last host had its assignment; from that decision until the driver had heard of
        all members that they had passed the first boundary.
        """
        until(lambda: self._client.rounds(1)[0].HasField("first_step_time"), bound=BOUND, every=0.5)
        rounds = {(each.round_id.incarnation, each.round_id.n): each for each in self._client.rounds()}
        latest = rounds[found.round_id]
        ahead = time.time() - time.monotonic()
        assigned = epoch_seconds(latest.assign_time)
        phases = {
            "assignments_sent_s": found.last + ahead - assigned,
            "all_answered_s": epoch_seconds(latest.first_step_time) - assigned,
        }
        if latest.HasField("previous_end_time"):
            ended = epoch_seconds(latest.previous_end_time)
            phases |= {"to_decision_s": ended - ahead - at, "all_back_s": assigned - ended}
        return {name: round(seconds, 3) for name, seconds in phases.items()}

    def core_share(self, name: str, seconds: float) -> None:
        """What part of a core the driver takes while nothing happens."""
        before, at = usage_of(self._pid).seconds, time.monotonic()
        time.sleep(seconds)
        share = (usage_of(self._pid).seconds - before) / (time.monotonic() - at)
        self.line[name] = {"driver_core": round(share, 3)}


@contextmanager
def watchers(address: Address, count: int) -> Iterator[None]:
    """So many clients watch a run's events and progress, in a thread."""
    stopped = threading.Event()

    async def watch() -> None:
        async with AsyncClient(address) as client:
            async for _ in client.watch_progress():
                pass

    async def watch_all() -> None:
        watching = [asyncio.create_task(watch()) for _ in range(count)]
        await asyncio.to_thread(stopped.wait)
        for task in watching:
            task.cancel()
        await asyncio.wait(watching)

    thread = threading.Thread(target=lambda: asyncio.run(watch_all()))
    thread.start()
    try:
        yield
    finally:
        stopped.set()
        thread.join()


def measured(hosts: int) -> dict[str, Any]:
    """The figures at one size, as one line of the output has them."""
    rack_size, more = max(1, min(50, hosts // 20)), max(1, hosts // 10)
    names = [f"host-{number}" for number in range(hosts)]
    rack, rest = names[:rack_size], names[rack_size:]
    rounds = Rounds()
    folder = Path(tempfile.mkdtemp(prefix="edriver-scale-"))
    (folder / "train.py").write_text(SCRIPT)
    credentials, name = folder / "run.json", f"scale-{os.getpid()}"
    most = (hosts + more) * SLOTS
    command = [sys.executable, "-m", "edriver", "-np", str(hosts * SLOTS), "--min-np", "1", "--max-np", str(most)]
    command += ["--hosts-dial-in", "--credentials", str(credentials), "--run", name, "--start-timeout", str(BOUND)]
    command += ["python", "train.py"]
    with marked(command, folder, os.environ) as mark, ExitStack() as stack:
        os.environ["XDG_STATE_HOME"] = str(folder / "state")
        errors = stack.enter_context((folder / "agents").open("ab"))
        until(credentials.exists)
        processes = [Agents(credentials, rounds.received, errors) for _ in range(3)]
        for process in processes:
            stack.callback(process.end)
        in_rack, others, newcomers = processes
        client = stack.enter_context(Client(here(name)))
        (driver,) = (pid for pid, words in processes_of(mark).items() if " -np " in words)
        run = Measured(driver, rounds, client)
        workers = hosts * SLOTS
        run.until_round("form", lambda: min(in_rack.do("join", rack), others.do("join", rest)), workers)
        run.core_share("quiet", QUIET_SECONDS)
        with watchers(here(name), WATCHERS):
            run.core_share("watched", QUIET_SECONDS)
        workers -= SLOTS
        run.until_round("lose_host", lambda: others.do("end", rest[-1:]), workers)
        workers += more * SLOTS
        run.until_round("grow", lambda: newcomers.do("join", [f"new-{number}" for number in range(more)]), workers)
        workers -= SLOTS

        def drain() -> float:
            at = time.monotonic()
            client.drain(rest[0])
            return at

        run.until_round("drain", drain, workers)
        workers -= rack_size * SLOTS
        run.until_round("lose_rack_by_lease", in_rack.stop, workers)
        at = time.monotonic()
        client.stop()
        ended = death(driver, BOUND)
        if ended is None:
            raise TimeoutError(f"the driver does not end within {BOUND:g} s")
        run.line["end"] = {"s": round(ended - at, 3)}
    return {"hosts": hosts, "workers": hosts * SLOTS, "rack": rack_size, "more": more, **run.line}
