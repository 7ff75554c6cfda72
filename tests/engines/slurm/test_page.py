"""docs/how-to/slurm.md, followed as it stands, but for the numbers and partitions, which are this cluster's."""

from __future__ import annotations

import re
import shlex
import signal
import sys
from pathlib import Path

import pytest

from tests.engines.slurm.cluster import Cluster
from tests.process.running import BOUND, ROOT, SCRIPTS, Printing, wait_for_exit

pytestmark = pytest.mark.engines

PAGE = (ROOT / "docs" / "how-to" / "slurm.md").read_text()


@pytest.fixture
def environ(slurm: Cluster, tmp_path: Path) -> dict[str, str]:
    """A user's home in which edriver is installed as the page says, and a folder with a training script."""
    programs = tmp_path / "home" / "edriver" / "bin"
    programs.mkdir(parents=True)
    (programs / "activate").write_text(f'export PATH="{programs}:$PATH"\n')
    for name, words in {"edriver": "-m edriver", "python": ""}.items():
        (programs / name).write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} {words} "$@"\n')
        (programs / name).chmod(0o755)
    (tmp_path / "train.py").write_text((SCRIPTS / "train.py").read_text())
    return {**slurm.environ, "HOME": str(tmp_path / "home"), "PYTHONPATH": str(ROOT), "EPOCHS": "20000"}


def adapted(text: str, changes: dict[str, str]) -> str:
    for old, new in changes.items():
        assert old in text
        text = text.replace(old, new)
    return text


def test_the_script_for_sbatch(slurm: Cluster, tmp_path: Path, environ: dict[str, str]) -> None:
    (script,) = re.findall(r"```bash\n(.*?)```", PAGE, re.DOTALL)
    changes = {"--nodes=4": "--nodes=2", "--gpus-per-node=8": "--gpus-per-node=1", "-np 32 --min-np 16": "-np 2"}
    (tmp_path / "train.sh").write_text(adapted(script, changes))
    assert "\n    sbatch train.sh\n" in PAGE
    job = slurm.command("sbatch", "--partition=gpu", "train.sh", folder=tmp_path, environ=environ).split()[-1]
    output = tmp_path / f"slurm-{job}.out"
    slurm.wait(lambda: output.exists() and "rank 1 passed step 5" in output.read_text(), "it trains", BOUND)
    shown = re.findall(r"`(srun --jobid=.* edriver status)`", PAGE)[0].replace("JOB", job)
    assert "2 workers" in slurm.command("bash", "-c", f". ~/edriver/bin/activate; {shown}", environ=environ)
    slurm.command("scancel", job)
    slurm.wait(slurm.quiet, "nothing of the run is left")
    assert "stopped: the driver received SIGTERM" in output.read_text()


def test_the_command_outside_an_allocation(slurm: Cluster, tmp_path: Path, environ: dict[str, str]) -> None:
    (line,) = re.findall(r"^(edriver .*--slurm-partition.*)$", PAGE, re.MULTILINE)
    changes = {"-np 8 --max-np 32": "-np 1 --max-np 2", "-partition spot": "-partition gpu", "-host 8": "-host 1"}
    changes |= {"--gpus-per-node=8": "--gpus-per-node=1"}
    words = ["bash", "-c", f". ~/edriver/bin/activate; exec {adapted(line, changes)}"]
    assert shlex.split(line)
    run = Printing(words, tmp_path, {**environ, "XDG_STATE_HOME": str(tmp_path / "state")})
    try:
        run.line("rank 1 of 2")
        run.process.send_signal(signal.SIGINT)
        assert run.end() == 130
    finally:
        run.process.kill()
        wait_for_exit(run.process.pid)
    slurm.wait(slurm.quiet, "nothing of the run is left")
