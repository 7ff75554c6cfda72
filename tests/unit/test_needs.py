"""What is missing of a machine: tests are skipped for it, fail for it in CI, and the end of a run lists it."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests import needs

pytest_plugins = ["pytester"]

ROOT = Path(__file__).parents[2]

TESTS = """
import pytest
from tests import needs

@pytest.fixture
def terminal():
    needs.require(needs.TMUX, needs.GRPCURL)

@pytest.mark.needs(needs.TMUX)
def test_of_a_terminal():
    pass

@pytest.mark.needs(needs.ETCD)
@pytest.mark.parametrize("number", [1, 2])
def test_of_etcd(number):
    pass

def test_that_has_it_from_a_fixture(terminal):
    pass

@pytest.mark.skipif(True, reason="of its own")
def test_of_something_else():
    pass

def test_that_needs_nothing():
    pass
"""


@pytest.fixture
def session(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """Those tests, on a machine without any program."""
    pytester.makepyfile(TESTS)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("PATH", str(pytester.path / "empty"))
    monkeypatch.delenv("CI", raising=False)
    return pytester


@pytest.mark.parametrize("processes", [(), ("-n", "2")], ids=["one-process", "xdist"])
def test_tests_are_skipped_and_counted_by_what_is_missing(session: pytest.Pytester, processes: tuple[str, ...]) -> None:
    done = session.runpytest_subprocess("-p", "tests.needs", *processes)
    done.assert_outcomes(passed=1, skipped=5)
    listed = done.outlines[done.outlines.index(next(line for line in done.outlines if "by what is missing" in line)) :]
    assert sorted(listed[1:4]) == [
        "     1 without grpcurl (https://github.com/fullstorydev/grpcurl)",
        "     2 without etcd (Debian's etcd-server)",
        "     2 without tmux (Debian's tmux)",
    ]
    assert listed[4] == "     1 for other reasons (pytest -rs lists them)"
    assert re.fullmatch(r"`make test-tools` installs (tmux, etcd-server|etcd-server, tmux)\.", listed[5])


def test_in_ci_what_is_missing_fails(session: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CI", "true")
    done = session.runpytest_subprocess("-p", "tests.needs")
    assert done.ret == pytest.ExitCode.TESTS_FAILED
    done.stdout.fnmatch_lines(["*needs tmux: Debian's tmux", "*needs etcd: Debian's etcd-server"])
    outcomes = done.parseoutcomes()
    assert outcomes.get("failed", 0) + outcomes.get("errors", 0) == 4


def test_what_ci_may_be_without_is_skipped_there_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CI", "true")
    with pytest.raises(pytest.skip.Exception, match="needs a GPU with NCCL"):
        needs.lack(needs.GPU)


def test_no_two_needs_are_called_the_same_and_none_like_two() -> None:
    names = [need.name for need in needs.ALL]
    assert len(names) == len(set(names))
    assert not [name for name in names if " and " in name]


def test_it_prints_the_packages_of_what_is_missing(tmp_path: Path) -> None:
    """By an interpreter that has nothing installed."""
    (tmp_path / "tmux").touch(mode=0o755)

    def packages(path: str) -> list[str]:
        command = [sys.executable, "-I", "-S", needs.__file__]
        return subprocess.run(
            command, env={"PATH": path}, capture_output=True, text=True, check=True, timeout=60
        ).stdout.split()

    nothing = packages("/nowhere")
    assert {"tmux", "chromium", "openssh-server", "openssh-client", "npm", "iproute2"} <= set(nothing)
    assert packages(str(tmp_path)) == [name for name in nothing if name != "tmux"]
