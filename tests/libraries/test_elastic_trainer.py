"""ElasticTrainer through kills in every place, a shrink and a grow: what workers have written down, and returned."""

from __future__ import annotations

import functools
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.libraries.same_steps import TrainedByTrainer, trainer_by_hand
from tests.libraries.worlds import script
from tests.torch.elastic_world import Death, Script, undisturbed, world
from tests.torch.global_batch_training import MICRO_BATCH, SIZE, STEPS, Trained, samples_of

pytestmark = [pytest.mark.libraries, pytest.mark.timeout(900)]

SAMPLES = 64
BATCH = 4


class Log:
    """What the processes of a run have written down.

    Attributes:
        steps: the steps that each process has made, in their order,
        epochs: how often each sample was trained on, by epoch,
        rates: the learning rate after each step,
        sizes: and how many workers made it.
    """

    def __init__(self, folder: Path) -> None:
        self.steps: list[list[int]] = []
        self.epochs: dict[int, Counter[int]] = {}
        self.rates: dict[int, float] = {}
        self.sizes: dict[int, int] = {}
        for file in folder.glob("*.log"):
            lines = [line.split() for line in file.read_text().splitlines()]
            self.steps.append([int(line[0]) for line in lines])
            for step, size, epoch, rate, *taken in lines:
                begun = int(float(epoch) - 1e-6)
                self.epochs.setdefault(begun, Counter()).update(map(int, taken))
                self.rates[int(step)] = float(rate)
                self.sizes[int(step)] = int(size)

    def each_once(self, whole_epochs: int, samples: int = SAMPLES) -> bool:
        """Whether each epoch has trained on each sample once."""
        return all(self.epochs[epoch] == Counter(range(samples)) for epoch in range(whole_epochs))


def of_two(folder: Path, death: Death, gate_at: int = -1, **arguments: Any) -> tuple[dict[str, Any], Log]:
    """Two workers, the second of which dies and is replaced; returns what both return, and what all have written."""
    with world(script("trainer", folder=folder, **arguments), gate_at) as one:
        one.form(one.start(None, death))
        one.form([*one.await_death(), *one.start(None)])
        first, second = one.finish()
        assert first == second, "all ranks end with the same bits, and have logged the same"
        return first, Log(folder)


EVALUATING = {
    "max_steps": 12,
    "eval_strategy": "steps",
    "eval_steps": 4,
    "save_strategy": "steps",
    "save_steps": 4,
    "load_best_model_at_end": True,
    "metric_for_best_model": "loss",
}


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What two workers return that nothing happens to."""
    with world(script("trainer", folder=tmp_path_factory.mktemp("expected"), options=EVALUATING)) as one:
        one.form(one.start(None, None))
        result, _ = one.finish()
        assert isinstance(result, dict)
        return result


@pytest.mark.parametrize(
    "death",
    [
        Death(0, "forward"),
        Death(5, "forward"),
        Death(5, "optimizer"),
        Death(8, "step_end"),  # the last step of the first epoch
        Death(8, "epoch_end"),
        Death(8, "forward"),  # the first of the second
        Death(4, "evaluate"),
        Death(4, "log"),
        Death(4, "save"),
        Death(12, "step_end"),  # the last step of all
        Death(12, "evaluate"),
        Death(12, "train_end"),
    ],
    ids=lambda death: f"{death.place}-{death.step}",
)
def test_a_kill_loses_no_step_and_no_log(death: Death, expected: dict[str, Any], tmp_path: Path) -> None:
    result, log = of_two(tmp_path, death, options=EVALUATING)
    assert result["steps"] == (12, 12, 12)
    assert list(range(1, 13)) in log.steps, "a survivor makes each step once"
    assert max(log.epochs[0].values()) == 1
    # The others can make the step without the worker that dies in it: then nothing is missing but what it had to write.
    assert log.each_once(whole_epochs=1) or (death.place == "optimizer" and len(log.epochs[0]) == SAMPLES - BATCH)
    for same in ("parameters", "history", "callbacks", "epoch"):
        assert result[same] == expected[same]
    assert result["callbacks"].count("Witness") == 1
    assert result["best"][0] == expected["best"][0]
    assert result["losses"][-1] < result["losses"][0]


def test_a_newcomer_goes_on_where_rank_0_has_ended_and_the_patience_with_it(tmp_path: Path) -> None:
    options = EVALUATING | {"max_steps": 30, "eval_steps": 2, "save_steps": 2, "disable_tqdm": False}
    with world(script("trainer", folder=tmp_path, options=options, patience=4)) as one:
        oldest, _ = workers = one.start(Death(7, "forward"), Death(3, "forward"))
        one.form(workers)
        one.form([*one.await_death(), *one.start(None)])
        one.form([*one.await_death(), *one.start(None)])  # the first newcomer is rank 0
        assert oldest not in one._members
        first, second = one.finish()
    assert first == second
    assert first["steps"] == (10, 10, 30), "the first evaluation, at 2, is the best; four more are not better by enough"
    assert first["patience"] == 4
    assert first["history"].count((8, *first["history"][1][1:])) == 1


@pytest.mark.parametrize("accumulation", [1, 2])
def test_epochs_count_data_and_the_schedule_ends_with_them(accumulation: int, tmp_path: Path) -> None:
    options = {"num_train_epochs": 2, "gradient_accumulation_steps": accumulation, "per_device_train_batch_size": 2}
    with world(script("trainer", folder=tmp_path, options=options), gate_at=3) as one:
        one.form(one.start(None, None))
        survivor, leaving = one.interrupt()
        one.leave([leaving])
        while one._hear() is not leaving:
            pass
        one.form([survivor])
        (result,) = one.finish()
    log = Log(tmp_path)
    assert log.each_once(whole_epochs=2)
    assert log.sizes[1] == 2
    assert log.sizes[max(log.sizes)] == 1
    assert result["epoch"] == 2
    assert result["steps"][0] == result["steps"][2] == max(log.rates)
    assert log.rates[max(log.rates)] == pytest.approx(0.0, abs=1e-9)
    assert all(log.rates[step] > 0 for step in range(1, max(log.rates)))


def test_steps_are_those_of_the_whole_run_when_workers_come(tmp_path: Path) -> None:
    with world(script("trainer", folder=tmp_path, options={"max_steps": 20}), gate_at=5) as one:
        one.form(one.start(None))
        one.form([*one.interrupt(), *one.start(None)])
        first, second = one.finish()
    assert first == second
    log = Log(tmp_path)
    assert first["steps"] == (20, 20, 20)
    assert list(range(1, 21)) in log.steps
    assert log.each_once(whole_epochs=1)
    assert log.rates == {step: pytest.approx(0.02 * (20 - step) / 20) for step in range(1, 21)}


def test_a_checkpoint_leads_to_the_same_sample_with_another_number_of_workers(tmp_path: Path) -> None:
    saving = {"max_steps": 5, "save_strategy": "steps", "save_steps": 5}
    with world(script("trainer", folder=tmp_path, options=saving)) as one:
        one.form(one.start(None, None))
        one.finish()
    checkpoint = str(tmp_path / "checkpoints" / "checkpoint-5")
    result = undisturbed(script("trainer", folder=tmp_path, options={"max_steps": 11}, resume=checkpoint))
    assert result["steps"] == (11, 11, 11)
    log = Log(tmp_path)
    assert log.each_once(whole_epochs=1), "5 steps of 2 x 4 samples, then 6 of 4"
    assert sorted(map(len, log.steps)) == [5, 5, 6]


@pytest.mark.parametrize("name", ["trainer_refusals", "trainer_overridden"])
def test_what_it_refuses(name: str, tmp_path: Path) -> None:
    assert undisturbed(script(name, folder=tmp_path)) is None


def steps_of(folder: Path | None = None, **arguments: Any) -> Script:
    """A run with global_batch=True."""
    return script("trainer", "global_batches", folder=folder or Path(tempfile.gettempdir()), **arguments)


@functools.cache
def quiet(size: int, **arguments: Any) -> tuple[TrainedByTrainer, ...]:
    with world(steps_of(**arguments)) as one:
        one.form(one.start(*[None] * size))
        return tuple(one.finish())


def assert_same(found: TrainedByTrainer, expected: TrainedByTrainer) -> None:
    """What all workers know; in the log losses are of 32 bits."""
    assert found.parameters == pytest.approx(expected.parameters, rel=1e-9, abs=1e-11)
    assert found.steps == expected.steps
    assert len(found.logs) == len(expected.logs)
    for entry, other in zip(found.logs, expected.logs, strict=True):
        assert entry == pytest.approx(other, rel=1e-6)


SGD_BY_HAND = {"optim": "sgd", "max_grad_norm": 0.0, "logging_steps": 1}


def test_a_step_is_that_of_all_its_tokens() -> None:
    """Also of those of a micro-batch in which none counts."""
    parameters, losses = trainer_by_hand()
    for size in (1, 2, 3):
        for found in quiet(size, **SGD_BY_HAND):
            assert found.parameters == pytest.approx(parameters, rel=1e-9, abs=1e-11)
            assert [loss for _, _, loss, *_ in found.logs[:-1]] == pytest.approx(losses, rel=1e-6)


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("counts", [True, False])
def test_a_step_has_the_same_samples_whatever_the_number_of_workers(counts: bool, size: int) -> None:
    (alone,) = quiet(1, counts=counts)
    found = quiet(size, counts=counts)
    for one in found:
        assert_same(one, alone)
        assert one.rates == alone.rates
        assert one.operations == alone.operations
    everyone = [Trained([], one.computed, {}) for one in found]
    for step in range(STEPS):
        assert samples_of(step, everyone) == samples_of(step, [Trained([], alone.computed, {})])


def test_losses_and_resizes_change_neither_steps_nor_rates_nor_logs() -> None:
    epochs: dict[str, Any] = {"max_steps": -1, "num_train_epochs": 1.5}
    (alone,) = quiet(1, **epochs)
    assert alone.steps == (8, 8), "5 steps an epoch"
    with world(steps_of(**epochs), gate_at=6) as one:
        one.form(one.start(None, Death(3, "micro-batch 1"), Death(1, "micro-batch 2")))
        one.form(one.await_death())
        one.form([*one.await_death(), *one.start(None)])
        one.form([*one.interrupt(), *one.start(None)])
        found = one.finish()
    for trained in found:
        assert_same(trained, alone)
    assert found[0].rates == alone.rates


def test_what_others_have_computed_of_a_step_is_not_computed_again() -> None:
    with world(steps_of(lost_at=(2, 1))) as one:
        one.form(one.start(None, None, Death(2, "micro-batch 2")))
        one.form(one.await_death())
        found = one.finish()
    (alone,) = quiet(1)
    for trained in found:
        assert_same(trained, alone)
    computed = [numbers for trained in found for step, numbers in trained.computed if step == 2]
    assert len(computed) == SIZE // MICRO_BATCH
    assert len({number for numbers in computed for number in numbers}) == SIZE


def test_a_checkpoint_of_such_a_run_leads_to_the_same_steps(tmp_path: Path) -> None:
    saving = {"save_strategy": "steps", "save_steps": 3}
    with world(steps_of(tmp_path, **saving)) as one:
        one.form(one.start(None, None))
        first, _ = one.finish()
    resumed = undisturbed(steps_of(tmp_path, resume=str(tmp_path / "checkpoint-3")))
    assert {step for step, _ in resumed.computed} == set(range(3, STEPS))
    assert resumed.parameters == pytest.approx(first.parameters, rel=1e-9, abs=1e-11)
    assert resumed.logs[:-1] == [pytest.approx(entry, rel=1e-6) for entry in first.logs[:-1]]
