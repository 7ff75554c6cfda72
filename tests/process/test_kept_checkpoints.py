"""The shortest way of a checkpoint through a real run: into memory, over the loss of a rank, and on to disk."""

from __future__ import annotations

import os
import re
import shutil
import signal
import sys
from contextlib import suppress
from pathlib import Path

from tests.made_checkpoints import whole_steps
from tests.process.resuming import Resumed
from tests.process.running import QUICK_WORKERS, SCRIPTS, edriver, running
from tests.waiting import until

THREE = ["-np", "3", "-H", "localhost:2,127.0.0.2:1", sys.executable, "kept.py", "40", "23"]


def test_a_loss_of_a_rank_and_then_of_driver_and_all_hosts_leads_to_the_end_of_an_undisturbed_run(
    tmp_path: Path,
) -> None:
    disturbed, undisturbed = tmp_path / "disturbed", tmp_path / "undisturbed"
    for folder in (disturbed, undisturbed):
        folder.mkdir()
        shutil.copy(SCRIPTS / "kept.py", folder)
    environ = {**QUICK_WORKERS, "XDG_STATE_HOME": str(disturbed / "state")}
    (disturbed / "pause").touch()
    with running(THREE, disturbed, environ) as run:
        run.line("made step 23$")
        os.kill(run.pids()[1], signal.SIGKILL)
        run.line(
            "round 1.2: 3 workers on localhost, 127.0.0.2, to load the checkpoint in memory of step 20; 3 steps lost"
        )
        for rank in range(3):
            run.line(f"rank {rank} of 3 pid .* begins at step 20$")
        run.line("made step 23$")

        saved = edriver("checkpoint", "save", "--run", run.id, environ={"XDG_STATE_HOME": environ["XDG_STATE_HOME"]})
        assert "the checkpoint of step 20 goes to disk now" in saved.stdout, saved.stderr
        until(lambda: whole_steps(disturbed / "checkpoints") == [20], lambda: whole_steps(disturbed / "checkpoints"))
        for pid in (run.process.pid, *(int(each.partition(":")[0]) for each in run.left_behind())):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        run.process.wait()
        (disturbed / "pause").unlink()
        resumed = Resumed(run, disturbed, environ=environ)
        for rank in range(3):
            resumed.line(f"rank {rank} of 3 pid .* begins at step 20$")
        assert resumed.end() == 0, resumed.text
    assert 40 in whole_steps(disturbed / "checkpoints")
    with running(THREE, undisturbed, QUICK_WORKERS) as run:
        assert run.end() == 0, run.text
    assert whole_steps(undisturbed / "checkpoints") == [40]
    assert _ends(resumed.text) == _ends(run.text)


def _ends(text: str) -> set[str]:
    """What ranks have trained, which is the same for all."""
    ends = set(re.findall(r"rank \d ends at step 40 with (.*)", text))
    assert len(ends) == 1
    return ends
