"""Scripts in restart mode whose job Slurm requeues: what was in their hosts' memory is gone with the allocation."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

from tests.engines.slurm.batch import Batch
from tests.engines.slurm.cluster import Cluster
from tests.made_checkpoints import whole_steps
from tests.process.resuming import environ_of
from tests.process.running import QUICK_WORKERS, SCRIPTS, edriver
from tests.waiting import until

pytestmark = pytest.mark.engines

LATEST, HELD = 20, 23
"""The newest step that is saved, and the one at which the script waits until its job is taken away."""


@pytest.mark.parametrize("nodes_fail", [False, True], ids=["by-request", "nodes-fail"])
def test_a_job_that_slurm_requeues_goes_on_from_the_newest_checkpoint(
    slurm: Cluster, tmp_path: Path, nodes_fail: bool
) -> None:
    """By request, the run writes it to disk before it ends; where nodes fail, it was asked to before."""
    shutil.copy(SCRIPTS / "kept.py", tmp_path)
    (tmp_path / "pause").touch()
    environ = {**environ_of(tmp_path), **QUICK_WORKERS}
    args = ["--run", "big", "--slurm", "-np", "4", "--min-np", "4", sys.executable, "kept.py", "40", str(HELD)]
    directives = ["--nodes=2", "--ntasks-per-node=2", "--requeue"]
    batch = Batch(slurm, tmp_path, directives, args, environ)
    batch.line(f"made step {HELD}$")
    after = len(batch.lines)
    if nodes_fail:
        saved = edriver("checkpoint", "save", "--run", "big", environ=environ)
        assert f"the checkpoint of step {LATEST} goes to disk now" in saved.stdout, saved.stderr
        until(lambda: whole_steps(tmp_path / "checkpoints") == [LATEST], lambda: whole_steps(tmp_path / "checkpoints"))
    batch.requeue(nodes_fail=nodes_fail)
    (tmp_path / "pause").unlink()
    for rank in range(4):
        batch.line(f"rank {rank} of 4 pid .* begins at step {LATEST}$", after)
    for rank in range(4):
        batch.line(f"rank {rank} ends at step 40 with ", after)
    assert batch.end() == 0
    assert max(whole_steps(tmp_path / "checkpoints")) == 40
    slurm.wait(slurm.quiet, "nothing of the run is left")
