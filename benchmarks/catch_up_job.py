"""What the ranks of catch_up.py do: some hold a state and train, the last one joins them; again for each case.

A step waits or computes for some time, has a gradient that follows from the parameters, is sealed by an all-reduce of
one byte, and ends with Adam's step. All ranks are in one process group from the start: no figure has the change of
rounds in it, which any way of joining takes.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import queue
import statistics
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any, Final
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import FileStore, Store, TCPStore

from benchmarks.catch_up_ways import MOMENTS, PARAMETERS, PARTS, PLAIN, QUEUE_STEPS, STATE_BYTES, Join, Way
from edriver.model.plan import SINGLE_WORKER, Assignment
from edriver.worker.copies.side_stream import SideStream
from edriver.worker.copies.snapshot import SnapshotBuffers, TakeOver
from edriver.worker.sync import relay
from edriver.worker.sync.receiving import ReceivingMemory
from edriver.worker.sync.sync import send_along
from tests.linked_hosts import INTERFACE, LinkedHost

SOURCE: Final = 0
TENSOR: Final = 2**20
"""Parameters of a tensor."""

STEPS_BEFORE, STEPS_AFTER = 5, 3
TIMEOUT: Final = timedelta(minutes=5)
MATRIX: Final = 384
LINK_PARAMETERS: Final = 25_000_000
SLACK: Final = 2**20
"""Bytes of a stream that are not elements of its tensors, at most."""

GO_ON, JOIN, GIVE_UP = range(3)
"""What the source tells the others with a step's seal: the larger one counts."""

GRADIENTS, NO_MORE, TOO_SLOW = range(3)
"""What the source tells the newcomer: the gradients of a step follow; they were the last; the newcomer never catches
up, and gets the state at a boundary.
"""


@dataclass(frozen=True, slots=True)
class Step:
    """What a step is like.

    Attributes:
        seconds: how long a rank waits, or computes.
        computes: whether it computes.
        reduces: whether gradients are reduced over the same links.
    """

    seconds: float
    computes: bool = False
    reduces: bool = False


@dataclass(frozen=True, slots=True)
class Trial:
    """What is measured in one process group.

    Attributes:
        parameters: that each rank holds.
        holders: ranks that train before one joins.
        steps: which kinds of steps,
        ways: and which ways of joining are tried, each with each.
        hosts: where the ranks are; empty: on this one.
        touched: whether the newcomer's memory for what arrives has been written to before, as a newcomer does before
            its first round.
    """

    parameters: int
    holders: int
    steps: tuple[Step, ...]
    ways: tuple[Way, ...]
    hosts: tuple[LinkedHost, ...] = ()
    touched: bool = True


def rank_main(rank: int, trial: Trial, folder: str) -> None:
    """Be one rank; the source writes what it found to the folder's `result`, one JSON object a line."""
    if trial.hosts:
        trial.hosts[rank].enter()
    os.environ["GLOO_SOCKET_IFNAME"] = INTERFACE if trial.hosts else "lo"
    torch.set_num_threads(1)
    size = trial.holders + 1
    store = _store(
        rank, trial.hosts[SOURCE].address if trial.hosts else "127.0.0.1", FileStore(f"{folder}/store", size)
    )
    dist.init_process_group("gloo", store=store, rank=rank, world_size=size, timeout=TIMEOUT)
    # Training has connections of its own: what is sent beside it must not come between its messages.
    groups = {n: dist.new_group(list(range(n)), timeout=TIMEOUT) for n in (trial.holders, size)}
    if trial.touched and rank == trial.holders:
        _touch_memory(STATE_BYTES * trial.parameters + SLACK)
    worker = _Worker(rank, trial, groups)
    link = _link_speed(rank, size - 1, trial.parameters)
    worker.join(PLAIN, Step(0.0))  # the first one loads code, and opens connections
    with (Path(folder) / "result").open("a") as results:
        for step in trial.steps:
            for way in trial.ways:
                found = worker.join(way, step)
                if rank == SOURCE:
                    print(json.dumps({**found, "link": link}), file=results, flush=True)
    dist.barrier()
    dist.destroy_process_group()


def _store(rank: int, address: str, meeting: Store) -> Store:
    """A store that wakes who waits for a key, as that of a round does; torch's FileStore looks every 10 ms."""
    if rank == SOURCE:
        store = TCPStore(address, 0, is_master=True, wait_for_workers=False, timeout=TIMEOUT)
        meeting.set("port", str(store.port))
        return store
    return TCPStore(address, int(meeting.get("port")), timeout=TIMEOUT)


def _touch_memory(length: int) -> None:
    """Have syncs use memory that has been written to. What has arrived is copied before more arrives."""
    memory = relay.staging(length).zero_()
    patch.object(ReceivingMemory, "take", lambda _self, length: memory[:length]).start()


class _Worker:
    """A rank's model, and how it trains.

    Args:
        rank: its rank.
        trial: what is measured.
        groups: those of training, by their size.
    """

    def __init__(self, rank: int, trial: Trial, groups: dict[int, Any]) -> None:
        self._rank, self._trial, self._groups = rank, trial, groups
        self._newcomer = trial.holders
        self._joins = rank == self._newcomer
        self._flat = torch.zeros(trial.parameters)
        torch.manual_seed(self._joins)
        gradients = [self._flat[first : first + TENSOR] for first in range(0, trial.parameters, TENSOR)]
        self._parameters = [torch.nn.Parameter(torch.randn(len(gradient))) for gradient in gradients]
        for parameter, gradient in zip(self._parameters, gradients, strict=True):
            parameter.grad = gradient
        self._optimizer = torch.optim.Adam(self._parameters, fused=True)
        self._made = 0
        self._matrix = torch.randn(MATRIX, MATRIX)
        self._products = 1 / _seconds(lambda: self._compute(50)) * 50
        self._buffers = SnapshotBuffers(SideStream())
        self._slots = [torch.zeros_like(self._flat) for _ in range(QUEUE_STEPS if rank == SOURCE else 0)]
        self.load_seconds = 0.0
        # All memory is touched, as by a newcomer that takes its warm-up steps, and a holder that has committed.
        self._set_gradients()
        self._optimizer.step()
        if rank == SOURCE:
            self._copy()

    def _copy(self) -> Any:
        return self._buffers.copied({"state": self._tree(PARTS)}, lambda *_: True)["state"]

    def _tree(self, parts: Iterable[str]) -> dict[str, Any]:
        trees = {
            PARAMETERS: {at: parameter.detach() for at, parameter in enumerate(self._parameters)},
            MOMENTS: {at: dict(self._optimizer.state[parameter]) for at, parameter in enumerate(self._parameters)},
        }
        return {part: trees[part] for part in parts}

    def _load(self, made: int, tree: dict[str, Any]) -> None:
        self._made = made
        TakeOver().value(tree, self._tree(tree))

    # ---- training

    def _compute(self, products: int) -> None:
        for _ in range(products):
            torch.mm(self._matrix, self._matrix)

    def _work(self, step: Step) -> None:
        if step.computes:
            self._compute(round(step.seconds * self._products))
        else:
            time.sleep(step.seconds)

    def _set_gradients(self) -> None:
        """As if the loss were a multiple of the parameters' squares, another one at each step."""
        factor = 1.5 + math.sin(self._made)
        with torch.no_grad():
            for parameter in self._parameters:
                assert parameter.grad is not None
                torch.mul(parameter, factor, out=parameter.grad)

    def _step(
        self,
        step: Step,
        members: int,
        sends: Callable[[], int] = lambda: GO_ON,
        waits: Callable[[], object] = lambda: None,
        idle: bool = False,
    ) -> int:
        """Make a step with so many members; returns what the source has told them.

        Args:
            step: what it is like.
            members: ranks that make it.
            sends: called with the gradients in place, before the seal.
            waits: called once this rank has computed: what the step needs beside has arrived, or been sent.
            idle: this rank has no gradients of its own.
        """
        if not idle:
            self._work(step)
        waits()
        if idle and step.reduces:
            self._flat.zero_()
        else:
            self._set_gradients()
        if step.reduces:
            dist.all_reduce(self._flat, group=self._groups[members])
            self._flat /= members
        told = torch.tensor([sends()], dtype=torch.uint8)
        dist.all_reduce(told, dist.ReduceOp.MAX, group=self._groups[members])
        self._optimizer.step()
        self._made += 1
        return int(told)

    # ---- joining

    def join(self, way: Way, step: Step) -> dict[str, Any]:
        """Have the last rank join the others; returns what was measured, on the source.

        Raises:
            AssertionError: the newcomer's state differs from the others' afterwards.
        """
        if self._joins:
            for parameter in self._parameters:  # it knows nothing of the others' state
                parameter.detach().add_(1.0)
        load = os.getloadavg()[0]
        dist.barrier()
        found = self._follow(way, step) if self._joins else self._lead(way, step)
        digests = self._digests()
        assert len(digests) == 1, f"after {way.name} states differ: {digests}"
        return {**asdict(step), "way": way.name, **found, "load": load}

    def _lead(self, way: Way, step: Step) -> dict[str, Any]:
        """As a rank that holds the state."""
        ends: list[float] = []

        def make(members: int, **options: Any) -> int:
            told = self._step(step, members, **options)
            ends.append(time.perf_counter())
            return told

        for _ in range(STEPS_BEFORE):
            make(self._trial.holders)
        began, told = len(ends), JOIN
        copy, sent = 0.0, 0
        stream: _Stream | None = None
        if way.replays:
            sends: Callable[[], int] = lambda: GO_ON  # noqa: E731  the source alone knows
            if self._rank == SOURCE:
                stream = _Stream(self._newcomer, self._slots)
                copy = _seconds(lambda: stream.begin(self._sender(self._copy())))
                sends = lambda: stream.send(self._flat)  # noqa: E731
            told = GO_ON
            while told == GO_ON:
                told = make(self._trial.holders, sends=sends)
            if stream is not None:
                stream.no_more()
        joined = len(ends)
        at_boundary = PARTS if told == GIVE_UP else way.at_boundary
        if at_boundary and self._rank == SOURCE:
            self._sender(self._tree(at_boundary))()
        with ThreadPoolExecutor(1) as threads:
            waits: Callable[[], object] = lambda: None  # noqa: E731
            if way.beside_step and self._rank == SOURCE:
                waits = threads.submit(self._sender(self._tree(way.beside_step))).result
            make(self._newcomer + 1, waits=waits)
        for _ in range(STEPS_AFTER):
            make(self._newcomer + 1)
        if self._rank != SOURCE:
            return {}
        if stream is not None:
            sent = stream.finish()
        replay, load = _told_by(self._newcomer)
        join = Join(tuple(ends), began, joined)
        return {
            "measured_step": join.step,
            "pause": join.pause,
            "first_pause": join.first_pause,
            "last_pause": join.last_pause,
            "slowdown": join.slowdown,
            "steps_meanwhile": joined - began,
            "gradients_sent": sent,
            "gave_up": told == GIVE_UP,
            "copy_s": copy,
            "replay_s": replay,
            "load_s": load,
        }

    def _follow(self, way: Way, step: Step) -> dict[str, Any]:
        """As the newcomer."""
        replays, told, members = [0.0], NO_MORE, self._newcomer + 1
        self.load_seconds = 0.0
        if way.replays:
            self._receive()
            link = _Downlink(SOURCE)
            while (told := link.next()) == GRADIENTS:
                link.receive(self._flat)
                replays.append(_seconds(self._optimizer.step))
                self._made += 1
        if way.at_boundary or told == TOO_SLOW:
            self._receive()
        with ThreadPoolExecutor(1) as threads:
            waits: Callable[[], object] = threads.submit(self._receive).result if way.beside_step else lambda: None
            self._step(step, members, waits=waits, idle=not way.counts and told != TOO_SLOW)
        for _ in range(STEPS_AFTER):
            self._step(step, members)
        _tell(SOURCE, statistics.median(replays[1:] or replays), self.load_seconds)
        return {}

    def _sender(self, tree: Any) -> Callable[[], None]:
        """What sends a tree to the newcomer as it is when that is called, for the number of steps made by now."""
        assignment, chain, made = self._assignment(), (SOURCE, self._newcomer), self._made

        def send() -> None:
            send_along(chain, (made, tree), assignment)

        return send

    def _receive(self) -> None:
        arrived = send_along((SOURCE, self._newcomer), (), self._assignment())
        assert arrived is not None, "it is in the chain"
        seconds = _seconds(lambda: self._load(*arrived))
        if len(arrived[1]) == len(PARTS):
            self.load_seconds = seconds

    def _assignment(self) -> Assignment:
        return replace(SINGLE_WORKER, rank=self._rank, size=self._newcomer + 1)

    def _digests(self) -> set[bytes]:
        """The digests of all ranks' parameters and moments."""
        own = hashlib.sha256()
        for tensors in self._tree(PARTS).values():
            for part in tensors.values():
                for tensor in part.values() if isinstance(part, dict) else (part,):
                    own.update(tensor.numpy())
        found = [torch.empty(own.digest_size, dtype=torch.uint8) for _ in range(self._newcomer + 1)]
        dist.all_gather(found, torch.frombuffer(bytearray(own.digest()), dtype=torch.uint8))
        return {bytes(digest.tolist()) for digest in found}


class _Stream:
    """What follows a snapshot to the newcomer, on a thread of its own.

    Args:
        rank: the newcomer's.
        slots: memory for the gradients of a step each: as many may wait for the link.
    """

    def __init__(self, rank: int, slots: list[torch.Tensor]) -> None:
        self._rank = rank
        self._free: queue.SimpleQueue[torch.Tensor] = queue.SimpleQueue()
        self._filled: queue.SimpleQueue[torch.Tensor | None] = queue.SimpleQueue()
        for slot in slots:
            self._free.put(slot)
        self._offered, self._sent, self._too_slow, self._snapshot_sent = 0, 0, False, False
        self._threads = ThreadPoolExecutor(1)

    def begin(self, send_snapshot: Callable[[], None]) -> None:
        """Begin to send."""
        self._sending = self._threads.submit(self._send, send_snapshot)

    def _send(self, send_snapshot: Callable[[], None]) -> None:
        send_snapshot()
        self._snapshot_sent = True
        downstream = relay.Downstream(self._rank, relay.window_of(relay.PIECE_BYTES))
        while True:
            slot = self._filled.get()
            if self._too_slow or slot is None:
                _tell(self._rank, TOO_SLOW if self._too_slow else NO_MORE)
                return
            _tell(self._rank, GRADIENTS)
            for piece in relay.pieces_of(slot.view(torch.uint8), relay.PIECE_BYTES):
                downstream.pass_on(piece)
            downstream.finish()
            self._sent += 1
            self._free.put(slot)

    def send(self, gradients: torch.Tensor) -> int:
        """Have the newcomer get the gradients of a step; returns what the others are to know before they make it."""
        if self._too_slow:
            return GIVE_UP if self._sending.done() else GO_ON
        one_behind = self._snapshot_sent and self._sent == self._offered
        if self._free.empty():
            self._too_slow = True
            self._filled.put(None)
            return GO_ON
        slot = self._free.get()
        slot.copy_(gradients)
        self._offered += 1
        self._filled.put(slot)
        return JOIN if one_behind else GO_ON

    def no_more(self) -> None:
        """The newcomer takes part in the next step."""
        if not self._too_slow:
            self._filled.put(None)

    def finish(self) -> int:
        """Return the number of steps whose gradients were sent, once they have arrived."""
        self._sending.result()
        self._threads.shutdown()
        return self._sent


class _Downlink:
    """The newcomer's end of a stream."""

    def __init__(self, rank: int) -> None:
        self._rank = rank
        self._upstream = relay.Upstream(rank, relay.window_of(relay.PIECE_BYTES))

    def next(self) -> int:
        """What comes next."""
        return int(_told_by(self._rank, 1)[0])

    def receive(self, gradients: torch.Tensor) -> None:
        """Receive the gradients of a step."""
        pieces = relay.pieces_of(gradients.view(torch.uint8), relay.PIECE_BYTES)
        self._upstream.receive(pieces, relay.Downstream(None, relay.window_of(relay.PIECE_BYTES)))


def _tell(rank: int, *values: float) -> None:
    dist.send(torch.tensor(values, dtype=torch.float64), rank)


def _told_by(rank: int, count: int = 2) -> list[float]:
    values = torch.empty(count, dtype=torch.float64)
    dist.recv(values, rank)
    found: list[float] = values.tolist()
    return found


def _link_speed(rank: int, newcomer: int, parameters: int) -> float:
    """Bytes a second of a bare send from the source to the newcomer: the median of three, after one."""
    message = torch.ones(min(parameters, LINK_PARAMETERS))

    def send() -> None:
        if rank == SOURCE:
            dist.send(message, newcomer)
        elif rank == newcomer:
            dist.recv(message, SOURCE)
        dist.barrier()

    dist.barrier()
    return message.nbytes / statistics.median([_seconds(send) for _ in range(4)][1:])


def _seconds(action: Callable[[], object]) -> float:
    began = time.perf_counter()
    action()
    return time.perf_counter() - began
