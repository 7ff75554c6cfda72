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
FAILING = SESSION.with_name("failing.py")


@pytest.mark.long_except("sigterm", "timeout-by-signal")
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
    hear, tell = os.pipe()
    with (
        tempfile.TemporaryDirectory(prefix="ed-", dir="/tmp") as temporary,  # sockets want short paths
        os.fdopen(hear) as reported,
        subprocess.Popen(
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
        ) as session,
    ):
        os.close(tell)
        try:
            *_, mark = reported.readline().split()
            started = reported.readline()
            guard = guard_of(mark)
            if number:
                assert started == "all has started\n"
                session.send_signal(number)
            assert session.wait(BOUND) != 0
        finally:
            session.kill()
        assert wait_for_exit(guard, BOUND)
        assert commands_of(mark) == {}
        assert list(NAMESPACES.glob(f"edriver-{session.pid}-*")) == []
        assert list(Path(temporary).glob("e-*")) == []


@pytest.mark.long
@pytest.mark.parametrize("kind", ["child", "run"])
def test_a_test_that_fails_ends_what_it_has_started(tmp_path: Path, kind: str) -> None:
    """The one after it, in the same session, finds nothing of it."""
    done = subprocess.run(
        [sys.executable, "-m", "pytest", FAILING, "-k", f"{kind} or after", "-p", "no:cacheprovider"],
        cwd=ROOT,
        env={**os.environ, "LEFT": str(tmp_path / "left")},
        capture_output=True,
        text=True,
        timeout=BOUND,
    )
    assert "1 failed, 1 passed" in done.stdout, done.stdout


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
