"""Keras's model.fit as an elastic script, in the shape that Horovod's examples have. It says what it does."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import keras
import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

import edriver.keras as hvd
from edriver.keras.elastic.fit import Fit
from edriver.worker import context

EPOCHS = int(os.environ.get("EPOCHS", "3"))
BATCH = 4
SAMPLES = int(os.environ.get("SAMPLES", "96"))
PAUSE = float(os.environ.get("PAUSE", "0"))
OUT = Path(os.environ["OUT"])


def say(text: str) -> None:
    print(text, flush=True)


def die_at(variable: str, epoch: int, batch: int) -> None:
    """Die, once in a run, where the variable says: "RANK EPOCH BATCH"; batch -1 is the epoch's end."""
    if os.environ.get(variable) == f"{hvd.rank()} {epoch} {batch}" and not (OUT / "dead").exists():
        (OUT / "dead").touch()
        os.kill(os.getpid(), signal.SIGKILL)


class Points(Dataset[Any]):
    """Samples that carry their number, so that a worker can say which ones it took."""

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(1)
        self.x = torch.randn(SAMPLES, 8, generator=generator)
        self.y = self.x.sum(1, keepdim=True)

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, at: int) -> Any:
        taken.append(at)
        return self.x[at], self.y[at]


taken: list[int] = []
"""Numbers of the samples of the epoch so far, as they are read."""

hvd.init()
keras.utils.set_random_seed(3)
model = keras.Sequential(
    [
        keras.Input((8,)),
        keras.layers.Dense(16, activation="relu"),
        keras.layers.BatchNormalization(),
        keras.layers.Dropout(0.25, seed=5),
        keras.layers.Dense(1),
    ]
)
optimizer = hvd.DistributedOptimizer(keras.optimizers.Adam(0.01))
model.compile(optimizer=optimizer, loss="mse", metrics=["mae"])
sampler = hvd.elastic.ElasticSampler(Points(), seed=7)
stopping = keras.callbacks.EarlyStopping(monitor="loss", patience=100)
history = keras.callbacks.History()
state = hvd.elastic.KerasState(model, sampler=sampler, stopping=stopping, history=history, batch=0, epoch=0)


class Record(keras.callbacks.Callback):
    """Writes down which samples were trained on, in which round.

    It comes before the commit in the list, where a batch may lead out of the round: one that is made again in a later
    round is written down again.
    """

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self.epoch, self.seen = epoch, 0
        taken.clear()

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        self.number = state.batch

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if Fit.of(self).left == 0:
            return
        round_id = context.assignment().round_id
        samples, self.seen = taken[self.seen :], len(taken)  # the last batch may be a short one
        with (OUT / f"taken-{os.getpid()}").open("a") as file:
            file.write(json.dumps([[round_id.incarnation, round_id.n], self.epoch, self.number, samples]) + "\n")


class Watch(keras.callbacks.Callback):
    """Says which boundaries were passed, and kills this worker where the test asks for it."""

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self.epoch = epoch

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        die_at("KILL", self.epoch, state.batch)
        time.sleep(PAUSE)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if Fit.of(self).left == 0:
            return
        say(f"rank {hvd.rank()} of {hvd.size()} pid {os.getpid()} passed batch {state.batch} of epoch {self.epoch}")

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        say(f"rank {hvd.rank()} ends epoch {epoch}")
        die_at("KILL", epoch, -1)
        if hvd.broadcast_object((OUT / "enough").exists(), 0):  # the test has seen enough
            self.model.stop_training = True


class Torn(keras.callbacks.Callback):
    """A collective between an optimizer's step and the commit, in which a member is lost."""

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        die_at("TORN", state.epoch, state.batch)
        hvd.allreduce(torch.ones(1), name="metric")


@hvd.elastic.run
def train(state: hvd.elastic.KerasState) -> None:
    say(f"rank {hvd.rank()} of {hvd.size()} pid {os.getpid()} at batch {state.batch} of epoch {state.epoch}")
    loader = DataLoader(sampler.dataset, batch_size=BATCH, sampler=sampler)
    callbacks = [
        Record(),
        *([Torn()] if "TORN" in os.environ else []),
        hvd.elastic.CommitStateCallback(state, batches_per_commit=int(os.environ.get("PER_COMMIT", "1000"))),
        hvd.elastic.RecordBatchCallback(loader),
        hvd.elastic.UpdateBatchStateCallback(state),
        hvd.elastic.UpdateEpochStateCallback(state),
        Watch(),
        hvd.callbacks.MetricAverageCallback(),
        stopping,
        history,
    ]
    state.model.fit(loader, epochs=EPOCHS, initial_epoch=state.epoch, callbacks=callbacks, verbose=0)


def digest(variables: list[Any]) -> str:
    return hashlib.sha256(b"".join(np.ascontiguousarray(v.numpy()).tobytes() for v in variables)).hexdigest()[:16]


train(state)
say(
    f"rank {hvd.rank()} of {hvd.size()} is done: epoch {state.epoch}, iteration {int(optimizer.iterations)}, weights "
    f"{digest(model.variables)}, optimizer {digest(optimizer.variables)}, losses {len(history.history['loss'])}, "
    f"best {stopping.best:.9f}"
)
