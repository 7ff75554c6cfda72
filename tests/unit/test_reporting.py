"""What is reported of a run to W&B and MLflow, and the processes that do."""

from __future__ import annotations

import asyncio
import logging
import subprocess
import sys
from collections.abc import Iterable, Sequence
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from edriver.driver.run.reporters import Reporters
from edriver.reporting.__main__ import report
from edriver.reporting.entries import Entries, Entry
from edriver.reporting.mlflow_tracker import MlflowTracker
from edriver.reporting.wandb_tracker import WandbTracker
from edriver.system.child import Child
from edriver.v1 import rounds_pb2, status_pb2
from edriver.wire.conversion import duration, timestamp

MEMBERS = [status_pb2.Member(worker_id=number) for number in (1, 2, 3)]


def event(seq: int, text: str = "", **kind: Any) -> status_pb2.WatchResponse:
    return status_pb2.WatchResponse(event=status_pb2.Event(seq=seq, time=timestamp(1000.0 + seq), text=text, **kind))


def begun(seq: int, n: int, size: int = 3, kind: status_pb2.RoundKind.ValueType = status_pb2.ROUND_KIND_START) -> Any:
    of = status_pb2.Round(round_id=rounds_pb2.RoundId(incarnation=1, n=n), kind=kind, members=MEMBERS[:size])
    return event(seq, f"round {n}", round=of)


def trained(steps: int, **reported: float) -> status_pb2.WatchResponse:
    return status_pb2.WatchResponse(progress=status_pb2.Progress(steps=steps, step_rate=2.0, reported=reported))


def entries(*messages: status_pb2.WatchResponse) -> list[Entry]:
    made = Entries()
    return [entry for message in messages for entry in made.take(message, 2000.0)]


def values(found: Iterable[Entry], name: str) -> list[tuple[int, float]]:
    return [(entry.step, entry.values[name]) for entry in found if name in entry.values]


def test_what_the_script_reports_is_logged_once_for_each_step() -> None:
    found = entries(
        begun(1, 1), trained(3, loss=0.5), trained(3, loss=0.5), trained(3, loss=0.25), trained(4, loss=0.25)
    )
    assert values(found, "loss") == [(3, 0.5), (3, 0.25), (4, 0.25)]
    assert values(found, "edriver/steps_per_second") == [(3, 2.0), (3, 2.0), (4, 2.0)]


def test_rounds_and_interruptions_are_marked_at_their_step() -> None:
    interruption = status_pb2.Interruption(
        kind=status_pb2.INTERRUPTION_KIND_FAILURE, duration=duration(1.5), steps_lost=2, size=2
    )
    found = entries(
        begun(1, 1),
        event(2, interruption=status_pb2.Interruption(kind=status_pb2.INTERRUPTION_KIND_BOOT, duration=duration(9.0))),
        trained(7),
        begun(3, 2, 2, status_pb2.ROUND_KIND_FAILURE),
        event(4, "recovered", interruption=interruption),
        event(4, "the same again"),
    )
    assert values(found, "edriver/round") == [(0, 1), (7, 2)]
    assert values(found, "edriver/interruption_seconds") == [(7, 1.5)]
    assert values(found, "edriver/steps_lost") == [(7, 2)]
    assert [entry.text for entry in found if entry.text] == ["round 1", "round 2", "recovered"]
    assert values(found, "edriver/workers") == [(0, 3), (7, 3), (7, 2)]


def test_steps_go_on_in_the_scripts_next_call_of_run() -> None:
    found = entries(begun(1, 1), trained(10, loss=1.0), begun(2, 2), trained(4, loss=0.5))
    assert values(found, "loss") == [(10, 1.0), (14, 0.5)]


def test_the_last_values_come_with_the_end() -> None:
    ended = status_pb2.RunEnded(end=status_pb2.RUN_END_DONE, progress=trained(9, loss=0.125).progress)
    found = entries(begun(1, 1), trained(8, loss=0.25), event(2, "done", run_ended=ended))
    assert values(found, "loss") == [(8, 0.25), (9, 0.125)]
    assert values(found, "edriver/workers")[-1] == (9, 3)
    assert found[-1].text == "done"


class Calls(ModuleType):
    """Stands for a library: remembers what is called, and answers with objects that do the same."""

    def __init__(self, name: str, **answers: Any) -> None:
        super().__init__(name)
        self.made: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = []
        self.__dict__.update(answers)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)

        def call(*args: Any, **kwargs: Any) -> Any:
            self.made.append((name, args, kwargs))
            return None

        return call

    def of(self, name: str) -> list[tuple[tuple[Any, ...], dict[str, Any]]]:
        return [(args, kwargs) for called, args, kwargs in self.made if called == name]


RUN = status_pb2.Run(run_id="5d2f01aa", name="trial", command=["python", "train.py"], np=3, tags={"lr": "0.1"})
DONE = status_pb2.RunEnded(end=status_pb2.RUN_END_DONE, rounds=2, failures=1)


def test_wandb_has_one_run_of_the_same_id(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.delenv("WANDB_PROJECT", raising=False)
    summary: dict[str, Any] = {}
    run = Calls("run", offline=True, dir="/w/offline run/files", summary=summary)
    begun_with: dict[str, Any] = {}

    def init(**settings: Any) -> Calls:
        begun_with.update(settings)
        return run

    wandb = Calls("wandb", init=init)
    monkeypatch.setitem(sys.modules, "wandb", wandb)
    tracker = WandbTracker()
    assert tracker.begin(RUN) == "offline; to upload it: wandb sync '/w/offline run'"
    assert {name: begun_with[name] for name in ("project", "id", "resume", "name", "tags")} == {
        "project": "edriver",
        "id": "5d2f01aa",
        "resume": "allow",
        "name": "trial",
        "tags": ["lr=0.1"],
    }
    assert begun_with["config"]["edriver"]["command"] == "python train.py"
    tracker.add(Entry(1.0, 5, {"loss": 0.5}, "a loss"))
    tracker.add(Entry(1.0, 5, text="a remark"))
    assert run.of("log") == [(({"loss": 0.5, "edriver/step": 5},), {})]
    assert capsys.readouterr().out == "step 5: a loss\nstep 5: a remark\n"
    tracker.end(DONE)
    assert summary["edriver/end"] == "done"
    assert run.of("finish") == [((), {"exit_code": 0})]


@pytest.mark.parametrize("known", [False, True])
def test_mlflow_finds_the_run_that_a_driver_before_has_begun(monkeypatch: pytest.MonkeyPatch, known: bool) -> None:
    for name in ("MLFLOW_EXPERIMENT_NAME", "MLFLOW_EXPERIMENT_ID"):
        monkeypatch.delenv(name, raising=False)
    run = SimpleNamespace(info=SimpleNamespace(run_id="m1"))
    client = Calls("client", list_artifacts=lambda *_: ["edriver/events-1.txt"] if known else [])
    started: dict[str, Any] = {}

    def start_run(**settings: Any) -> Any:
        started.update(settings)
        return run

    mlflow = Calls(
        "mlflow",
        MlflowClient=lambda: client,
        search_runs=lambda **_: [run] if known else [],
        start_run=start_run,
        get_tracking_uri=lambda: "file:///m",
    )
    entities = SimpleNamespace(Metric=lambda *args: args, Param=lambda *args: args, RunTag=lambda *args: args)
    monkeypatch.setitem(sys.modules, "mlflow", mlflow)
    monkeypatch.setitem(sys.modules, "mlflow.entities", entities)
    tracker = MlflowTracker()
    assert tracker.begin(RUN) == "run m1 at file:///m"
    assert mlflow.of("set_experiment") == [(("edriver",), {})]
    assert started["run_id"] == ("m1" if known else None)
    assert started["tags"] == {"lr": "0.1", "edriver.run_id": "5d2f01aa"}
    assert any("params" in kwargs for _, kwargs in client.of("log_batch")) != known
    tracker.add(Entry(1.5, 5, {"loss": 0.5, "top{5}": 0.75}, "lost"))
    _, batch = client.of("log_batch")[-1]
    assert batch["metrics"] == [("loss", 0.5, 1500, 5), ("top_5_", 0.75, 1500, 5)]
    artifact = f"edriver/events-{2 if known else 1}.txt"
    assert client.of("log_text")[-1] == (("m1", "step 5: lost\n", artifact), {})
    tracker.end(DONE)
    assert mlflow.of("end_run") == [(("FINISHED",), {})]


class Recorded:
    """A tracker that remembers what it is given."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self.ends: list[status_pb2.RunEnded | None] = []

    def begin(self, run: status_pb2.Run) -> str:
        return f"at {run.run_id}"

    def add(self, entry: Entry) -> None:
        self.entries.append(entry)

    def end(self, ended: status_pb2.RunEnded | None) -> None:
        self.ends.append(ended)


@pytest.mark.parametrize(("resumed", "since"), [(False, 0), (True, 7)])
def test_a_later_driver_does_not_report_what_is_reported(resumed: bool, since: int) -> None:
    asked: list[int] = []

    def watch(since: int) -> list[status_pb2.WatchResponse]:
        asked.append(since)
        return [trained(12, loss=1.0), event(8, "done", run_ended=DONE)]

    snapshot = status_pb2.GetRunResponse(run=status_pb2.Run(run_id="5d2f01aa", progress=trained(11).progress), seq=7)
    client: Any = SimpleNamespace(snapshot=lambda: snapshot, watch_progress=watch)
    tracker, said = Recorded(), list[str]()
    report(client, tracker, said.append, resumed=resumed)
    assert asked == [since]
    assert said == ["at 5d2f01aa"]
    assert values(tracker.entries, "loss") == [(12, 1.0)]
    assert tracker.ends == [DONE]


def test_a_run_that_cannot_be_watched_to_its_end_is_ended() -> None:
    def watch(_since: int) -> Iterable[status_pb2.WatchResponse]:
        yield trained(1)
        raise ConnectionError

    client: Any = SimpleNamespace(snapshot=status_pb2.GetRunResponse, watch_progress=watch)
    tracker = Recorded()
    with pytest.raises(ConnectionError):
        report(client, tracker, lambda _line: None, resumed=False)
    assert tracker.ends == [None]


def shell(script: str) -> Any:
    def start(command: Sequence[str]) -> Child:
        return Child(["sh", "-c", script, *command], stdout=subprocess.PIPE, tethered=True)

    return start


def run_of(script: str, *, hurried: bool = False) -> None:
    async def to_the_end() -> None:
        reporters = Reporters(["wandb"], "5d2f01aa", resumed=True, start=shell(script))
        reporters.start()
        hurry = asyncio.Event()
        if hurried:
            hurry.set()
        await reporters.end(hurry)
        assert reporters.running == []

    asyncio.run(to_the_end())


def test_the_driver_waits_for_a_process_and_prints_what_it_says(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "edriver.driver")
    run_of('echo "$@"; exit 0')
    assert [record.levelname for record in caplog.records if record.levelno > logging.INFO] == []


def test_a_process_that_fails_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    run_of("exit 3")
    assert "wandb: the run is no longer reported to it (exit code 3); training is not affected" in caplog.text


def test_who_does_not_want_to_wait_does_not(caplog: pytest.LogCaptureFixture) -> None:
    run_of("sleep 1000", hurried=True)
    assert "wandb: it did not take the last of the run in time" in caplog.text
