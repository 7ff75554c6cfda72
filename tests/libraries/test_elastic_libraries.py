"""Scripts of Accelerate and of Trainer in elastic mode: real runs with a kill and a grow, and the how-to's examples."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.process.running import ROOT, Hosts, Run, running

SCRIPTS = Path(__file__).with_name("scripts")
HOW_TO = (ROOT / "docs" / "how-to" / "hugging-face.md").read_text()
EXAMPLES = re.findall(r"```python\n(.*?)```", HOW_TO, re.DOTALL)
CHANGES = re.findall(r"```diff\n(.*?)```", HOW_TO, re.DOTALL)
"""Of the examples, for the same steps at any size."""

NO_NOISE = (
    "DeprecationWarning",
    ".data",
    "kept by commits only",
    "steps lost",
    "step lost",
    "are skipped",
    "Traceback",
)
"""What none of these runs prints."""

pytestmark = [pytest.mark.libraries, pytest.mark.timeout(900)]

# script: its environment, the batch size of a worker's step
LIBRARIES = {
    "elastic_accelerate.py": ({"EPOCHS": "2", "SAMPLES": "256"}, 2 * 256 // 8),
    "elastic_trainer.py": ({"OPTIONS": json.dumps({"num_train_epochs": 2, "use_cpu": True}), "SAMPLES": "256"}, 128),
}


class Logs:
    """What each process has written down.

    Attributes:
        steps: by process, its steps in their order, as (step, size, loss),
        taken: how often each sample was trained on,
        finals: what the processes ended with.
    """

    def __init__(self, folder: Path) -> None:
        self.steps: dict[int, list[tuple[int, int, float]]] = {}
        self.taken: Counter[int] = Counter()
        self.finals: list[str] = []
        for file in folder.glob("[0-9]*.log"):
            for kind, *fields in (line.split(maxsplit=7) for line in file.read_text().splitlines()):
                if kind == "step":
                    step, _, _, size, loss, _, rest = fields
                    self.steps.setdefault(int(file.stem), []).append((int(step), int(size), float(loss)))
                    self.taken.update(map(int, rest.split()))


@pytest.mark.parametrize("script", LIBRARIES)
def test_a_kill_and_its_replacement(script: str, tmp_path: Path) -> None:
    logs, run = finished(script, tmp_path, ["-np", "2", "--min-np", "1"], {"KILLS": kill_of(script), "WAIT_AT": "12"})
    assert run.lines[-3].startswith("edriver: done: 3 rounds, 1 failure survived, 1 resize")
    survivor = logs.steps[run.pids()[0]]
    sizes = [size for _, size, _ in survivor]
    assert sizes[:4] == [2] * 4
    assert sizes[11] == 1, "it has gone on alone"
    assert sizes[-1] == 2


@pytest.mark.parametrize("script", LIBRARIES)
def test_a_host_that_grows(script: str, tmp_path: Path) -> None:
    hosts, discovery = tmp_path / "hosts", tmp_path / "discover"
    hosts.write_text("localhost:1\n")
    discovery.write_text(f"#!/bin/sh\ncat {shlex.quote(str(hosts))}\n")
    discovery.chmod(0o755)
    flags = ["-np", "1", "--max-np", "2", "--host-discovery-script", str(discovery)]
    with running([*flags, sys.executable, script], copied(script, tmp_path), environ(script, {"WAIT_AT": "6"})) as run:
        run.line("rank 0 of 1 pid")
        hosts.write_text("localhost:2\n")
        logs = checked(script, tmp_path, run)
        assert [size for _, size, _ in logs.steps[run.pids()[0]]][5:7] == [1, 2]
        assert "1 resize" in run.lines[-3]


@pytest.mark.parametrize("script", LIBRARIES)
def test_a_second_host_joins_and_loses_its_worker(script: str, tmp_path: Path) -> None:
    """Two workers become three, on two hosts; the third dies in a later step and is replaced."""
    hosts = Hosts(tmp_path, "localhost:2")
    flags = ["-np", "2", "--max-np", "3", "--host-discovery-script", str(hosts.script)]
    kill = "8" if script == "elastic_accelerate.py" else "forward:8"
    more = {"FULL": "3", "VICTIM": "2", "WAIT_AT": "4,9", "KILLS": kill}
    with running([*flags, sys.executable, script], copied(script, tmp_path), environ(script, more)) as run:
        run.line("rank 1 of 2 pid")
        hosts.are("localhost:2", "127.0.0.2:1")
        logs = checked(script, tmp_path, run, padding=2)
        assert run.lines[-3].startswith("edriver: done: 4 rounds, 1 failure survived, 2 resizes")
        run.line(r"rank 2, 127.0.0.2:0\) was killed by SIGKILL")
        for rank in range(2):
            survivor = {step: size for step, size, _ in logs.steps[run.pids()[rank]]}
            assert [survivor[step] for step in (4, 5, 9, 10)] == [2, 3, 2, 3], "which are waited for"


def changed(example: str, diff: str) -> str:
    """An example with the changes of a diff that shows changed lines alone."""
    for removed, added in re.findall(r"^-(.*\n)((?:^\+.*\n)*)", diff, re.MULTILINE):
        assert example.count(removed) == 1, removed
        example = example.replace(removed, re.sub(r"^\+", "", added, flags=re.MULTILINE))
    return example


@pytest.mark.parametrize(
    "example",
    [*EXAMPLES, *map(changed, EXAMPLES, CHANGES)],
    ids=["trainer", "accelerate", "trainer with global_batch", "accelerate with global_batch"],
)
def test_the_how_tos_examples_run(example: str, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(example)
    with running(["-np", "2", sys.executable, "train.py"], tmp_path, {"CUDA_VISIBLE_DEVICES": ""}) as run:
        assert run.end() == 0, run.text
        losses = [float(loss) for loss in re.findall(r"loss'?:? '?(\d+\.\d+)", run.text)]
        assert losses[-1] < losses[0], run.text
        assert not [noise for noise in NO_NOISE if noise in run.text]


def kill_of(script: str) -> str:
    return "4" if script == "elastic_accelerate.py" else "forward:4"


def copied(script: str, folder: Path) -> Path:
    shutil.copy(SCRIPTS / script, folder)
    return folder


def environ(script: str, more: dict[str, str]) -> dict[str, str]:
    return {"CUDA_VISIBLE_DEVICES": "", **LIBRARIES[script][0], **more}


def finished(script: str, folder: Path, flags: list[str], more: dict[str, str]) -> tuple[Logs, Run]:
    with running([*flags, sys.executable, script], copied(script, folder), environ(script, more)) as run:
        return checked(script, folder, run), run


def checked(script: str, folder: Path, run: Run, padding: int = 0) -> Logs:
    """What holds for all of these runs, with so many samples at most that fill an epoch's last row."""
    assert run.end() == 0, run.text
    assert run.gone()
    assert not [noise for noise in NO_NOISE if noise in run.text], run.text
    logs = Logs(folder)
    finals = {match[1] for line in run.lines if (match := re.search(r"done (?:at step \d+ with )?(-?[\d.e-]+)", line))}
    assert len(finals) == 1, f"all ranks end with the same bits: {run.text}"
    once = Counter(dict.fromkeys(range(256), 2))
    assert once <= logs.taken, "each sample in each epoch"
    assert (logs.taken - once).total() <= 2 * padding, "once"
    survivor = logs.steps[run.pids()[0]]
    assert [step for step, _, _ in survivor] == list(range(1, len(survivor) + 1)), "the same process, each step once"
    assert sum(loss for _, _, loss in survivor[-8:]) < sum(loss for _, _, loss in survivor[:8]) / 2
    return logs
