"""What a fit does when it is left at any of its boundaries, and entered again: in one process, without a driver."""

from __future__ import annotations

import contextlib
import functools
import gc
import re
import sys
import traceback
import weakref
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import torch
from torch.utils.data import DataLoader, TensorDataset

import edriver.keras as hvd
from edriver.horovod import basics
from edriver.keras.elastic.fit import Fit
from edriver.keras.optimizer import apply_of
from edriver.worker.errors import HostsUpdatedInterrupt, PeerLostError

EPOCHS, BATCHES, BATCH = 3, 3, 4
SAMPLES = BATCHES * BATCH
X = torch.randn(SAMPLES, 6, generator=torch.Generator().manual_seed(1))
Y = X.sum(1, keepdim=True)


class Boundaries:
    """A run that ends a round at a boundary, once. At other numbers than those that there are, it never does."""

    def __init__(self, last: int, error: type[Exception]) -> None:
        self.passed = 0
        self._last, self._error = last, error

    def boundary(self, committed: bool) -> None:
        del committed
        self.passed += 1
        if self.passed == self._last:
            raise self._error

    def check(self) -> None:
        pass


class Seen(keras.callbacks.Callback):
    """What a fit did."""

    def __init__(self) -> None:
        super().__init__()
        self.epochs: list[int] = []
        self.losses: list[float] = []
        self.batches: list[int] = []

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if Fit.of(self).left != 0:
            self.batches.append(batch)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.epochs.append(epoch)
        self.losses.append(logs["loss"])


def made(with_sampler: bool = True, **compiled: Any) -> tuple[Any, Any]:
    """A model in its state, and the data to fit it to."""
    keras.utils.set_random_seed(3)
    model = keras.Sequential(
        [
            keras.Input((6,)),
            keras.layers.Dense(8, activation="relu"),
            keras.layers.BatchNormalization(),
            keras.layers.Dropout(0.25, seed=5),
            keras.layers.Dense(1),
        ]
    )
    model.compile(optimizer=hvd.DistributedOptimizer(keras.optimizers.Adam(0.01)), loss="mse", **compiled)
    more = {}
    data: dict[str, Any] = {"x": X.numpy(), "y": Y.numpy(), "batch_size": BATCH, "shuffle": False}
    if with_sampler:
        more["sampler"] = sampler = hvd.elastic.ElasticSampler(TensorDataset(X, Y), seed=2)
        data = {"x": DataLoader(sampler.dataset, batch_size=BATCH, sampler=sampler), "shuffle": False}
    return hvd.elastic.KerasState(model, batch=0, epoch=0, **more), data


def callbacks(state: Any, data: dict[str, Any], *more: Any) -> list[Any]:
    """The elastic ones, the commit first, as in Horovod's examples."""
    record = [hvd.elastic.RecordBatchCallback(data["x"])] if isinstance(data["x"], DataLoader) else []
    return [
        hvd.elastic.CommitStateCallback(state, batches_per_commit=1000),
        hvd.elastic.UpdateBatchStateCallback(state),
        hvd.elastic.UpdateEpochStateCallback(state),
        *record,
        *more,
    ]


def fit(state: Any, data: dict[str, Any], *more: Any) -> None:
    state.model.fit(
        **data, epochs=EPOCHS, initial_epoch=state.epoch, callbacks=callbacks(state, data, *more), verbose=0
    )


def in_rounds(state: Any, data: dict[str, Any], rounds: Boundaries, *more: Any) -> int:
    """Fit as edriver.run does, round by round; returns how many there were."""
    state.sync()
    state.bind(rounds)
    for count in range(1, 4):
        try:
            fit(state, data, *more)
        except (HostsUpdatedInterrupt, PeerLostError) as error:
            interrupted = isinstance(error, HostsUpdatedInterrupt)
        else:
            return count
        if not interrupted:
            if state.clean:
                state.return_to_boundary()
            else:
                state.restore()
        state.clear_gradients()
        state.reset()
        state.sync()
    raise AssertionError("it never ends")


def values(state: Any) -> list[Any]:
    return [np.array(v) for v in [*state.model.variables, *state.optimizer.variables]]


def assert_equal(one: list[Any], other: list[Any]) -> None:
    assert len(one) == len(other)
    assert all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))


def check_a_fit_that_is_left_at_any_boundary_ends_as_one_that_is_not() -> None:
    state, data = made()
    seen = Seen()
    rounds = Boundaries(0, PeerLostError)
    assert in_rounds(state, data, rounds, seen) == 1
    assert seen.epochs == [0, 1, 2]
    assert len(seen.batches) == EPOCHS * BATCHES
    assert rounds.passed == EPOCHS * BATCHES + EPOCHS  # each epoch's end is one
    expected = values(state)
    for error in (PeerLostError, HostsUpdatedInterrupt):
        for last in range(1, rounds.passed + 1):
            left, data = made()
            again = Seen()
            assert in_rounds(left, data, Boundaries(last, error), again) == 2
            assert_equal(values(left), expected)
            assert again.epochs == [0, 1, 2], (error, last)
            assert np.allclose(again.losses, seen.losses), (error, last)
            assert left.sampler.samples_done().done == SAMPLES


def check_a_fit_to_arrays_resumes_with_as_many_batches_as_are_left() -> None:
    for last in range(1, EPOCHS * BATCHES + EPOCHS + 1):
        state, data = made(with_sampler=False)
        seen = Seen()
        assert in_rounds(state, data, Boundaries(last, HostsUpdatedInterrupt), seen) == 2
        assert int(state.optimizer.iterations) == EPOCHS * BATCHES, last
        assert seen.epochs == [0, 1, 2], last
        assert state.epoch == EPOCHS
        assert state.batch == 0


def check_steps_per_epoch_are_reduced_too() -> None:
    state, data = made(with_sampler=False)

    def endless() -> Any:
        while True:
            yield X.numpy(), Y.numpy()

    for last in (2, 5, 6):
        state, _ = made(with_sampler=False)
        seen = Seen()
        data = {"x": endless(), "steps_per_epoch": 5}
        in_rounds(state, data, Boundaries(last, HostsUpdatedInterrupt), seen)
        assert int(state.optimizer.iterations) == EPOCHS * 5, last
        assert seen.epochs == [0, 1, 2], last


def check_epochs_may_be_counted_from_0_in_each_round() -> None:
    state, data = made()
    state.sync()
    state.bind(Boundaries(6, HostsUpdatedInterrupt))
    for _ in range(2):
        try:
            state.model.fit(**data, epochs=EPOCHS - state.epoch, callbacks=callbacks(state, data), verbose=0)
        except HostsUpdatedInterrupt:
            assert (state.epoch, state.batch) == (1, 2)
            state.reset()
    assert (state.epoch, state.sampler.epoch, int(state.optimizer.iterations)) == (3, 2, EPOCHS * BATCHES)


def check_a_peer_lost_before_the_step_leaves_the_state_clean() -> None:
    state, data = made()
    apply = apply_of(state.optimizer)
    begin = apply.before_step
    steps = 0

    def lost_in_the_fifth() -> None:
        nonlocal steps
        steps += 1
        if steps == 5:
            state.optimizer.learning_rate = 7.0  # as a callback of this batch may have done
            raise PeerLostError("a member is gone")
        begin()

    apply.before_step = lost_in_the_fifth
    state.sync()
    state.bind(Boundaries(0, PeerLostError))
    try:
        fit(state, data)
    except PeerLostError:
        assert state.clean, state.why_torn
        state.return_to_boundary()
    assert (state.epoch, state.batch) == (1, 1)
    assert round(float(state.optimizer.learning_rate), 6) == 0.01
    state.reset()
    fit(state, data)
    undisturbed, data = made()
    in_rounds(undisturbed, data, Boundaries(0, PeerLostError))
    assert_equal(values(state), values(undisturbed))


def check_a_peer_lost_after_the_step_leaves_it_torn() -> None:
    class Lost(keras.callbacks.Callback):
        steps = 0

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            self.steps += 1
            if self.steps == 5:
                raise PeerLostError("a member is gone")

    state, data = made()
    state.sync()
    state.bind(Boundaries(0, PeerLostError))
    try:
        state.model.fit(**data, epochs=EPOCHS, callbacks=[Lost(), *callbacks(state, data)], verbose=0)
    except PeerLostError:
        assert not state.clean
        assert "between an optimizer's step and the boundary" in state.why_torn
        state.restore()
    assert (state.epoch, state.batch) == (1, 0), "the last commit was made when the epoch began"
    state.reset()
    fit(state, data)
    undisturbed, data = made()
    in_rounds(undisturbed, data, Boundaries(0, PeerLostError))
    assert_equal(values(state), values(undisturbed))


def check_an_exception_passes_fit_as_it_is_and_nothing_of_the_round_stays() -> None:
    class Raises(keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            self.error = PeerLostError("a member is gone")
            raise self.error

    state, data = made()
    raising = Raises()
    gone = weakref.ref(raising)
    same = False
    try:
        fit(state, data, raising)
    except PeerLostError as passed:
        same = passed is raising.error
    assert same
    del raising
    state.model.fit(**data, epochs=0, verbose=0)  # model.history is the last fit's
    gc.collect()
    assert gone() is None


def check_callbacks_go_on_where_they_were() -> None:
    def histories(last: int) -> tuple[Any, ...]:
        state, data = made()
        stopping = keras.callbacks.EarlyStopping(monitor="loss", mode="max", patience=2, restore_best_weights=True)
        plateau = keras.callbacks.ReduceLROnPlateau(monitor="loss", mode="max", patience=1, factor=0.5)
        history = keras.callbacks.History()
        full = hvd.elastic.KerasState(
            state.model, sampler=state.sampler, batch=0, epoch=0, stopping=stopping, plateau=plateau, history=history
        )
        in_rounds(full, data, Boundaries(last, PeerLostError), plateau, stopping, history)
        rates = [round(float(rate), 6) for rate in history.history["learning_rate"]]
        return stopping.best, stopping.wait, plateau.wait, rates, np.round(history.history["loss"], 6).tolist()

    expected = histories(0)
    assert expected[1] == 2
    assert expected[3] == [0.01, 0.01, 0.005]
    for last in range(1, EPOCHS * BATCHES + EPOCHS + 1):
        assert histories(last) == expected, last


def check_training_that_was_stopped_early_stays_stopped() -> None:
    class Stop(keras.callbacks.Callback):
        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            self.model.stop_training = epoch == 1

    for order in (0, -1):
        state, data = made()
        state.sync()
        state.bind(Boundaries(2 * BATCHES + 2, HostsUpdatedInterrupt))  # the boundary at the fit's end
        for _ in range(2):
            given = callbacks(state, data)
            given.insert(order if order == 0 else len(given), Stop())
            try:
                state.model.fit(**data, epochs=9, initial_epoch=state.epoch, callbacks=given, verbose=0)
            except HostsUpdatedInterrupt:
                state.reset()
        assert int(state.optimizer.iterations) == 2 * BATCHES
        assert state.epoch == 9


def check_a_newcomer_receives_what_it_has_not_built() -> None:
    """The metrics are built by the first batch. Its epoch may have none left."""
    state, data = made(metrics=["mae"])
    seen = Seen()
    state.sync()
    state.bind(Boundaries(BATCHES, HostsUpdatedInterrupt))
    with contextlib.suppress(HostsUpdatedInterrupt):
        fit(state, data, seen)
    newcomer, its_data = made(metrics=["mae"])
    newcomer._load(state._capture())
    newcomer.reset()
    fit(newcomer, its_data, also := Seen())
    state.bind(None)
    state.reset()
    fit(state, data, seen)
    assert_equal(values(newcomer), values(state))
    assert also.epochs == [0, 1, 2]
    assert also.losses == seen.losses


def check_loss_scaling_sees_averages() -> None:
    keras.config.set_dtype_policy("mixed_float16")
    try:
        state, data = made()
    finally:
        keras.config.set_dtype_policy("float32")
    assert isinstance(state.optimizer, keras.optimizers.LossScaleOptimizer)
    fit(state, data)
    assert apply_of(state.optimizer).average is not None
    assert apply_of(state.optimizer.inner_optimizer).average is None
    assert state.epoch == EPOCHS


def check_a_compiled_step_is_kept_like_any() -> None:
    compiler = torch.compile
    torch.compile = functools.partial(compiler, backend="aot_eager")  # which takes seconds, not minutes
    try:
        state, data = made(jit_compile=True)
        assert state.model.jit_compile
        in_rounds(state, data, Boundaries(5, PeerLostError))
        undisturbed, data = made(jit_compile=True)
        in_rounds(undisturbed, data, Boundaries(0, PeerLostError))
    finally:
        torch.compile = compiler
    assert_equal(values(state), values(undisturbed))


def check_a_saved_model_is_an_ordinary_one() -> None:
    state, data = made()
    fit(state, data)
    state.model.save("model.keras")
    loaded = keras.saving.load_model("model.keras")
    assert type(loaded.optimizer) is type(state.optimizer)
    assert_equal([np.array(v) for v in loaded.weights], [np.array(v) for v in state.model.weights])


def check_mistakes_are_named() -> None:
    refused(ValueError, "is not built", lambda: hvd.elastic.KerasState(keras.Sequential([keras.layers.Dense(1)])))
    refused(TypeError, "takes a keras.Model", lambda: hvd.elastic.KerasState(torch.nn.Linear(1, 1)))
    refused(TypeError, "takes a keras.optimizers.Optimizer", lambda: hvd.DistributedOptimizer("adam"))
    refused(TypeError, "once", lambda: hvd.DistributedOptimizer(hvd.DistributedOptimizer(keras.optimizers.SGD())))
    refused(
        NotImplementedError,
        "gradient_accumulation_steps=2",
        lambda: hvd.DistributedOptimizer(keras.optimizers.SGD(), backward_passes_per_step=2),
    )
    state, data = made()
    refused(TypeError, "sampler=edriver.ElasticSampler", lambda: hvd.elastic.RecordBatchCallback(X))
    bare = hvd.elastic.KerasState(state.model)
    refused(ValueError, "epoch=0", lambda: hvd.elastic.UpdateEpochStateCallback(bare))
    one = hvd.elastic.CommitStateCallback(state)
    refused(RuntimeError, r"callbacks=\[...\]", lambda: state.model.fit(**data, callbacks=one, verbose=0))
    state.model.compile(optimizer="adam", loss="mse")
    refused(RuntimeError, "another optimizer", lambda: fit(state, data))


def check_the_learning_rate_warms_up() -> None:
    state, data = made()
    rates: list[float] = []

    class Rates(keras.callbacks.Callback):
        def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
            rates.append(float(self.model.optimizer.learning_rate))

    warmup = hvd.callbacks.LearningRateWarmupCallback(0.4, warmup_epochs=2)
    size = basics.size
    basics.size = lambda: 4
    state.optimizer.apply.average = None  # there are no four members
    try:
        in_rounds(state, data, Boundaries(5, HostsUpdatedInterrupt), warmup, Rates())
    finally:
        basics.size = size
    expected = [0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.4, 0.4, 0.4]
    assert np.allclose(rates, expected), rates


def refused(kind: type[Exception], text: str, call: Callable[[], object]) -> None:
    said = ""
    try:
        call()
    except kind as error:
        said = str(error)
    assert re.search(text, said), (text, said)


hvd.init()
names = sys.argv[1:] or [name for name in list(globals()) if name.startswith("check_")]
for name in names:
    try:
        globals()[name]()
    except Exception:  # noqa: BLE001  the others are looked at as well
        traceback.print_exc(file=sys.stdout)
        print(f"{name}: failed", flush=True)
    else:
        print(f"{name}: ok", flush=True)
