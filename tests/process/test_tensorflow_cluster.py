"""TF_CONFIG in restart mode, with a package that has TensorFlow's name and nothing else of it."""

from __future__ import annotations

import os
import shutil
import signal
import sys
from pathlib import Path

from tests.process.running import QUICK_WORKERS, SCRIPTS, running


def test_each_round_has_a_cluster_of_its_own(tmp_path: Path) -> None:
    shutil.copy(SCRIPTS / "cluster.py", tmp_path)
    package = tmp_path / "packages" / "tensorflow"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("import os\nCONFIG = os.environ['TF_CONFIG']\n")
    path = os.pathsep.join([str(package.parent), QUICK_WORKERS["PYTHONPATH"]])
    environ = {"PYTHONPATH": path, "TF_CONFIG": "the user's own, of another cluster"}
    with running(["-np", "2", sys.executable, "cluster.py"], tmp_path, environ) as run:
        run.line(r"restart mode \(cluster.py does not call edriver.run\)")
        first = {run.line(rf"rank {rank} of 2 pid \d+ reaches (.*)$")[1] for rank in range(2)}
        assert len(first) == 1
        ended = len(run.lines)
        os.kill(run.pids()[1], signal.SIGKILL)
        second = {run.line(rf"rank {rank} of 2 pid \d+ reaches (.*)$", after=ended)[1] for rank in range(2)}
        assert len(second) == 1
        (tmp_path / "stop").touch()
        assert run.end() == 0, run.text
