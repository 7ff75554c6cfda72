"""How many steps a Trainer's run has left, and how its progress goes back. Needs no library."""

from __future__ import annotations

import pytest

import edriver
from edriver.integrations.trainer_progress import TrainerProgress, planned


@pytest.mark.parametrize(
    ("step", "epoch", "rest", "full", "max_steps", "num_train_epochs", "expected"),
    [
        pytest.param(0, 0, 8, 8, 12, 3.0, (2, 12), id="steps, from the start"),
        pytest.param(5, 0, 3, 8, 12, 3.0, (2, 12), id="steps, in the middle"),
        pytest.param(4, 0, 8, 16, 12, 3.0, (1, 12), id="steps, with half the workers one epoch is enough"),
        pytest.param(12, 1, 4, 8, 12, 3.0, (2, 12), id="steps, all done"),
        pytest.param(0, 0, 8, 8, -1, 3.0, (3, 24), id="epochs, from the start"),
        pytest.param(4, 0, 8, 16, -1, 2.0, (2, 28), id="epochs, with half the workers"),
        pytest.param(8, 1, 4, 4, -1, 2.0, (2, 12), id="epochs, with twice the workers"),
        pytest.param(0, 0, 8, 8, -1, 1.5, (2, 12), id="one epoch and a half"),
        pytest.param(10, 1, 6, 8, -1, 1.5, (2, 12), id="in that half"),
        pytest.param(0, 0, 5, 5, -1, 1.6, (2, 8), id="a fraction that is no binary one"),
        pytest.param(6, 1, 4, 5, -1, 1.6, (2, 8), id="in that"),
        pytest.param(24, 3, 8, 8, -1, 3.0, (3, 24), id="epochs, all done"),
    ],
)
def test_what_is_planned(
    step: int,
    epoch: int,
    rest: int,
    full: int,
    max_steps: int,
    num_train_epochs: float,
    expected: tuple[int, int],
) -> None:
    assert planned(step, epoch, rest, full, max_steps, num_train_epochs) == expected


def test_a_boundary_keeps_a_long_log_by_its_length() -> None:
    progress = TrainerProgress()
    state = edriver.TorchState(progress=progress)
    log = progress.log_history
    progress.values = {"global_step": 1, "control": {"should_training_stop": False}}
    log += [{"loss": 0.5, "step": step} for step in range(5000)]
    state.keep_small()
    assert state.clean
    before = state.digest(committed=False)
    progress.values = {"global_step": 2}
    log.append({"loss": 0.1})
    state.return_to_boundary()
    assert progress.values == {"global_step": 1, "control": {"should_training_stop": False}}
    assert log is progress.log_history
    assert len(log) == 5000
    log[0]["eval_runtime"] = 3.0
    state.keep_small()
    assert state.digest(committed=False) == before, "what differs between workers is not compared"


def test_a_newcomer_receives_the_whole_log() -> None:
    one, other = TrainerProgress(), TrainerProgress()
    one.values, one.log_history[:] = {"global_step": 3}, [{"loss": 0.5}]
    source, receiver = edriver.TorchState(progress=one), edriver.TorchState(progress=other)
    log = other.log_history
    receiver._load(source._capture())
    assert (other.values, other.log_history) == ({"global_step": 3}, [{"loss": 0.5}])
    assert other.log_history is log
    assert other.log_history[0] is not one.log_history[0]
