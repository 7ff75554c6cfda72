"""However a session of tests ends, nothing of what it has started is left: no process, no folder, no namespace."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tests.process.running import BOUND, ROOT, wait_for_exit
from tests.session_guard import NAMESPACES, commands_of

SESSION = Path(__file__).with_name("scripts") / "interrupted.py"


@pytest.mark.skipif(os.getuid() != 0 and "CI" not in os.environ, reason="hosts with an sshd take root")
@pytest.mark.parametrize(
    ("number", "flags"),
    [
        pytest.param(signal.SIGINT, [], id="ctrl-c"),
        pytest.param(signal.SIGTERM, [], id="sigterm"),
        pytest.param(signal.SIGKILL, [], id="sigkill"),
        pytest.param(None, ["--timeout-method", "signal"], id="timeout-by-signal"),
        pytest.param(None, ["--timeout-method", "thread"], id="timeout-by-thread"),
    ],
)
def test_nothing_is_left(tmp_path: Path, number: signal.Signals | None, flags: list[str]) -> None:
    with tempfile.TemporaryDirectory(prefix="ed-", dir="/tmp") as temporary:  # sockets want short paths
        hear, tell = os.pipe()
        session = subprocess.Popen(
            # Where the time limit is to end it, that may come before all has started: what has is to go all the same.
            [
                *(sys.executable, "-m", "pytest", SESSION, "--timeout", "300" if number else "10", *flags),
                *("--basetemp", tmp_path / "base", "-p", "no:cacheprovider"),
            ],
            cwd=ROOT,
            env={**os.environ, "TMPDIR": temporary, "TELL": str(tell)},
            pass_fds=[tell],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        os.close(tell)
        with os.fdopen(hear) as reported:
            *_, mark = reported.readline().split()
            started = reported.readline()
            guard = guard_of(mark)
            if number:
                assert started == "all has started\n"
                session.send_signal(number)
            assert session.wait(BOUND) != 0
        assert wait_for_exit(guard, BOUND)
        assert commands_of(mark) == {}
        assert list(NAMESPACES.glob(f"edriver-{session.pid}-*")) == []
        assert [path for path in Path(temporary).iterdir() if path.name.startswith("edriver-")] == []


def guard_of(mark: str) -> int:
    """The process that ends what a session has started."""
    wanted = mark.encode()
    (guard,) = [path.parent for path in Path("/proc").glob("[0-9]*/cmdline") if wanted in read(path).split(b"\0")]
    return int(guard.name)


def read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:  # the process has ended meanwhile
        return b""
