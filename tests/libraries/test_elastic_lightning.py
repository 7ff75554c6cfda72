"""A Lightning training goes on in the same processes, at the exact sample, when workers die and hosts come and go."""

from __future__ import annotations

import csv
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.process.running import Hosts, Run, running

SCRIPT = Path(__file__).with_name("scripts") / "elastic_lightning.py"
SAMPLES = 96

pytestmark = [pytest.mark.libraries, pytest.mark.timeout(900)]

Row = dict[str, Any]


def training(folder: Path, flags: list[str], **environ: str) -> Any:
    return running([*flags, sys.executable, str(SCRIPT)], folder, {"CUDA_VISIBLE_DEVICES": "", **environ})


def written(folder: Path) -> list[Row]:
    """What all workers wrote down, in the order of time."""
    lines = [line for path in folder.glob("worker-*.jsonl") for line in path.read_text().splitlines()]
    return sorted((json.loads(line) for line in lines), key=lambda row: row["at"])


def that_count(rows: list[Row], what: str) -> dict[tuple[int, int], list[Row]]:
    """Rows of a kind by (epoch, step); where a step was made again, those of its last round."""
    found: dict[tuple[int, int], list[Row]] = {}
    for row in rows:
        if row["what"] == what:
            found.setdefault((row["epoch"], row["step"]), []).append(row)
    order = {name: place for place, name in enumerate(dict.fromkeys(row["round"] for row in rows))}
    return {
        key: [r for r in some if r["round"] == max((s["round"] for s in some), key=order.__getitem__)]
        for key, some in found.items()
    }


def check(
    folder: Path, rows: list[Row], epochs: int, steps: int | None = None, unfinished: bool = False, cut: bool = False
) -> list[Row]:
    """What must hold after any sequence of losses and resizes; returns what workers wrote at the end.

    Args:
        folder: where they wrote.
        rows: what they wrote.
        epochs: how many there were,
        steps: and of how many steps; None: any number.
        unfinished: whether the last epoch was.
        cut: whether a worker was lost in a hook, which is called again then.
    """
    done = [row for row in rows if row["what"] == "done"]
    assert sorted(row["rank"] for row in done) == list(range(done[0]["size"]))
    assert len({row["digest"] for row in done}) == 1
    assert len({(row["step"], row["epoch"], row["wait"], row["best"], row["best_path"]) for row in done}) == 1
    last = done[0]["step"]
    assert steps is None or last == steps
    assert done[0]["epoch"] == epochs
    took = that_count(rows, "took")
    assert {step for _, step in took} == set(range(last))
    for epoch in range(epochs):
        samples = [n for (of, _), some in took.items() if of == epoch for row in some for n in row["samples"]]
        if unfinished and epoch == epochs - 1:
            assert len(samples) == len(set(samples)) < SAMPLES
        else:
            assert sorted(samples) == list(range(SAMPLES))
        batches = [row["batch"] for (of, _), some in took.items() if of == epoch for row in some if row["rank"] == 0]
        assert batches == list(range(len(batches)))
    for row in rows:
        if row["what"] == "stepped":
            assert row["lr"] == pytest.approx(0.01 * 0.99 ** row["step"])
    for process in {row["pid"] for row in rows}:
        of_process = [row for row in rows if row["pid"] == process]
        for hook in ("epoch start", "epoch end", "validation"):
            calls = [(row["epoch"], row["round"]) for row in of_process if row["what"] == hook]
            assert calls == sorted(set(calls)), f"{hook} was called again"
            if not cut:
                assert len({epoch for epoch, _ in calls}) == len(calls), f"{hook} was called again"
    for hook in ("epoch end", "validation"):
        called = epochs - (unfinished and hook == "validation")  # an epoch that max_steps cuts short is not validated
        assert {row["epoch"] for row in rows if row["what"] == hook} == set(range(called))
    assert {row["round"] for row in rows if row["what"] == "sanity"} == {"1.1"}
    assert all(
        row["callbacks"].count("ModelCheckpoint") == row["callbacks"].count("EarlyStopping") == 1 for row in done
    )
    (log,) = folder.glob("logs/**/metrics.csv")
    with log.open() as file:
        logged = [int(row["step"]) for row in csv.DictReader(file) if row["loss_step"]]
    assert logged == list(range(last))
    assert Path(done[0]["best_path"]).exists()
    return done


@pytest.mark.parametrize(
    ("kind", "kill", "epochs", "steps"),
    [
        pytest.param("automatic", "step:7", 3, 36, id="backward"),
        pytest.param("automatic", "step:11", 3, 36, id="the-epochs-last-batch"),
        pytest.param("automatic", "epoch:24", 3, 36, id="the-epochs-end"),
        pytest.param("accumulate", "step:2", 3, 12, id="gradient-accumulation"),
        pytest.param("manual", "step:7", 3, 36, id="manual-optimization"),
        pytest.param("bf16", "validation:24", 3, 36, id="validation-with-bf16"),
    ],
)
def test_a_killed_worker_is_replaced(kind: str, kill: str, epochs: int, steps: int, tmp_path: Path) -> None:
    with training(tmp_path, ["-np", "2"], KIND=kind, KILL=f"{kill}:2") as run:
        assert run.end() == 0, run.text
    rows = written(tmp_path)
    done = check(tmp_path, rows, epochs, steps, cut=kill.startswith("epoch"))
    (killed,) = (row for row in rows if row["what"] == "killed")
    assert {row["round"] for row in done} == {"1.2"}
    (survivor,) = {row["pid"] for row in rows if row["round"] == "1.1"} - {killed["pid"]}
    assert survivor in {row["pid"] for row in done}
    assert killed["pid"] not in {row["pid"] for row in done}
    assert "lost" not in next(line for line in run.lines if "round 1.2: 2 workers" in line)
    assert all(row["wait"] == epochs - 1 for row in done)


def test_three_workers_on_two_hosts_know_how_many_hosts_there_are(tmp_path: Path) -> None:
    with training(tmp_path, ["-np", "3", "-H", "localhost:1,127.0.0.2:2"], KILL="step:7:3") as run:
        assert run.end() == 0, run.text
    rows = written(tmp_path)
    check(tmp_path, rows, 3, 24)
    assert {row["round"] for row in rows} == {"1.1", "1.2"}
    for row in rows:
        if row["size"] == 3:
            assert (row["hosts"], row["host"]) == (2, min(row["rank"], 1))
            assert row["validates"] == {"num_replicas": 3, "rank": row["rank"]}


def test_max_steps_is_never_exceeded(tmp_path: Path) -> None:
    with training(tmp_path, ["-np", "2"], KIND="steps", KILL="step:19:2") as run:
        assert run.end() == 0, run.text
    check(tmp_path, written(tmp_path), 2, 20, unfinished=True)


def test_early_stopping_goes_on_counting(tmp_path: Path) -> None:
    with training(tmp_path, ["-np", "2"], EPOCHS="9", PATIENCE="2", KILL="validation:24:2") as run:
        assert run.end() == 0, run.text
    done = check(tmp_path, written(tmp_path), 3, 36)
    assert all(row["wait"] == 2 for row in done)


def next_place(run: Run, pattern: str, after: int = 0) -> tuple[re.Match[str], int]:
    found = run.line(pattern, after)
    return found, run.lines.index(found.string, after) + 1


def test_a_newcomer_becomes_rank_0(tmp_path: Path) -> None:
    with training(tmp_path, ["-np", "2"], KILL="step:7:1,step:20:2") as run:
        assert run.end() == 0, run.text
    rows = written(tmp_path)
    done = check(tmp_path, rows, 3, 36)
    assert [row["what"] for row in rows].count("killed") == 2
    assert {row["pid"] for row in done}.isdisjoint(row["pid"] for row in rows if row["round"] == "1.1")


def test_hosts_come_and_go(tmp_path: Path) -> None:
    hosts = Hosts(tmp_path, "localhost:1")
    flags = ["-np", "1", "--max-np", "2", "--host-discovery-script", str(hosts.script)]
    with training(tmp_path, flags, EPOCHS="100000", PATIENCE="2", PAUSE="0.02", HOLD="1") as run:
        first, at = next_place(run, r"rank 0 of 1 pid (\d+) at step 0")
        hosts.are("localhost:1", "127.0.0.2:1")
        _, at = next_place(run, rf"rank 0 of 2 pid {first[1]} at step [1-9]", at)
        hosts.are("localhost:1")
        run.line(rf"rank 0 of 1 pid {first[1]} at step [1-9]", at)
        (tmp_path / "enough").touch()
        assert run.end() == 0, run.text
    assert "failed" not in run.text
    rows = written(tmp_path)
    (done,) = check(tmp_path, rows, rows[-1]["epoch"])
    assert done["pid"] == int(first[1])


def alone(folder: Path, *command: str) -> str:
    """Run a script without a driver; returns what it printed."""
    environ = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2]), "CUDA_VISIBLE_DEVICES": ""}
    result = subprocess.run(
        [sys.executable, *command], cwd=folder, env=environ, capture_output=True, text=True, timeout=600
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


KINDS = ["clipping", "accumulation", "shared", "manual", "bf16", "steps", "intervals", "plateau", "limited", "early"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_training_that_is_left_anywhere_ends_as_one_that_is_not(kind: str, tmp_path: Path) -> None:
    assert f"{kind}: left at " in alone(tmp_path, str(SCRIPT.with_name("lightning_rounds.py")), kind)


REFUSALS = """
import sys
import torch
from lightning.pytorch import LightningModule
from lightning.pytorch.callbacks import StochasticWeightAveraging
from torch.utils.data import DataLoader, TensorDataset
import edriver
from edriver.integrations.lightning import ElasticTrainer

class Model(LightningModule):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Linear(1, 1)
    def training_step(self, batch, index):
        return self.net(batch[0]).sum()
    def configure_optimizers(self):
        if STEPS:
            self.trainer.estimated_stepping_batches
        return torch.optim.SGD(self.parameters(), 0.1)

STEPS = False
model, data = Model(), TensorDataset(torch.ones(8, 1))
sampler = edriver.ElasticSampler(data)
quiet = {"accelerator": "cpu", "logger": False, "enable_checkpointing": False, "enable_progress_bar": False,
         "enable_model_summary": False}

def refused(what, error):
    try:
        what()
    except error as said:
        print(said)
    else:
        raise SystemExit("not refused")

for strategy in ("fsdp", "deepspeed", "ddp_spawn"):
    refused(lambda: ElasticTrainer(strategy=strategy, **quiet), ValueError)
refused(lambda: ElasticTrainer(use_distributed_sampler=True, **quiet), ValueError)
refused(lambda: ElasticTrainer(devices=2, **quiet), ValueError)
averaging = ElasticTrainer(callbacks=[StochasticWeightAveraging(1e-2)], **quiet)
refused(lambda: averaging.elastic_state(model, sampler), ValueError)
trainer = ElasticTrainer(max_epochs=1, **quiet)
refused(lambda: trainer.fit(model), RuntimeError)
STEPS = True
refused(lambda: trainer.elastic_state(model, sampler), ValueError)
STEPS = False
state = trainer.elastic_state(model, sampler)
refused(lambda: trainer.fit(model, DataLoader(data, sampler=sampler)), RuntimeError)

@edriver.run
def train(state):
    refused(lambda: trainer.fit(Model(), DataLoader(data, sampler=sampler)), ValueError)
    refused(lambda: trainer.fit(model, DataLoader(data, shuffle=True)), TypeError)
    trainer.fit(model, DataLoader(data, batch_size=2, sampler=sampler))
    print("alone to step", trainer.global_step)

train(state)
"""


SYNC_BATCHNORM = """
import torch
from lightning.pytorch import LightningModule
from torch.utils.data import TensorDataset
import edriver
from edriver.integrations.lightning import ElasticTrainer

class Model(LightningModule):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Sequential(torch.nn.BatchNorm1d(1), torch.nn.Linear(1, 1))
    def training_step(self, batch, index):
        return self.net(batch[0]).sum()
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.1)

model, sampler = Model(), edriver.ElasticSampler(TensorDataset(torch.ones(8, 1)))
quiet = {"accelerator": "cpu", "logger": False, "enable_checkpointing": False, "enable_progress_bar": False,
         "enable_model_summary": False, "max_epochs": 1, "sync_batchnorm": True}
state = ElasticTrainer(**quiet).elastic_state(model, sampler)
print(type(model.net[0]).__name__)
optimized = {id(p) for group in state.optimizer.param_groups for p in group["params"]}
print(optimized == {id(p) for p in state.model.parameters()})
try:
    ElasticTrainer(global_batch=True, accumulate_grad_batches=2, **quiet).elastic_state(Model(), sampler)
except ValueError as said:
    print(said)
"""


def test_sync_batchnorm_converts_the_model_before_its_state_is_made(tmp_path: Path) -> None:
    """Its layers train on GPUs only: DistributedDataParallel refuses them on the CPU."""
    (tmp_path / "sync_batchnorm.py").write_text(SYNC_BATCHNORM)
    converted, optimized, refused = alone(tmp_path, "sync_batchnorm.py").splitlines()
    assert converted == "SyncBatchNorm"
    assert optimized == "True"
    assert "SyncBatchNorm has them wait for" in refused


def test_what_cannot_work_is_refused_with_the_way_out(tmp_path: Path) -> None:
    (tmp_path / "refusals.py").write_text(REFUSALS)
    said = alone(tmp_path, "refusals.py").splitlines()
    for line, part in zip(
        said,
        [
            *["edriver --mode restart"] * 3,
            "leave it out",
            "edriver's -np and -H",
            "edriver --mode restart",
            "trainer.elastic_state(model, sampler) before edriver.run",
            "max_steps",
            "inside the function that edriver.run wraps",
            "another model",
            "DataLoader(dataset, batch_size=..., sampler=sampler)",
            "alone to step 4",
        ],
        strict=True,
    ):
        assert part in line
