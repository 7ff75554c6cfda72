"""A run that one release of edriver has begun goes on under a driver of the next, and its agents and workers stay."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import sys
import sysconfig
import uuid
import venv
from pathlib import Path

import pytest

from edriver.common.release import VERSION
from tests.process.running import BOUND, ROOT, SCRIPTS, Printing, Run, wait_for_exit

BEFORE = "0.0.9"
"""The release that the run is begun with: what is here, under another name. What was really there is in tests/data."""


@pytest.fixture
def release_before(tmp_path: Path) -> Path:
    """The python of a virtual environment that has it installed; all else comes from this one."""
    folder = tmp_path / "before"
    venv.create(folder, with_pip=False, symlinks=True)
    site = Path(sysconfig.get_path("purelib", "venv", {"base": str(folder), "platbase": str(folder)}))
    shutil.copytree(ROOT / "edriver", site / "edriver", ignore=shutil.ignore_patterns("__pycache__"))
    release = site / "edriver" / "common" / "release.py"
    text = release.read_text()
    assert text.count(f'"{VERSION}"') == 1
    release.write_text(text.replace(f'"{VERSION}"', f'"{BEFORE}"'))
    (site / "others.pth").write_text(f"{sysconfig.get_path('purelib')}\n{sysconfig.get_path('platlib')}\n")
    suite = tmp_path / "suite"
    suite.mkdir()
    (suite / "tests").symlink_to(ROOT / "tests")
    return folder / "bin" / "python"


class Driver(Run):
    """A driver.

    Args:
        python: its interpreter.
        folder: its working folder.
        words: edriver's arguments.
        path: its PYTHONPATH.
    """

    def __init__(self, python: str, folder: Path, *words: str, path: Path) -> None:
        self.mark = uuid.uuid4().hex
        environ = {"PYTHONPATH": str(path), "XDG_STATE_HOME": str(folder / "state"), "EDRIVER_TEST": self.mark}
        environ |= {"REPORTS": str(folder / "reports"), "END": str(folder / "end")}
        Printing.__init__(self, [python, "-m", "edriver", *words], folder, environ)

    def members(self, after: int = 0) -> dict[int, int]:
        """The pids of the latest round of two workers, once both are in it, by rank."""
        for rank in (0, 1):
            self.line(f"rank {rank} of 2 pid", after)
        found = re.findall(r"rank (\d) of 2 pid (\d+) of edriver", "\n".join(self.lines[after:]))
        return {int(rank): int(pid) for rank, pid in found}


@pytest.mark.parametrize("kills", [2, pytest.param(20, marks=[pytest.mark.long, pytest.mark.timeout(3600)])])
def test_a_run_goes_on_under_a_driver_of_the_next_release(tmp_path: Path, release_before: Path, kills: int) -> None:
    train = [str(release_before), str(SCRIPTS / "samples.py")]
    flags = ["--start-timeout", f"{BOUND:g}", "-np", "2", "--min-np", "1", "--reset-limit", "100"]
    first = Driver(str(release_before), tmp_path, *flags, *train, path=tmp_path / "suite")
    resumed: Driver | None = None
    try:
        pids = first.members()
        first.line("rank 1 passed step 5")
        first.process.kill()
        first.process.wait()
        (records,) = (path.parent for path in (tmp_path / "state" / "edriver").glob("*/journal.sqlite3"))
        resumed = Driver(sys.executable, tmp_path, "resume", str(records), path=ROOT)
        resumed.line("resumed by driver 2 of it")
        resumed.line("rank 1 passed step")
        for kill in range(kills):
            after = len(resumed.lines)
            os.kill(pids[kill % 2], signal.SIGKILL)
            assert wait_for_exit(pids[kill % 2])
            pids = resumed.members(after)
            resumed.line("rank 1 passed step", after)
        (tmp_path / "end").touch()
        assert resumed.end() == 0, resumed.text
        assert first.gone(), first.left_behind()
    finally:
        drivers = [driver for driver in (first, resumed) if driver is not None]
        for driver in drivers:
            if driver.process.poll() is None:
                driver.process.kill()
                driver.process.wait()
        for left in [left for driver in drivers for left in driver.left_behind()]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(left.partition(":")[0]), signal.SIGKILL)
    assert set(re.findall(r"of edriver (\S+)", first.text + resumed.text)) == {BEFORE}  # those that replace others, too
    reports = (tmp_path / "reports").read_text().splitlines()
    # A round that ends between an epoch's last boundary and the next one's first has the epoch reported again.
    epochs = [line.split() for line in dict.fromkeys(reports)]
    assert [(int(least), int(most)) for _, least, most in epochs] == [(1, 1)] * len(epochs)
    assert [int(number) for number, _, _ in epochs] == [*range(len(epochs))]
