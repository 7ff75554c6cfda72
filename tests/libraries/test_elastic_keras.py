"""Keras's model.fit in rounds: kills and newcomers, in the same processes, to the last bit."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.process.running import ROOT, Hosts, Run, running

SCRIPT = Path(__file__).with_name("scripts") / "elastic_keras.py"
CHECKS = Path(__file__).with_name("scripts") / "keras_checks.py"
SAMPLES = 96
EPOCHS = 3

pytestmark = [pytest.mark.libraries, pytest.mark.timeout(1800)]


def environ(folder: Path, **more: str) -> dict[str, str]:
    return {"CUDA_VISIBLE_DEVICES": "", "KERAS_BACKEND": "torch", "OUT": str(folder), **more}


def endings(run: Run) -> list[str]:
    """What each worker says when it is done: epochs, steps, digests of weights and optimizer, history, best loss."""
    assert run.end() == 0, run.text
    return re.findall(r"is done: (.*)$", run.text, re.MULTILINE)


def taken(folder: Path) -> dict[int, list[int]]:
    """The samples that were trained on, by epoch; of a batch that was made again, those of its last round."""
    lines = [line for file in folder.glob("taken-*") for line in file.read_text().splitlines()]
    last: dict[tuple[int, int], tuple[list[int], list[int]]] = {}
    for round_id, epoch, batch, samples in map(json.loads, lines):
        known, others = last.get((epoch, batch), ([], []))
        if round_id >= known:
            last[epoch, batch] = round_id, samples + (others if round_id == known else [])
    found: dict[int, list[int]] = {}
    for (epoch, _), (_, samples) in last.items():
        found.setdefault(epoch, []).extend(samples)
    return found


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> str:
    """How a run ends in which nothing happens."""
    folder = tmp_path_factory.mktemp("undisturbed")
    with running(["-np", "2", sys.executable, str(SCRIPT)], folder, environ(folder)) as run:
        first, second = endings(run)
    assert first == second
    assert first.startswith(f"epoch {EPOCHS}, iteration {EPOCHS * SAMPLES // 8}, ")
    return first


@pytest.mark.parametrize(
    ("variables", "batch"),
    [
        pytest.param({"KILL": "1 1 5"}, "5", id="before-a-step"),
        pytest.param({"KILL": "1 1 0"}, "0", id="before-an-epochs-first-step"),
        pytest.param({"KILL": "1 1 -1"}, "12", id="at-an-epochs-end"),
        pytest.param({"TORN": "1 1 5", "PER_COMMIT": "2"}, "[45]", id="torn"),
    ],
)
def test_a_kill_changes_no_bit(variables: dict[str, str], batch: str, tmp_path: Path, undisturbed: str) -> None:
    """The run goes on once the replacement is there: each batch is split as it would have been."""
    flags = ["-np", "2", "--min-np", "2"]
    with running([*flags, sys.executable, str(SCRIPT)], tmp_path, environ(tmp_path, **variables)) as run:
        ends = endings(run)
    survivor = run.line(r"rank 0 of 2 pid (\d+) at batch 0 of epoch 0")[1]
    run.line(rf"rank 0 of 2 pid {survivor} at batch {batch} of epoch 1")
    assert ends == [undisturbed] * 2
    begun_again = ["rank 0 ends epoch 1", "rank 1 ends epoch 1"] if variables.get("KILL", "").endswith("-1") else []
    assert sorted(re.findall(r"rank \d ends epoch \d", run.text)) == sorted(
        [f"rank {rank} ends epoch {epoch}" for rank in range(2) for epoch in range(EPOCHS)] + begun_again
    )
    if "KILL" in variables:
        for samples in taken(tmp_path).values():
            assert sorted(samples) == list(range(SAMPLES))


def test_the_survivor_of_a_kill_goes_on_alone_and_takes_a_newcomer(tmp_path: Path) -> None:
    """Each sample is taken once; the newcomer has all that rank 0 has."""
    flags = ["-np", "2", "--min-np", "1", sys.executable, str(SCRIPT)]
    more = {"EPOCHS": "400", "PAUSE": "0.02"}
    with running(flags, tmp_path, environ(tmp_path, **more)) as run:
        survivor = run.line(r"rank 0 of 2 pid (\d+) at batch 0 of epoch 0")[1]
        killed = run.line(r"rank 1 of 2 pid (\d+) passed batch 7 of epoch 1$")[1]
        os.kill(int(killed), signal.SIGKILL)
        run.line(rf"rank 0 of 1 pid {survivor} at batch \d+ of epoch \d+")
        run.line(rf"rank 0 of 2 pid {survivor} at batch \d+ of epoch \d+", after=len(run.lines) // 2)
        newcomer = run.line(rf"rank 1 of 2 pid (?!{killed})(\d+) passed batch")[1]
        assert newcomer != killed
        (tmp_path / "enough").touch()
        first, second = endings(run)
    assert first.split(", losses")[0] == second.split(", losses")[0]
    epochs = taken(tmp_path)
    assert len(epochs) > 2
    unwritten = 2 * 4  # of the batch that the killed worker had passed and not written down
    for samples in epochs.values():
        assert len(samples) <= SAMPLES + 8, "nothing is taken twice but the last row's padding"
    assert sum(len(set(samples)) for samples in epochs.values()) >= SAMPLES * len(epochs) - unwritten


def test_a_run_grows_and_shrinks(tmp_path: Path) -> None:
    hosts = Hosts(tmp_path, "localhost:1")
    flags = ["-np", "1", "--max-np", "2", "--host-discovery-script", str(hosts.script), sys.executable, str(SCRIPT)]
    with running(flags, tmp_path, environ(tmp_path, EPOCHS="100000", PAUSE="0.02")) as run:
        pid = run.line(r"rank 0 of 1 pid (\d+) at batch 0 of epoch 0")[1]
        hosts.are("localhost:1", "127.0.0.2:1")
        run.line(rf"rank 0 of 2 pid {pid} at batch \d+ of epoch \d+")
        run.line(r"rank 1 ends epoch")
        hosts.are("localhost:1")
        passed = len(run.lines)
        run.line(rf"rank 0 of 1 pid {pid} at batch \d+ of epoch \d+", after=passed)
        (tmp_path / "enough").touch()
        (end,) = endings(run)
    epochs = taken(tmp_path)
    assert f"losses {len(epochs)}," in end, "an epoch is ended once"
    for samples in epochs.values():
        assert set(samples) == set(range(SAMPLES))
        assert len(samples) <= SAMPLES + 1, f"something is taken twice that is not the last row's padding: {run.text}"


@pytest.fixture(scope="module")
def checked(tmp_path_factory: pytest.TempPathFactory) -> str:
    """What the checks say. Keras is imported in a process of its own: its backend is chosen once."""
    folder = tmp_path_factory.mktemp("checks")
    more = {**os.environ, **environ(folder), "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-W", "ignore", str(CHECKS)]
    done = subprocess.run(
        command,
        env=more,
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=1500,
        check=True,
    )
    return done.stdout


@pytest.mark.parametrize("check", re.findall(r"^def (check_\w+)", CHECKS.read_text(), re.MULTILINE))
def test_in_one_process(check: str, checked: str) -> None:
    assert f"{check}: ok" in checked, checked


@pytest.mark.parametrize("backend", ["tensorflow", "jax"])
def test_another_backend_is_refused(backend: str) -> None:
    command = [sys.executable, "-c", "import edriver.keras"]
    more = {**os.environ, "KERAS_BACKEND": backend, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, env=more, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode != 0
    assert f"KERAS_BACKEND is '{backend}': set KERAS_BACKEND=torch before keras is imported" in done.stderr
    assert "restart mode" in done.stderr
    assert "TF_CONFIG" in done.stderr
