"""`edriver export`: what TensorBoard itself reads in the files, and what stands in the table."""

from __future__ import annotations

import csv
import json
import math
import re
import subprocess
import sys
import types
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from edriver.client import RunError
from edriver.commands.export import export
from tests.made_runs import MadeRun

ROOT = Path(__file__).parents[2]
RUN = MadeRun("aaaaaaaa", names=("acc/top 1", '=1+1,"x"'), about={"name": "base"})


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return RUN.write(tmp_path / "records")


def recorded(folder: Path) -> list[dict[str, Any]]:
    """The samples that its log has, oldest first, the last one of the run's end."""
    entries = [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]
    found = [entry["progress"] for entry in entries if "progress" in entry]
    return found + [entry["run_ended"]["progress"] for entry in entries if "run_ended" in entry]


def shown(log: Path) -> EventAccumulator:
    accumulator = EventAccumulator(str(log), size_guidance={"scalars": 0, "tensors": 0})
    accumulator.Reload()
    return accumulator


def test_tensorboard_reads_what_was_reported(folder: Path) -> None:
    assert re.fullmatch(
        r"runs/aaaaaaaa: \d+ points; tensorboard --logdir runs shows them", export(["tensorboard", str(folder)])
    )
    found = shown(Path("runs/aaaaaaaa"))
    own = ["edriver/workers", "edriver/steps_per_second", "edriver/samples_per_second", "edriver/goodput"]
    assert sorted(found.Tags()["scalars"]) == sorted(["loss", *RUN.names, *own])
    loss = found.Scalars("loss")
    steps = [point.step for point in loss]
    assert steps == sorted(set(steps))
    assert steps[-1] == int(recorded(folder)[-1]["steps"])
    for point in loss:
        assert point.value == pytest.approx(RUN.loss(point.step), rel=1e-6)
    assert {point.value for point in found.Scalars("edriver/workers")} == {3.0, 4.0}
    text = found.Tensors(
        "edriver/run/text_summary" if "edriver/run/text_summary" in found.Tags()["tensors"] else "edriver/run"
    )
    assert b"* **name**: `base`" in text[0].tensor_proto.string_val[0]


def test_exported_again_it_takes_the_place_of_the_first(folder: Path) -> None:
    export(["tensorboard", str(folder)])
    before = len(shown(Path("runs/aaaaaaaa")).Scalars("loss"))
    with (folder / "events.jsonl").open("a") as file:
        file.write('{"time": "2030-01-01T00:00:00Z", "progress": {"steps": "999999", "reported": {"loss": 1e300}}}\n')
    export(["tensorboard", str(folder)])
    loss = shown(Path("runs/aaaaaaaa")).Scalars("loss")
    assert (len(loss), loss[-1].step, loss[-1].value) == (before + 1, 999999, math.inf)  # more than a float32 holds
    assert [path.name[:20] for path in Path("runs/aaaaaaaa").iterdir()] == ["events.out.tfevents."]


def test_undone_steps_are_in_the_table_and_not_in_tensorboard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    lines = [(1, 10, 1.0), (2, 20, 2.0), (3, 15, 3.0), (4, 15, 3.0), (5, 25, "NaN")]
    with Path("log.jsonl").open("w") as file:
        for second, steps, loss in lines:
            progress = {"steps": str(steps), "reported": {"loss": loss}}
            file.write(json.dumps({"time": f"2026-01-01T00:00:0{second}Z", "progress": progress}) + "\n")
    export(["tensorboard", "log.jsonl", "--out", "tb"])
    found = [(point.step, point.value) for point in shown(Path("tb/log")).Scalars("loss")]
    assert found[:-1] == [(10, 1.0), (15, 3.0)]
    assert found[-1][0] == 25
    assert math.isnan(found[-1][1])
    assert export(["csv", "log.jsonl"]) == "edriver-log.csv: 5 rows"
    with Path("edriver-log.csv").open(newline="") as table:
        rows = list(csv.DictReader(table))
    assert [row["undone"] for row in rows] == ["0", "1", "0", "0", "0"]
    assert [row["loss"] for row in rows] == ["1.0", "2.0", "3.0", "3.0", "NaN"]


def test_a_value_stands_at_the_step_that_it_is_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    progress = {"steps": "12", "rank_0_steps": "10", "reported": {"loss": 1.5}}  # another member has made 12
    Path("log.jsonl").write_text(json.dumps({"time": "2026-01-01T00:00:01Z", "progress": progress}) + "\n")
    export(["tensorboard", "log.jsonl", "--out", "tb"])
    assert [(point.step, point.value) for point in shown(Path("tb/log")).Scalars("loss")] == [(10, 1.5)]
    export(["csv", "log.jsonl"])
    with Path("edriver-log.csv").open(newline="") as table:
        assert [(row["step"], row["loss"]) for row in csv.DictReader(table)] == [("10", "1.5")]


def test_steps_of_a_later_call_of_run_are_counted_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    def a_round(seq: int, second: int) -> str:
        message = {
            "round_id": {"incarnation": 1, "n": str(seq)},
            "kind": "ROUND_KIND_START",
            "members": [{"worker_id": "1"}],
        }
        return json.dumps({"seq": str(seq), "time": f"2026-01-01T00:00:{second:02}Z", "round": message}) + "\n"

    def a_sample(second: int, steps: int) -> str:
        return json.dumps({"time": f"2026-01-01T00:00:{second:02}Z", "progress": {"steps": str(steps)}}) + "\n"

    Path("log.jsonl").write_text(a_round(1, 0) + a_sample(1, 10) + a_sample(2, 20) + a_round(2, 3) + a_sample(4, 5))
    export(["tensorboard", "log.jsonl"])
    assert [point.step for point in shown(Path("runs/log")).Scalars("edriver/workers")] == [10, 20, 25]
    export(["csv", "log.jsonl"])
    with Path("edriver-log.csv").open(newline="") as table:
        assert [(row["step"], row["undone"]) for row in csv.DictReader(table)] == [("10", "0"), ("20", "0"), ("5", "0")]


def test_the_table_has_every_sample_with_every_digit(folder: Path) -> None:
    samples = recorded(folder)
    assert export(["csv", str(folder), "--out", "t.csv"]) == f"t.csv: {len(samples)} rows"
    with Path("t.csv").open(newline="") as table:
        rows = list(csv.DictReader(table))
    for name in ("loss", *RUN.names):
        assert [float(row[name]) for row in rows] == [sample["reported"][name] for sample in samples]
    assert Path("t.csv").stat().st_mode & 0o777 == 0o600
    assert {row["workers"] for row in rows} == {"3", "4"}
    assert any(row["undone"] == "1" for row in rows)


def test_torch_is_not_imported(folder: Path) -> None:
    code = (
        "import sys; from edriver.commands.export import export; export(sys.argv[1:]); sys.exit('torch' in sys.modules)"
    )
    environ = {"PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", code, "tensorboard", str(folder)], env=environ, timeout=120)
    assert done.returncode == 0


def test_without_tensorboard_the_error_names_what_to_install(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tensorboard.compat.proto", None)
    with pytest.raises(RunError, match=re.escape("pip install 'edriver[tensorboard]'")):
        export(["tensorboard", str(folder)])


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        pytest.param(["csv", "nowhere"], "there are no records of a run 'nowhere'", id="no-run"),
        pytest.param(["csv", "empty.jsonl"], "has no samples of training", id="nothing"),
        pytest.param(
            ["csv", "records/aaaaaaaa", "--out", "no/where.csv"], "no/where.csv: No such file", id="no-folder"
        ),
        pytest.param(["tensorboard", "records/aaaaaaaa", "--out", "empty.jsonl"], "Not a directory", id="a-file"),
    ],
)
def test_what_cannot_be_exported(folder: Path, words: list[str], sentence: str) -> None:
    Path("empty.jsonl").touch()
    with pytest.raises(RunError, match=sentence):
        export(words)


# ---- the examples of docs/how-to/export.md ---------------------------------------------------------------------------


class Noted(types.ModuleType):
    """Stands for a library; notes what it is called with, and what was called."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.calls: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = []

    def __getattr__(self, name: str) -> Any:
        def call(*args: Any, **more: Any) -> Noted:
            self.calls.append((name, args, more))
            return self

        return call

    def __enter__(self) -> Noted:
        return self

    def __exit__(self, *_: object) -> None:
        pass


def example(library: str, monkeypatch: pytest.MonkeyPatch, folder: Path) -> Noted:
    """Run the example for a library over the table of the run."""
    export(["csv", str(folder), "--out", "t.csv"])
    text = (ROOT / "docs/how-to/export.md").read_text()
    (code,) = (block for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL) if f"import {library}" in block)
    noted = Noted(library)
    monkeypatch.setitem(sys.modules, library, noted)
    monkeypatch.setattr(sys, "argv", ["example", "t.csv"])
    exec(compile(code, library, "exec"), {})
    return noted


def test_the_example_for_wandb(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    noted = example("wandb", monkeypatch, folder)
    assert noted.calls[0] == ("init", (), {"project": "edriver", "id": "aaaaaaaa", "resume": "allow"})
    logged = [args[0] for name, args, _ in noted.calls if name == "log"]
    assert [values["loss"] for values in logged] == [RUN.loss(int(values["step"])) for values in logged]
    assert len(logged) > 100


def test_the_example_for_mlflow(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    noted = example("mlflow", monkeypatch, folder)
    losses = [(args[1], more) for name, args, more in noted.calls if name == "log_metric" and args[0] == "loss"]
    assert [value for value, _ in losses] == [RUN.loss(more["step"]) for _, more in losses]
    assert datetime.fromtimestamp(losses[0][1]["timestamp"] / 1000).timestamp() == RUN.began + 8.5
