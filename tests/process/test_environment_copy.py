"""Workers that start from their host's own copy of their Python environment."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import sysconfig
import textwrap
from pathlib import Path

import pytest

from tests.process.running import NO_STANDBYS, QUICK_WORKERS, running
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
