"""The churn workload with torch alone, as the bare floor's processes run it: see bare_parent.py.

When the parent gives it another place, a thread severs the group, so that the training thread's collective raises; that
one then destroys the group, connects to the new rank 0's store (a TCPStore that each process keeps listening from the
start), makes the group and DistributedDataParallel, and trains on. The number of steps is a buffer of the model, which
DistributedDataParallel brings to all with the parameters; the optimizer's state may differ, which costs no time.
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import socket
import threading
import time
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torch._C._distributed_c10d import PrefixStore, TCPStore
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DistributedSampler

from benchmarks.records import Recorder
from benchmarks.workload import Numbered, make_loader, make_model, options, stop_requested, train_step
from edriver.worker.backend.gloo.cutting import Cutter
from edriver.worker.backend.gloo.sever import gloo_devices

SEVER_SECONDS = 0.01
"""How soon it severs again, while the training thread has not left: it may just have opened connections."""


@dataclass(frozen=True, slots=True)
class Place:
    """A place in a round, from the parent: the round's number, rank, size, and the port of rank 0's store."""

    round: int
    rank: int
    size: int
    store: int


class Places:
    """The places that the parent has sent, in order.

    Args:
        talk: the socket to the parent.
    """

    def __init__(self, talk: socket.socket) -> None:
        self._talk = talk
        self._places: queue.SimpleQueue[Place] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._taken = 0
        self._cutter = Cutter(groups_stay_whole=False)
        threading.Thread(target=self._read, daemon=True).start()

    def next(self) -> Place:
        """The next place, as soon as there is one. Until it is taken, what there is of a group is severed."""
        place = self._places.get()
        with self._lock:
            self._taken = place.round
        return place

    def _read(self) -> None:
        for line in self._talk.makefile("r"):
            place = Place(**json.loads(line))
            self._places.put(place)
            while self._sever_before(place.round):
                time.sleep(SEVER_SECONDS)

    def _sever_before(self, number: int) -> bool:
        with self._lock:
            if self._taken >= number:
                return False
            self._cutter.cut(gloo_devices().values())
            return True


class Counting(nn.Module):
    """A model that also counts its steps, in a buffer.

    Args:
        model: the model.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.step: torch.Tensor
        self.register_buffer("step", torch.zeros(1, dtype=torch.int64))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """What the model says."""
        found: torch.Tensor = self.model(inputs)
        return found


def train(
    flags: argparse.Namespace, recorder: Recorder, model: Counting, optimizer: torch.optim.Optimizer, place: Place
) -> None:
    """Train in one place until the file named stop exists, and record every step."""
    wrapped = DistributedDataParallel(model, forward_sync_buffers=False)
    data = Numbered(flags.samples)
    sampler: DistributedSampler[int] = DistributedSampler(data, place.size, place.rank, seed=7)
    loader = make_loader(data, sampler, flags.batch_size)
    step = int(model.step)
    recorder.round_start(place.round, place.rank, place.size, "localhost", step, "")
    epoch = 0
    while True:
        for samples, inputs, labels in loader:
            recorder.batch(epoch, step + 1, tuple(samples.tolist()))
            train_step(wrapped, optimizer, inputs, labels, flags.step_seconds)
            step += 1
            model.step.fill_(step)
            recorder.done(step, "")
        epoch += 1
        if stop_requested(flags.folder):
            return


def main() -> None:
    """The whole script."""
    flags = options()
    recorder = Recorder(flags.folder / "records")
    model = Counting(make_model(flags.hidden))
    optimizer = torch.optim.Adam(model.parameters())  # the first of a process imports torch._dynamo
    talk = socket.socket(fileno=int(os.environ["BARE_SOCKET"]))
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    recorder.boot()
    places = Places(talk)
    talk.sendall(f"{store.port}\n".encode())
    while True:
        place = places.next()
        if dist.is_initialized():
            dist.destroy_process_group()
        served = store if place.rank == 0 else TCPStore("127.0.0.1", place.store, is_master=False)
        shared = PrefixStore(f"round/{place.round}", served)
        dist.init_process_group(
            "gloo", store=shared, rank=place.rank, world_size=place.size, timeout=timedelta(seconds=60)
        )
        recorder.grouped(place.round, place.rank)
        try:
            train(flags, recorder, model, optimizer, place)
        except RuntimeError:
            if dist.get_world_size() == 1:
                raise
            continue  # a peer is gone: the parent will say where to go on
        break
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
