"""What a worker tries out at its start: all holds with this torch; what does not is said and replaced."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
import torch

from edriver.model.ids import RoundId
from edriver.worker.backend import checks, grad_scaler, tensors, torch_groups
from edriver.worker.backend.checks import SEVERING_CHECK, Check
from edriver.worker.backend.gloo import sever
from edriver.worker.group.round_group import RoundGroup
from edriver.worker.group.warm_up import warm_up
from edriver.worker.state.torch_state import TorchState
from tests.torch.group_ranks import assignment

LIMIT_SECONDS = 300.0


def test_all_that_is_relied_on_holds_with_this_torch() -> None:
    assert warm_up() == frozenset()


def test_another_layout_of_fdinfo_is_reported_and_ends_no_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(sever, "_FDINFO_FOLDER", tmp_path)
    with caplog.at_level(logging.WARNING, "edriver.worker"):
        assert warm_up() == {SEVERING_CHECK}
    (record,) = caplog.records
    assert record.message.startswith("freeing collectives that hang on a lost peer does not work here: no Gloo device")
    group = RoundGroup("127.0.0.1", broken={SEVERING_CHECK})
    group.build(assignment(1, 0, group.store, 1), LIMIT_SECONDS)
    assert group.sever(RoundId(1, 1)).waiting == 1, "there may be connections: a thread that waits is not cut off"
    group.teardown()


def test_a_check_that_raises_has_failed() -> None:
    def run() -> str:
        raise AttributeError("torch has no pg_map")

    (finding,) = checks.found_by([Check("name", "this", run, "That is done instead.")])
    assert checks.sentence(finding) == (
        "this does not work here: AttributeError: torch has no pg_map. That is done instead."
    )
    assert checks.failed([finding]) == {"name"}


def test_a_process_that_cannot_count_names_anew_ends_only_after_a_build_that_failed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch_groups, "counts_names", lambda: False)
    group = RoundGroup("127.0.0.1")
    group.teardown()

    def breaks(*_: object) -> None:
        raise RuntimeError("[../third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer")

    monkeypatch.setattr(torch_groups, "init", breaks)
    with pytest.raises(SystemExit, match="it ends, and a new worker takes its slot"):
        group.build(assignment(1, 0, group.store, 1), LIMIT_SECONDS)
    monkeypatch.undo()
    group.teardown()


def test_without_a_count_of_writes_only_a_commit_is_gone_back_to(monkeypatch: pytest.MonkeyPatch) -> None:
    state = TorchState(torch.nn.Linear(1, 1))
    state.keep_small()
    assert state.clean
    monkeypatch.setattr(tensors, "counts_writes", lambda: False)
    state.keep_small()
    assert not state.clean


def test_a_scaler_with_other_attributes_is_kept_by_its_state_dict(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grad_scaler, "_SCALER_ATTRIBUTES", ("_elsewhere",))
    state = TorchState(scaler=torch.amp.GradScaler("cpu", init_scale=8.0))
    state.keep_small()
    state.scaler.load_state_dict({**state.scaler.state_dict(), "scale": 2.0})
    state.return_to_boundary()
    assert state.scaler.state_dict()["scale"] == 8.0
