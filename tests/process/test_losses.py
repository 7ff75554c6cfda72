"""Losses at the worst moments, under a real driver: survivors go on, in the same processes, without waiting."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import signal
import sys
from pathlib import Path

import pytest

from tests.linked_hosts import INTERFACE, give_address, linked_hosts, make_namespace
from tests.process.running import SCRIPTS, Run, running
from tests.process.sites import environment_of, parent_of
from tests.unread import unread_bytes
from tests.waiting import until

TRAIN = [sys.executable, str(SCRIPTS / "train.py")]


@pytest.mark.parametrize(
    ("size", "place", "worker"),
    [
        pytest.param(4, "connect", 1, id="rank-0-and-two-wait-for-its-store"),
        pytest.param(3, "mesh", 1, id="rank-0-between-store-and-mesh"),
        pytest.param(3, "mesh", 2, id="rank-1-between-store-and-mesh"),
    ],
)
def test_a_second_death_while_the_group_is_built_anew(tmp_path: Path, size: int, place: str, worker: int) -> None:
    environ = {"EPOCHS": "2000", "DIE_LATER": f"{place} {worker}"}
    with running(["-np", str(size), "--min-np", "1", *TRAIN], tmp_path, environ) as run:
        pids = all_have_passed(run, size, step=5)
        os.kill(pids[size - 1], signal.SIGKILL)
        run.line(rf"worker {worker} .* was killed by SIGKILL")
        goes_on(run, size, [pids[rank] for rank in range(size - 1) if rank != worker - 1], lost={worker, size})


@pytest.mark.long_except("the-source")
@pytest.mark.parametrize(
    ("variable", "worker", "survivors"),
    [
        pytest.param("DIE_LATER", 1, (1,), id="the-source"),
        pytest.param("DIE_AT_FIRST", 4, (0, 1), id="the-receiver"),
    ],
)
def test_a_death_during_sync(tmp_path: Path, variable: str, worker: int, survivors: tuple[int, ...]) -> None:
    environ = {"EPOCHS": "2000", variable: f"sync {worker}"}
    with running(["-np", "3", "--min-np", "1", *TRAIN], tmp_path, environ) as run:
        pids = all_have_passed(run, 3, step=5)
        os.kill(pids[2], signal.SIGKILL)
        run.line(rf"worker {worker} .* was killed by SIGKILL")
        # Who is rank 0 depends on which of them had begun the round that was cut: its state counts as the newer one.
        goes_on(run, 3, [pids[rank] for rank in survivors], lost={worker, 3}, in_order=False)


def test_a_host_whose_cable_is_pulled(tmp_path: Path) -> None:
    """Its workers and its agent live, but are unreachable: none of their connections is ever closed."""
    with linked_hosts(3) as hosts, contextlib.ExitStack() as made:
        office = make_namespace(
            f"{hosts[0].namespace}-office", made
        )  # the driver's; its launcher wants these addresses
        for host in hosts:
            give_address(office, host.address)
        prefix = hosts[0].namespace.removesuffix("1")
        script = f'exec ip netns exec {prefix}"${{EDRIVER_HOST##*.}}" {shlex.join(TRAIN)}'
        flags = ["-np", "3", "--min-np", "2", "-H", ",".join(f"{host.address}:1" for host in hosts)]
        environ = {"EPOCHS": "2000", "GLOO_SOCKET_IFNAME": INTERFACE}
        through = ["ip", "netns", "exec", office]
        with running([*flags, "sh", "-c", script], tmp_path, environ, through) as run:
            pids = all_have_passed(run, 3, step=5)
            last = environment_of(pids[2])["EDRIVER_HOST"]
            next(host for host in hosts if host.address == last).cut()
            agent = parent_of(pids[2])
            os.kill(agent, signal.SIGSTOP)  # it talks to the driver through a file, which no cable leads to
            goes_on(run, 2, [pids[0], pids[1]], lost=set())


def test_a_send_that_nothing_can_free(tmp_path: Path) -> None:
    """Gloo raises nothing when a half-written message will never be received: its sender ends, and the others go on."""
    script = [sys.executable, str(SCRIPTS / "stuck_send.py")]
    with running(["-np", "3", "--min-np", "1", "--max-np", "3", *script], tmp_path) as run:
        for rank in range(3):
            run.line(f"rank {rank} of 3")
        pids = run.pids()
        wait_for_full_buffers(pids[1], [pids[0], pids[2]])
        os.kill(pids[1], signal.SIGKILL)
        run.line("a collective of the aborted round cannot be freed")
        run.line(rf"rank 0 of 1 pid {pids[2]}")
        assert run.end() == 0, run.text
        assert run.gone(), run.left_behind()


@pytest.mark.long
def test_a_background_send_that_nothing_can_free(tmp_path: Path) -> None:
    """Gloo's own thread hangs in it, or is freed: that is a race inside of Gloo. No round waits for it.

    What is said of a thread that is left behind: tests/torch/test_group.py.
    """
    script = [sys.executable, str(SCRIPTS / "stuck_in_background.py")]
    with running(["-np", "3", "--min-np", "1", "--max-np", "3", *script], tmp_path) as run:
        for rank in range(3):
            run.line(f"rank {rank} of 3")
        pids = run.pids()
        wait_for_full_buffers(pids[1], [pids[0], pids[2]])
        os.kill(pids[1], signal.SIGKILL)
        run.line(rf"rank 0 of 1 pid {pids[0]}")
        assert run.end() == 0, run.text
        assert run.gone(), run.left_behind()


def wait_for_full_buffers(receiver: int, senders: list[int]) -> None:
    """Wait until bytes lie unread in a connection of a process that is stopped, and nothing more is being sent to it.

    A send that still copies into a buffer when its receiver is killed fails, and is no longer stuck.
    """
    before: list[int] = []

    def are_full() -> bool:
        unread = unread_bytes(receiver)
        settled = max(unread) > 10_000 and unread == before and not any(map(runs, senders))
        before[:] = unread
        return settled

    until(are_full, "the buffers are full", every=0.0)


def runs(pid: int) -> bool:
    """Whether a thread of this process has, or waits for, a processor."""
    states = (task.read_text().rpartition(")")[2].split()[0] for task in Path(f"/proc/{pid}/task").glob("*/stat"))
    return "R" in states


def all_have_passed(run: Run, size: int, step: int) -> dict[int, int]:
    """Wait until all ranks have passed a step; their pids by rank."""
    for rank in range(size):
        run.line(f"rank {rank} passed step {step}")
    return run.pids()


def goes_on(run: Run, size: int, survivors: list[int], lost: set[int], *, in_order: bool = True) -> None:
    """Wait until these processes have the first ranks of a round of this size, at the step they had reached or later.

    Then stop the run. None but these workers was killed: one that cannot be freed kills itself.
    """
    first_ranks = "|".join(str(rank) for rank in range(len(survivors)))
    for rank, pid in enumerate(survivors):
        run.line(rf"rank {rank if in_order else f'({first_ranks})'} of {size} pid {pid} at step ([5-9]|\d\d)")
    run.process.send_signal(signal.SIGINT)
    assert run.end() == 130
    assert {int(worker) for worker in re.findall(r"worker (\d+) .* was killed by SIGKILL", run.text)} == lost
    assert run.gone(), run.left_behind()
