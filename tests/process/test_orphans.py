"""Whichever processes are killed, in any order: nothing of the run is left, on no host."""

from __future__ import annotations

import itertools
import os
import shlex
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent import futures
from contextlib import suppress
from pathlib import Path

import pytest

from edriver.agent.workers.processes import children_of
from tests.process.dialling import dialled
from tests.process.running import SCRIPTS, SOON, Run, running, wait_for_exit
from tests.process.sites import Site, parent_of, site, ssh_client
from tests.waiting import until

FOR_GOOD = ("--no-records",)
"""A run without records has no journal: no driver can take it over, and so nothing of it waits for one."""

TOGETHER = 4
"""Runs at a time: what they wait for costs no processor."""

WORKER = ["sh", "-c", "trap '' TERM HUP; sleep 3600 & echo $$; wait"]
"""One with a child in its group, as a data loader has, and both hard of hearing."""

TRAIN = [sys.executable, str(SCRIPTS / "train.py")]

ALL = ("driver", "driver's guard", "agent", "agent's guard")
"""Who clears up after whom on one machine."""

Order = tuple[str, ...]


def orders(victims: Sequence[str], count: int) -> list[Order]:
    """All orders in which so many of them can be killed; hosts a and b are alike."""
    swap = str.maketrans("ab", "ba")

    def other(order: Order) -> Order:
        return tuple(name[:-1] + name[-1].translate(swap) for name in order)

    return [order for order in itertools.permutations(victims, count) if order <= other(order)]


def covering(victims: Sequence[str], strength: int) -> list[Order]:
    """Orders of all of them, so few that any `strength` of them are killed in each of their orders in some (a sequence
    covering array, made greedily).
    """

    def parts(order: Order) -> set[Order]:
        return set(itertools.combinations(order, strength))

    every, chosen = list(itertools.permutations(victims)), []
    left = set(itertools.permutations(victims, strength))
    while left:
        chosen.append(max(every, key=lambda order: len(left & parts(order))))
        left -= parts(chosen[-1])
    return chosen


def workers_of(run: Run, *hosts: str) -> list[int]:
    return [int(run.line(rf"^\[{host}:0\]<stdout>:(\d+)$")[1]) for host in hosts]


def kill_in_order(victims: dict[str, int], order: Order) -> None:
    """Kill each as soon as the one before is dead; some end by themselves before it is their turn."""
    ends = {name: os.pidfd_open(victims[name]) for name in order}
    for name, end in ends.items():
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(end, signal.SIGKILL)
        assert wait_for_exit(victims[name])
        os.close(end)


def kill_at_once(victims: list[int]) -> None:
    """Kill them so that none sees another's end."""
    ends = [os.pidfd_open(pid) for pid in victims]
    for number in (signal.SIGSTOP, signal.SIGKILL):
        for end in ends:
            signal.pidfd_send_signal(end, number)
    for pid, end in zip(victims, ends, strict=True):
        assert wait_for_exit(pid)
        os.close(end)


def guard_of(pid: int) -> int:
    """The guard of a driver or an agent."""
    (guard,) = [child for child in children_of(pid) if b"guard_main" in Path(f"/proc/{child}/cmdline").read_bytes()]
    return guard


def all_of(run: Run, worker: int) -> dict[str, int]:
    """All processes that clean up, in a run of one host."""
    agent = parent_of(worker)
    guards = {"driver's guard": guard_of(run.process.pid), "agent's guard": guard_of(agent)}
    return {"driver": run.process.pid, "agent": agent, **guards}


def stop(run: Run, order: Order) -> None:
    """End a run whose driver lives, in order."""
    if "driver" not in order:
        run.process.send_signal(signal.SIGINT)
    assert run.end() in (130, -signal.SIGKILL)


@pytest.fixture(scope="module")
def there(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with site(tmp_path_factory.mktemp("site")) as made:
        yield made


OVER_SSH = ("driver", "agent a", "agent b", "ssh a", "ssh b")


@pytest.mark.parametrize(
    "chosen",
    [
        pytest.param(orders(OVER_SSH, 1), id="one"),
        pytest.param(orders(OVER_SSH, 2), id="two"),
        pytest.param(covering(OVER_SSH, 3), id="all-any-three-in-each-order"),
        pytest.param(orders(OVER_SSH, 5), id="all", marks=pytest.mark.long),
    ],
)
def test_kills_in_every_order_over_ssh(there: Site, tmp_path: Path, chosen: list[Order]) -> None:
    def happens(order: Order) -> None:
        with there.running([*FOR_GOOD, "-np", "2", "-H", "host1:1,host2:1", *WORKER], tmp_path) as run:
            a, b = workers_of(run, "host1", "host2")
            victims = {"driver": run.process.pid, "agent a": parent_of(a), "agent b": parent_of(b)}
            victims |= {"ssh a": ssh_client(run, "host1"), "ssh b": ssh_client(run, "host2")}
            kill_in_order(victims, order)
            stop(run, order)

    with futures.ThreadPoolExecutor(TOGETHER) as threads:
        list(threads.map(happens, chosen))
    assert there.left(SOON) == []


@pytest.mark.parametrize("count", [1, 2, 3])
def test_kills_in_every_order_on_this_machine(tmp_path: Path, count: int) -> None:
    def happens(order: Order) -> None:
        with (
            tempfile.TemporaryDirectory(prefix="ed-", dir="/tmp") as folder,
            running(
                [*FOR_GOOD, "-np", "2", "-H", "localhost:1,127.0.0.2:1", *WORKER], tmp_path, {"TMPDIR": folder}
            ) as run,
        ):
            a, b = workers_of(run, "localhost", r"127\.0\.0\.2")
            kill_in_order({"driver": run.process.pid, "agent a": parent_of(a), "agent b": parent_of(b)}, order)
            stop(run, order)
            assert run.gone(SOON), (order, run.left_behind())
            assert list(Path(folder).iterdir()) == [], order

    with futures.ThreadPoolExecutor(TOGETHER) as threads:
        list(threads.map(happens, orders(["driver", "agent a", "agent b"], count)))


def happens_here(folder: Path, order: Order, at_once: bool) -> None:
    """A run on this machine in which these are killed; nothing of it is left, but its folder if all are killed."""
    with (
        tempfile.TemporaryDirectory(prefix="ed-", dir="/tmp") as temporary,
        running(["-np", "1", "-H", "localhost:1", "--no-records", *WORKER], folder, {"TMPDIR": temporary}) as run,
    ):
        (worker,) = workers_of(run, "localhost")
        victims = all_of(run, worker)
        if at_once:
            kill_at_once([victims[name] for name in order])
        else:
            kill_in_order(victims, order)
        stop(run, order)
        assert run.gone(SOON), (order, run.left_behind())
        assert "driver's guard" in order or list(Path(temporary).iterdir()) == [], order


@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_every_subset_of_the_processes_that_clean_up_is_killed_at_once(tmp_path: Path, count: int) -> None:
    with futures.ThreadPoolExecutor(TOGETHER) as threads:
        list(threads.map(lambda names: happens_here(tmp_path, names, True), itertools.combinations(ALL, count)))


@pytest.mark.parametrize(
    "chosen",
    [
        pytest.param(covering(ALL, 3), id="any-three-in-each-order"),
        pytest.param([*itertools.permutations(ALL)], id="every-order", marks=pytest.mark.long),
    ],
)
def test_all_processes_that_clean_up_are_killed_in_every_order(tmp_path: Path, chosen: list[Order]) -> None:
    with futures.ThreadPoolExecutor(TOGETHER) as threads:
        list(threads.map(lambda names: happens_here(tmp_path, names, False), chosen))


@pytest.mark.long
def test_workers_end_when_driver_agent_and_guards_are_killed_and_the_next_run_removes_the_rest() -> None:
    """Each way in which a worker is ended: one is in its agent's process group, one has left it, one has a daemon."""
    train, daemon = shlex.join(TRAIN), "setsid sleep 3600 </dev/null >/dev/null 2>&1 &"
    script = f"case $EDRIVER_WORKER_ID in 1) exec {train};; 2) exec setsid -w {train};; 3) {daemon} exec {train};; esac"
    with tempfile.TemporaryDirectory(prefix="ed-", dir="/tmp") as name:
        folder = Path(name)
        environ = {"TMPDIR": name, "EPOCHS": "2000"}
        with running(["-np", "3", "--no-records", "sh", "-c", script], folder, environ) as run:
            for rank in range(3):
                run.line(f"rank {rank} passed step 5")
            agent = parent_of(run.pids()[0])
            kill_at_once([run.process.pid, agent, guard_of(run.process.pid), guard_of(agent)])
            run.end()
            for pid in run.pids().values():
                assert wait_for_exit(pid, SOON), run.left_behind()
            (left,) = run.left_behind()
            assert "sleep 3600" in left
            (remains,) = folder.glob("edriver-*")
            with running(["-np", "1", "--no-records", "true"], folder, environ) as second:
                second.line(f"removed {remains} and 1 of its processes, left by a run that was killed")
                second.end()
            assert run.gone(SOON), run.left_behind()
            assert list(folder.glob("edriver-*")) == []


@pytest.mark.parametrize("count", [1, 2, 3])
def test_kills_in_every_order_of_hosts_that_dial_in(count: int) -> None:
    def happens(order: Order) -> None:
        with tempfile.TemporaryDirectory(prefix="ed-", dir="/tmp") as name:
            temporary = Path(name) / "t"
            temporary.mkdir()
            environ = {"TMPDIR": str(temporary)}
            with dialled(Path(name), *FOR_GOOD, "-np", "2", command=WORKER, environ=environ) as (run, agents):
                victims = {"agent a": agents.start("a").pid, "agent b": agents.start("b").pid}
                workers_of(run, "a", "b")
                kill_in_order({"driver": run.process.pid, **victims}, order)
                stop(run, order)
                assert run.gone(SOON), (order, run.left_behind())
                assert list(temporary.iterdir()) == [], order

    with futures.ThreadPoolExecutor(TOGETHER) as threads:
        list(threads.map(happens, orders(["driver", "agent a", "agent b"], count)))


def test_a_driver_killed_while_its_hosts_start(there: Site, tmp_path: Path) -> None:
    """At each moment of it: ssh has just been started, is on its way, has started the agent, the agent dials."""
    for moment in range(8):
        with there.running([*FOR_GOOD, "-np", "2", "-H", "host1:1,host2:1", *WORKER], tmp_path) as run:
            run.line("waiting")
            time.sleep(moment * 0.1)  # the moment of the kill
            run.process.kill()
            run.end()
    assert there.left(SOON) == []


@pytest.mark.parametrize("victim", ["driver", "ssh"])
def test_a_kill_while_a_host_does_not_answer(there: Site, tmp_path: Path, victim: str) -> None:
    there.ssh.config.write_text(f"Host silent\n  ProxyCommand sleep 3600\n{there.ssh.config.read_text()}")
    with there.running([*FOR_GOOD, "-np", "1", "-H", "silent:1", *WORKER], tmp_path) as run:
        run.line("waiting")
        proxies = until(lambda: [text for text in run.left_behind() if ": sleep 3600" in text], lambda: run.text)
        if victim == "ssh":
            os.kill(ssh_client(run, "silent"), signal.SIGKILL)
            assert wait_for_exit(int(proxies[0].partition(":")[0]))
            run.line("host silent is not used: ssh was killed by SIGKILL")
        run.process.kill()
        run.end()
    assert there.left(SOON) == []


def test_a_driver_killed_while_discovery_hangs(tmp_path: Path) -> None:
    polling, script = tmp_path / "polling", tmp_path / "discover.sh"
    os.mkfifo(polling)
    script.write_text(f"#!/bin/sh\nsleep 3600 & echo > {shlex.quote(str(polling))}; wait\n")
    script.chmod(0o755)
    with running([*FOR_GOOD, "-np", "1", "--host-discovery-script", str(script), *WORKER], tmp_path) as run:
        polling.read_text()
        run.process.kill()
        run.end()
        assert run.gone(SOON), run.left_behind()


@pytest.mark.long
def test_a_driver_killed_after_a_hosts_cable_was_pulled(tmp_path: Path) -> None:
    """No word of its end reaches that host, nor of the host's the connection of ssh."""
    with site(tmp_path, 1) as there:
        with there.running(
            [*FOR_GOOD, "-np", "1", "-H", "host1:1", "--driver-timeout", "15", *WORKER], tmp_path
        ) as run:
            workers_of(run, "host1")
            there.hosts[1].cut()
            run.process.kill()
            run.end()
        assert there.left(spare="sshd: ") == []  # it goes on sending its answer, as long as TCP does
