"""Real workers through kills, a shrink and a grow: processes with a Gloo group, and a test as agent and driver.

Every rank has the same data, and sizes are powers of two, so the mean of all gradients is each rank's own, bit for bit:
a script that nothing is lost of ends with the same bits whatever its world went through.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import os
import queue
import shutil
import signal
import socket
import tempfile
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import grpc
import torch

from edriver.common.release import PROTOCOL
from edriver.driver.core.continuation import continue_from
from edriver.driver.core.shardings import has_cut, newest_cut
from edriver.model.ids import NO_VERSION, RoundId, Version
from edriver.model.records import OfferKind
from edriver.model.shards import HeldShards
from edriver.system.life_lock import LifeLock
from edriver.v1 import cause_pb2, notification_pb2_grpc, rounds_pb2
from edriver.v1 import notification_pb2 as pb
from edriver.wire.assignments import bits_of
from edriver.wire.conversion import held_shards_of, round_id_message, sharding_message, version_message, version_of
from tests.torch.forks import FORKS

BOUND = 240.0
"""Seconds that anything may take before a test is given up."""

PING_INTERVAL = 3.0
"""Seconds between two signs of life of what plays the agent."""


@dataclasses.dataclass(frozen=True)
class Death:
    """When a worker kills itself: at a place of a step that its script names."""

    step: int
    place: str


class Fate:
    """What a worker's script meets on its way.

    Args:
        death: when it dies; None: it does not.
        gate_at: the step at which it waits for the test to change the world's size,
        opened: and what it waits for; it is set for good.
    """

    def __init__(self, death: Death | None, gate_at: int, opened: Any) -> None:
        self._death = death
        self._gate_at = gate_at
        self._opened = opened

    def meets(self, step: int, place: str) -> None:
        """The script is at this place of a step."""
        if self.is_to_meet(step, place):
            os.kill(os.getpid(), signal.SIGKILL)

    def is_to_meet(self, step: int, place: str) -> bool:
        """Whether the worker kills itself there."""
        return self._death == Death(step, place)

    def before(self, step: int) -> None:
        """The script is about to begin a step."""
        if step == self._gate_at:
            assert self._opened.wait(BOUND)


Script = Callable[[Fate], Any]
"""A training script; what it returns must be the same on all ranks."""


class _Worker:
    """A worker process, and the agent's end of its stream."""

    def __init__(
        self,
        worker_id: int,
        script: Script,
        fate: Fate,
        inbox: queue.Queue[tuple[int, pb.Report | None]],
        environ: Mapping[str, str],
    ):
        self.worker_id = worker_id
        self.folder = Path(tempfile.mkdtemp(prefix="ew"))  # short: paths of unix sockets are limited
        LifeLock.create(self.folder / "w.life")
        ready = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        ready.bind(str(self.folder / "ready.sock"))
        ready.settimeout(BOUND)
        self.pipe, there = FORKS.Pipe()
        self.process = FORKS.Process(target=_work, args=(there, script, fate, self.folder, worker_id, environ))
        self.process.start()
        there.close()
        self._notices: queue.Queue[pb.AttachRequest | None] = queue.Queue()
        self._inbox = inbox
        self._thread = threading.Thread(target=self._listen, args=(ready,), daemon=True)
        self._thread.start()

    def say(self, **kind: Any) -> None:
        self._notices.put(pb.AttachRequest(notice=pb.Notice(**kind)))

    def _listen(self, ready: socket.socket) -> None:
        with ready:
            ready.recv(64)
        self.say(attached=pb.Attached(run_id="run", worker_id=self.worker_id, protocol=PROTOCOL))
        with grpc.insecure_channel(f"unix:{self.folder / 'w.sock'}") as channel, contextlib.suppress(grpc.RpcError):
            stub = notification_pb2_grpc.NotificationServiceStub(channel)
            for response in stub.Attach(self._requests()):
                if not response.report.HasField("pong"):
                    self._inbox.put((self.worker_id, response.report))
        self._inbox.put((self.worker_id, None))

    def _requests(self) -> Iterator[pb.AttachRequest]:
        """As an agent's: a worker that hears nothing for long ends itself."""
        for number in itertools.count(1):
            try:
                while (notice := self._notices.get(timeout=PING_INTERVAL)) is not None:
                    yield notice
                return
            except queue.Empty:
                yield pb.AttachRequest(notice=pb.Notice(ping=pb.Ping(number=number)))

    def result(self) -> Any:
        assert self.pipe.poll(BOUND), "a worker neither ends nor answers"
        error, value = self.pipe.recv()
        assert not error, error
        return value

    def error(self) -> str:
        """Of one whose stream has ended; empty: it was to leave. It may have failed before it could report that."""
        assert self.pipe.poll(BOUND), "a worker does not end"
        try:
            error, _ = self.pipe.recv()
        except EOFError:
            return ""
        return str(error)

    def end(self) -> None:
        self._notices.put(None)
        self.process.kill()
        self.process.join()
        self.pipe.close()
        shutil.rmtree(self.folder)


class World:
    """Workers of one script.

    Args:
        script: of a module below tests/, at its top level.
        gate_at: the step before which all wait until the size has been changed; -1: none.
        replica_size: of which the world has whole ones only.
        one_replica: whether all workers of a round are one replica, whatever their number.

    Attributes:
        from_versions: for each round, the version that it went on from,
        lost: how many steps the worker that had most had lost,
        sealed: and how many members made that version's step with the gradients that they had kept.
    """

    def __init__(self, script: Script, gate_at: int = -1, replica_size: int = 1, one_replica: bool = False) -> None:
        self._script = script
        self._one_replica = one_replica
        self._replica_size = replica_size
        self._gate_at = gate_at
        self._opened = FORKS.Event()
        self._inbox: queue.Queue[tuple[int, pb.Report | None]] = queue.Queue()
        self._started: list[_Worker] = []
        self._waiting: dict[int, pb.WorkerWaiting] = {}
        self._round = 0
        self._members: list[_Worker] = []
        self.from_versions: list[Version] = []
        self.lost: list[int] = []
        self.sealed: list[int] = []

    def start(self, *deaths: Death | None, positions: Sequence[int] = ()) -> list[_Worker]:
        """Start a worker for each of these deaths.

        Args:
            deaths: what each dies of.
            positions: that each has before its first round, where others train meanwhile; empty: none.
        """
        begun = len(self._started)
        for number, death in enumerate(deaths):
            fate, environ = Fate(death, self._gate_at, self._opened), dict[str, str]()
            if positions:
                environ = {
                    "EDRIVER_POSITION": str(positions[number]),
                    "EDRIVER_REPLICA_SIZE": str(len(self._members) if self._one_replica else self._replica_size),
                }
            self._started.append(_Worker(len(self._started) + 1, self._script, fate, self._inbox, environ))
        return self._started[begun:]

    def form(self, workers: list[_Worker], guests: Mapping[int, _Worker] | None = None) -> None:
        """Have these train in a round, once all are waiting; the oldest that holds the highest version is rank 0.

        Where replicas have several workers, ranks are in the order in which the workers are given.

        Args:
            workers: those that train.
            guests: those that only send what they hold, by position: a round before that one hands state over.
        """
        present = {worker: at % self._replica_size for at, worker in enumerate(workers)}
        present |= {worker: position for position, worker in (guests or {}).items()}
        while not {worker.worker_id for worker in present} <= self._waiting.keys():
            self._hear()
        offers = {worker: self._waiting.pop(worker.worker_id) for worker in present}
        if self._one_replica:
            self._form_one(offers)
            return
        size = self._replica_size
        workers, trainees = list(present), workers
        shards = [_offer(position, offers[worker]) for worker, position in present.items()]
        best = continue_from(shards, size).version
        assert best is not None, shards
        self.from_versions.append(best)
        self.sealed.append(sum(shard.version != best == shard.sealed for shard in shards))
        self.lost.append(max(offer.steps_lost for offer in offers.values()))
        reach = {w for w, shard in zip(workers, shards, strict=True) if best in (shard.version, shard.sealed)}
        members = workers if size > 1 else sorted(workers, key=lambda w: (w not in reach, w.worker_id))
        firsts = [next(w for w in members if present[w] == at and w in reach) for at in range(size)]
        behind = [w for w in trainees if w not in firsts and (best == NO_VERSION or w not in reach)]
        digests = {offers[w].digest for w in members if w not in behind and version_of(offers[w].version) == best}
        assert len(digests) == 1, digests
        norms = {
            offer.gradient_norm
            for offer in offers.values()
            if offer.HasField("gradient_norm") and version_of(offer.version) == best
        }
        assert len(norms) <= 1, norms
        norm = next(iter(norms), None)
        store = offers[members[0]].store
        self._assign(members, store, best, behind, firsts, replica_size=size, gradient_norm=norm)
        if guests:
            self.form(trainees)

    def _form_one(self, offers: dict[_Worker, pb.WorkerWaiting]) -> None:
        members = list(offers)
        survivors = {worker: _shards_offer(offer) for worker, offer in offers.items()}
        best, sharding, lost = newest_cut(survivors.values())
        assert not lost, survivors
        self.from_versions.append(best)
        self.sealed.append(sum(offer.version != best == offer.sealed for offer in survivors.values()))
        self.lost.append(max(offer.steps_lost for offer in offers.values()))
        able = [worker for worker in members if has_cut(survivors[worker], best, sharding)]
        assert len({offers[w].digest for w in able if survivors[w].version == best}) <= 1
        behind = [worker for worker in members if worker not in (able or members[:1])]
        first = (able or members)[0]
        self._assign(members, offers[members[0]].store, best, behind, [first], sharding=sharding_message(sharding))

    def _assign(
        self,
        members: list[_Worker],
        store: rounds_pb2.StoreAddress,
        version: Version,
        receivers: list[_Worker],
        sources: list[_Worker],
        **further: Any,
    ) -> None:
        self._round += 1
        self._members = members
        shared = rounds_pb2.RoundAssignment(
            round_id=self._round_id,
            size=len(members),
            store=store,
            source=members.index(sources[0]),
            sources=map(members.index, sources),
            version=version_message(version),
            receivers=bits_of(members.index(w) for w in receivers),
            secret=bytes(range(32)),
            **further,
        )
        for rank, worker in enumerate(members):
            seat = rounds_pb2.Seat(
                worker_id=worker.worker_id,
                rank=rank,
                local_rank=rank,
                local_size=len(members),
                cross_rank=0,
                cross_size=1,
            )
            worker.say(assignment=pb.Assignment(round=shared, seat=seat))

    def await_death(self, deaths: int = 1) -> list[_Worker]:
        """Wait until so many members have died, and end their round; returns the survivors."""
        dead: list[_Worker] = []
        while len(dead) < deaths:
            if (one := self._hear()) is not None:
                dead.append(one)
        survivors = [worker for worker in self._members if worker not in dead]
        cause = cause_pb2.Cause(
            kind=cause_pb2.CAUSE_KIND_ENDED, rank=self._members.index(dead[0]), text="a worker died"
        )
        for worker in survivors:
            worker.say(abort=pb.Abort(round_id=self._round_id, cause=cause))
        return survivors

    def interrupt(self) -> list[_Worker]:
        """Have all members stop at the same boundary, and let them pass the gate; returns them."""
        passed: dict[int, int] = {}
        for worker in self._members:
            worker.say(hosts_updated=pb.HostsUpdated(round_id=self._round_id, number=1))
        while len(passed) < len(self._members):
            worker_id, report = self._next()
            if report.HasField("boundary_reached"):
                passed[worker_id] = report.boundary_reached.boundaries
        stop = pb.StopAt(round_id=self._round_id, number=1, boundary=max(passed.values()) + 1)
        for worker in self._members:
            worker.say(stop_at=stop)
        self._opened.set()
        return self._members

    def leave(self, workers: list[_Worker]) -> None:
        """Have these leave, once all members wait."""
        self._dismiss(workers, self._members)

    def let_go(self, guests: list[_Worker]) -> None:
        """Have guests leave, once they wait again."""
        self._dismiss(guests, guests)

    def _dismiss(self, workers: list[_Worker], once_waiting: list[_Worker]) -> None:
        while not {worker.worker_id for worker in once_waiting} <= self._waiting.keys():
            self._hear()
        for worker in workers:
            self._waiting.pop(worker.worker_id)
            worker.say(leave=pb.Leave())

    def finish(self) -> list[Any]:
        """Wait until all members are done, and end the run; returns what their scripts returned, by rank."""
        done: set[int] = set()
        while len(done) < len(self._members):
            worker_id, report = self._next()
            if report.HasField("worker_done"):
                done.add(worker_id)
        for worker in self._members:
            worker.say(finish=pb.Finish(round_id=self._round_id))
        return [worker.result() for worker in self._members]

    def end(self) -> None:
        """Kill what is left."""
        for worker in self._started:
            worker.end()

    @property
    def _round_id(self) -> rounds_pb2.RoundId:
        return round_id_message(RoundId(1, self._round))

    def _next(self) -> tuple[int, pb.Report]:
        worker_id, report = self._inbox.get(timeout=BOUND)
        while report is None and (worker := self._started[worker_id - 1]) not in self._members:
            error = worker.error()
            assert not error, f"worker {worker_id} failed: {error}"
            worker_id, report = self._inbox.get(timeout=BOUND)
        if report is None or report.HasField("worker_failed"):
            text = report.worker_failed.traceback if report else self._started[worker_id - 1].result()
            raise AssertionError(f"worker {worker_id} failed: {text}")
        self._note(worker_id, report)
        return worker_id, report

    def _hear(self) -> _Worker | None:
        """Take in one report; returns the worker if it has died instead."""
        worker_id, report = self._inbox.get(timeout=BOUND)
        worker = self._started[worker_id - 1]
        if report is None:
            return worker if worker in self._members else None
        assert not report.HasField("worker_failed"), report.worker_failed.traceback
        self._note(worker_id, report)
        return None

    def _note(self, worker_id: int, report: pb.Report) -> None:
        """Keep what a worker offers, whatever is being waited for: one that is in no round may say it at any time."""
        if report.HasField("worker_waiting"):
            self._waiting[worker_id] = report.worker_waiting


@contextlib.contextmanager
def world(script: Script, gate_at: int = -1, replica_size: int = 1, one_replica: bool = False) -> Iterator[World]:
    """A world of a script, which is ended in the end."""
    one = World(script, gate_at, replica_size, one_replica)
    try:
        yield one
    finally:
        one.end()


def _offer(position: int, offer: pb.WorkerWaiting) -> OfferKind:
    sealed = version_of(offer.sealed) if offer.HasField("sealed") else None
    return OfferKind(version_of(offer.version), 0, placed=True, sealed=sealed, position=position)


@dataclasses.dataclass(frozen=True)
class _ShardsOffer:
    version: Version
    sealed: Version | None
    shards: tuple[HeldShards, ...]


def _shards_offer(offer: pb.WorkerWaiting) -> _ShardsOffer:
    sealed = version_of(offer.sealed) if offer.HasField("sealed") else None
    return _ShardsOffer(version_of(offer.version), sealed, tuple(map(held_shards_of, offer.shards)))


def undisturbed(script: Script) -> Any:
    """What a script returns in a world of one that nothing happens to."""
    with world(script) as one:
        one.form(one.start(None))
        (result,) = one.finish()
        return result


def _work(
    pipe: Connection, script: Script, fate: Fate, folder: Path, worker_id: int, environ: Mapping[str, str]
) -> None:
    torch.set_num_threads(1)
    os.environ |= {
        **environ,
        "EDRIVER_SOCKET": str(folder / "w.sock"),
        "EDRIVER_READY": str(folder / "ready.sock"),
        "EDRIVER_LIFE": str(folder / "w.life"),
        "EDRIVER_STORE": "127.0.0.1",
        "EDRIVER_RUN_ID": "run",
        "EDRIVER_HOST": "127.0.0.1",
        "EDRIVER_WORKER_ID": str(worker_id),
        "GLOO_SOCKET_IFNAME": "lo",
    }
    try:
        value = script(fate)
    except SystemExit:
        os._exit(0)
    except BaseException:  # noqa: BLE001  the test that waits for it shows it
        pipe.send((f"worker {worker_id}: {traceback.format_exc()}", None))
        os._exit(1)
    pipe.send(("", value))
    os._exit(0)


GATE = 12


def ordeal(one: World, size: int) -> list[str]:
    """Lose a worker in step 4's backward pass and one in step 8's optimizer, halve the world, and double it."""
    one.form(one.start(*[None] * (size - 1), Death(4, "backward")))
    one.form([*one.await_death(), *one.start(Death(8, "optimizer"))])
    one.form([*one.await_death(), *one.start(None)])
    members = one.interrupt()
    one.leave(members[size // 2 :])
    one.form([*members[: size // 2], *one.start(*[None] * (size - size // 2))])
    return one.finish()
