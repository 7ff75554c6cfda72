"""Workers that start from their host's own copy of their Python environment."""

from __future__ import annotations

import asyncio
import fcntl
import os
import signal
import subprocess
import sys
import sysconfig
import textwrap
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from edriver.v1 import agent_pb2
from tests.process.fake_driver import AMPLE, finish, host, in_loop
from tests.process.running import NO_STANDBYS, QUICK_WORKERS, running
from tests.process.standby_processes import standbys
from tests.waiting import until

HOSTS = ("-np", "2", "--min-np", "1", "-H", "localhost:1,127.0.0.2:1")


@pytest.fixture
def environment(tmp_path: Path) -> Path:
    """A virtual environment with a module and a console script of its own, and what is installed for this test."""
    made = tmp_path / "shared" / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(made)], check=True)
    (packages,) = made.glob("lib/python3*/site-packages")
    (packages / "these.pth").write_text(f"{sysconfig.get_path('purelib')}\n")
    (packages / "own.py").write_text("")
    (made / "bin" / "other").write_text(f"#!{made}/bin/python\nimport own; print('a program has', own.__file__)\n")
    (made / "bin" / "other").chmod(0o755)
    (tmp_path / "train.py").write_text(
        textwrap.dedent(
            """\
            import os, subprocess, sys, time
            from pathlib import Path

            import own

            subprocess.run(["other"], check=True)
            rank, size, host = (os.environ[name] for name in ("RANK", "WORLD_SIZE", "EDRIVER_HOST"))
            print(f"rank {rank} on {host} runs in {os.environ['VIRTUAL_ENV']} with {own.__file__}")
            print(f"rank {rank} of {size} pid {os.getpid()}")
            while not Path("stop").exists():
                time.sleep(0.05)
            """
        )
    )
    return made


@contextmanager
def _slow(path: Path) -> Iterator[Callable[[], object]]:
    """A file that can be read only once this is called, by others: it stands for a file system that takes its time."""
    path.touch()
    descriptor = os.open(path, os.O_RDWR)
    handler = signal.signal(signal.SIGIO, signal.SIG_IGN)  # the kernel says with it that another process wants to read
    try:
        fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_WRLCK)
        yield lambda: fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_UNLCK)
    finally:
        os.close(descriptor)
        signal.signal(signal.SIGIO, handler)


def _copy_of(message: agent_pb2.ConnectRequest) -> agent_pb2.EnvironmentCopy | None:
    return message.environment_copy if message.HasField("environment_copy") else None


@pytest.mark.long
def test_workers_wait_for_the_copy_and_may_be_stopped_meanwhile(tmp_path: Path, environment: Path) -> None:
    local = tmp_path / "local"
    local.mkdir()
    command = [str(environment / "bin" / "python"), "-I", "-c", "import sys; print(sys.prefix)"]

    @in_loop
    async def scenario() -> None:
        with _slow(environment / "slow") as go_on:
            async with host(command, copy_environment=str(local)) as on:
                on.driver.start_worker(1)
                on.driver.start_worker(2)
                on.driver.stop_worker(1, AMPLE)
                assert (await on.driver.exit_of(1)).code == -signal.SIGTERM
                said = list(filter(None, map(_copy_of, on.driver.messages)))
                assert [copy.HasField("took") for copy in said] == [False]
                go_on()
                exited = await on.driver.exit_of(2)
                assert (exited.code, Path(exited.tail).parent.parent) == (0, local)
                await finish(on)
        assert list(local.iterdir()) == []

    scenario()


def test_an_agent_that_ends_while_it_copies_leaves_nothing(tmp_path: Path, environment: Path) -> None:
    local = tmp_path / "local"
    local.mkdir()

    @in_loop
    async def scenario() -> None:
        with _slow(environment / "slow") as go_on:
            async with host([str(environment / "bin" / "python")], copy_environment=str(local)) as on:
                on.driver.start_worker(1)
                await on.driver.until(lambda: any(map(_copy_of, on.driver.messages)))
                on.driver.shut_down(AMPLE)
                await on.driver.until(lambda: any(m.HasField("agent_ending") for m in on.driver.messages))
                go_on()
                assert await on.agent.exit_code() == 0
        assert list(local.iterdir()) == []

    scenario()


def test_the_copy_of_a_killed_agent_is_removed(tmp_path: Path, environment: Path) -> None:
    local = tmp_path / "local"
    local.mkdir()

    @in_loop
    async def scenario() -> None:
        async with host([str(environment / "bin" / "python"), "-c", ""], copy_environment=str(local)) as on:
            on.driver.start_worker(1)
            await on.driver.exit_of(1)
            assert len(list(local.iterdir())) == 1
            os.kill(on.agent.pid, signal.SIGKILL)
            await asyncio.to_thread(until, lambda: not list(local.iterdir()))

    scenario()


def _active(environment: Path) -> dict[str, str]:
    path = os.pathsep.join([str(environment / "bin"), os.environ["PATH"]])
    return {**QUICK_WORKERS, "PATH": path, "VIRTUAL_ENV": str(environment)}


def test_each_host_has_a_copy_until_its_agent_ends(tmp_path: Path, environment: Path) -> None:
    local = tmp_path / "local"
    local.mkdir()
    flags = [*HOSTS, *NO_STANDBYS, "--copy-environment", str(local)]
    with running([*flags, str(environment / "bin" / "python"), "train.py"], tmp_path, _active(environment)) as run:
        run.line(rf"copied the Python environment {environment} \(\d+ MB\) to {local} on ")
        run.line("rank 1 of 2 pid")
        copies = {}
        for host in ("localhost", "127.0.0.2"):
            copies[host] = Path(run.line(rf"on {host} runs in (\S+) with \1/lib/python3\S+/own.py")[1])
            run.line(rf"a program has {copies[host]}/lib/")
        assert sorted(copies.values()) == sorted(local.glob("edriver-*/python"))
        assert {copy.parent.stat().st_mode & 0o777 for copy in copies.values()} == {0o700}
        os.kill(run.agent_of("127.0.0.2"), signal.SIGKILL)
        until(lambda: not copies["127.0.0.2"].parent.exists())
        assert copies["localhost"].exists()
        (tmp_path / "stop").touch()
        assert run.end() == 0, run.text
        assert run.gone()
        assert list(local.iterdir()) == []


ELASTIC = """\
import os, sys, time
from pathlib import Path

import edriver

@edriver.run
def train(state):
    place = f"rank {edriver.rank()} of {edriver.size()} on {os.environ['EDRIVER_HOST']}"
    print(f"{place} pid {os.getpid()} runs in {sys.prefix}", flush=True)
    while not Path("stop").exists():
        time.sleep(0.05)
        state.check_host_updates()

train(edriver.ObjectState())
"""


@pytest.mark.long
def test_a_standby_of_elastic_mode_starts_from_its_hosts_copy(tmp_path: Path, environment: Path) -> None:
    local = tmp_path / "local"
    local.mkdir()
    (tmp_path / "train.py").write_text(ELASTIC)
    flags = ["-np", "3", "--min-np", "1", "-H", "localhost:2,127.0.0.2:1", "--copy-environment", str(local)]
    with running([*flags, str(environment / "bin" / "python"), "train.py"], tmp_path, _active(environment)) as run:
        first = run.line(rf"rank 2 of 3 on 127.0.0.2 pid (\d+) runs in ({local}/edriver-\S+/python)$")
        (standby,) = standbys(run, {"localhost": 1, "127.0.0.2": 1})["127.0.0.2"]
        os.kill(int(first[1]), signal.SIGKILL)
        run.line(rf"on 127.0.0.2 pid {standby} runs in {first[2]}$")
        (tmp_path / "stop").touch()
        assert run.end() == 0, run.text
        assert run.gone()
        assert list(local.iterdir()) == []


def test_without_room_workers_start_from_the_original(tmp_path: Path, environment: Path) -> None:
    missing = tmp_path / "missing"
    (tmp_path / "stop").touch()
    flags = [*HOSTS, *NO_STANDBYS, "--copy-environment", str(missing)]
    with running([*flags, "python", "train.py"], tmp_path, _active(environment)) as run:
        run.line(
            rf"the Python environment {environment} cannot be copied to {missing} on .*: {missing}: No such file or "
            "directory; workers start from the original there"
        )
        for rank in range(2):
            run.line(rf"rank {rank} on .* runs in {environment} with {environment}/lib/")
        assert run.end() == 0, run.text
