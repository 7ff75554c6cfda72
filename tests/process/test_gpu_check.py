"""`make gpu` where there is no GPU: the same over Gloo, so that it works on the day on which there is one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.process.running import QUICK_WORKERS

ROOT = Path(__file__).parents[2]
BOUND = 600.0


@pytest.mark.long
def test_the_check_runs_dry(tmp_path: Path) -> None:
    command = [str(ROOT / "scripts" / "gpu_check.sh"), "--dry", "--output", str(tmp_path)]
    done = subprocess.run(
        [*command, "--only", "lost peers", "horovod"],
        env={**os.environ, **QUICK_WORKERS, "PYTHON": sys.executable},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=BOUND,
        check=False,
    )
    assert done.returncode == 0, done.stdout + (tmp_path / "log.txt").read_text()
    found = json.loads((tmp_path / "results.json").read_text())
    assert found["lost peers"]["all-reduce, plain"]["steps lost"] == 0
    assert found["horovod"]["all-reduce, horovod"]["steps lost"] == 0
    assert "## lost peers" in (tmp_path / "page.md").read_text()
