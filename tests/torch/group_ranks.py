"""Worker processes for the tests of RoundGroup: each obeys commands, and severs on command from another thread."""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import itertools
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from multiprocessing import connection
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import (
    DebugLevel,
    FileStore,
    PrefixStore,
    Store,
    set_debug_level,
)
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

from edriver.agent.workers.worker_environment import GLOO_DEFAULTS
from edriver.model.ids import RoundId
from edriver.model.plan import SINGLE_WORKER, Assignment
from edriver.model.store_address import StoreAddress
from edriver.worker.backend.gloo import groups as gloo_groups
from edriver.worker.backend.gloo.cutting import Cut
from edriver.worker.backend.peer_loss import looks_like_peer_loss
from edriver.worker.errors import PeerLostError
from edriver.worker.group import proven_pairs
from edriver.worker.group import round_group as group
from edriver.worker.group.proven_pairs import PairsOfRound
from edriver.worker.group.round_group import RoundGroup
from edriver.worker.group.store import StoreClient
from edriver.worker.group.store_transport import StoreTransport
from tests.linked_hosts import INTERFACE, LinkedHost
from tests.torch import tcp_filters
from tests.torch.foreign_connections import AsyncioTcp, ForeignConnection, GlooGroup, GrpcTcp, PlainTcp
from tests.torch.forks import FORKS

LIMIT_SECONDS = 300.0
"""How long anything may take before the test is given up: also the groups' own timeout, so nothing is freed
by it."""

SEVER_EVERY = 0.05

SECRET = bytes(range(32))
"""Of every round."""


@dataclasses.dataclass(frozen=True)
class Outcome:
    """How a command ended.

    Attributes:
        value: what it returned.
        error: the exception's type and text, "" for none; then those of its causes, a line each.
        raised_peer_lost: it was a PeerLostError.
        looks_lost: looks_like_peer_loss said yes.
    """

    value: Any
    error: str = ""
    raised_peer_lost: bool = False
    looks_lost: bool = False


@dataclasses.dataclass(frozen=True)
class Resources:
    """What a process holds: open descriptors, threads, and bytes of memory."""

    descriptors: int
    threads: int
    resident: int


def assignment(round_number: int, rank: int, store: tuple[str, int], size: int) -> Assignment:
    return dataclasses.replace(
        SINGLE_WORKER,
        round_id=RoundId(1, round_number),
        rank=rank,
        size=size,
        local_rank=rank,
        local_size=size,
        store=StoreAddress(*store),
        secret=SECRET,
    )


class Member:
    """A worker process, as the test sees it."""

    def __init__(self, host: LinkedHost | None = None, tls_credentials: Path | None = None) -> None:
        self._commands, commands = FORKS.Pipe()
        self._notices, notices = FORKS.Pipe()
        self._process = FORKS.Process(target=_serve, args=(commands, notices, host, tls_credentials))
        self._process.start()
        commands.close()
        notices.close()
        self.pid = self._process.pid or 0
        self.store: tuple[str, int] = self._receive(self._commands)

    def begin(self, command: str, *args: Any) -> None:
        """Have the worker enter a command; returns when it is about to."""
        self._commands.send((command, args))
        self.wait_for("entering")

    def wait_for(self, step: str) -> None:
        """Wait until the worker takes a step that `announce` named."""
        assert self._receive(self._commands) == step

    def go_on(self) -> None:
        """End a pause that the test asked for."""
        self._commands.send("go on")

    def end(self) -> Outcome:
        outcome: Outcome = self._receive(self._commands)
        return outcome

    def call(self, command: str, *args: Any) -> Any:
        """Have the worker carry out a command that succeeds."""
        self.begin(command, *args)
        outcome = self.end()
        assert not outcome.error, outcome.error
        return outcome.value

    def sever_once(self, round_number: int) -> Cut:
        self._notices.send(round_number)
        cut: Cut = self._receive(self._notices)
        return cut

    def sever(self, round_number: int) -> Outcome:
        """Sever again and again, as the worker's notification thread does, until the command has ended."""
        deadline = time.monotonic() + LIMIT_SECONDS / 2
        self.sever_once(round_number)
        while not self._commands.poll(SEVER_EVERY):
            assert time.monotonic() < deadline, "still hanging after it was severed"
            self.sever_once(round_number)
        return self.end()

    def signal(self, number: signal.Signals) -> None:
        os.kill(self.pid, number)

    def kill(self) -> None:
        self._process.kill()
        self._process.join()

    @property
    def answer(self) -> Connection:
        """Where the outcome of a command arrives."""
        return self._commands

    def _receive(self, pipe: Connection) -> Any:
        assert pipe.poll(LIMIT_SECONDS), "no answer from the worker"
        return pipe.recv()


@contextlib.contextmanager
def members(
    count: int, hosts: Sequence[LinkedHost] = (), tls_credentials: Path | None = None
) -> Iterator[list[Member]]:
    """Start workers, on these hosts or on this one; all are killed in the end.

    Args:
        count: how many.
        hosts: where; none: all here.
        tls_credentials: what their stores show one another over TLS; None: without.
    """
    started: list[Member] = []
    try:
        for _, host in itertools.zip_longest(range(count), hosts):
            started.append(
                Member(host, tls_credentials)
            )  # in the list at once: those started must be killed if one cannot be
        yield started
    finally:
        for member in started:
            member.kill()


def first_to_end(group: Sequence[Member]) -> Member:
    """Wait for the member whose command ends first."""
    ended = connection.wait([member.answer for member in group], LIMIT_SECONDS)
    assert ended, "no member has ended its command"
    return next(member for member in group if member.answer in ended)


def build(group: Sequence[Member], round_number: int) -> None:
    """Have all of them build one round's group, ranks in their order."""
    for rank, member in enumerate(group):
        member.begin("build", assignment(round_number, rank, group[0].store, len(group)))
    for member in group:
        outcome = member.end()
        assert not outcome.error, outcome.error


def _serve(commands: Connection, notices: Connection, host: LinkedHost | None, tls_credentials: Path | None) -> None:
    torch.set_num_threads(1)
    if host is not None:
        host.enter()
    os.environ.update(GLOO_DEFAULTS)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo" if host is None else INTERFACE
    worker = _Worker(commands, "127.0.0.1" if host is None else host.address, StoreTransport(tls_credentials))
    threading.Thread(target=_heed, args=(worker.group, notices), daemon=True).start()
    commands.send(worker.group.store)
    while True:
        command, args = commands.recv()
        commands.send("entering")
        commands.send(_outcome(worker, command, args))


def _outcome(worker: _Worker, command: str, args: tuple[Any, ...]) -> Outcome:
    try:
        return Outcome(getattr(worker, command)(*args))
    except Exception as error:  # noqa: BLE001  the test judges it
        return Outcome(None, _text(error), isinstance(error, PeerLostError), looks_like_peer_loss(error))


def _text(error: BaseException | None) -> str:
    return "" if error is None else f"{type(error).__name__}: {error}\n{_text(error.__cause__)}"


def _heed(group: RoundGroup, notices: Connection) -> None:
    while True:
        notices.send(group.sever(RoundId(1, notices.recv())))


class _Worker:
    """The commands of a worker. A command that hangs does so in its main thread."""

    def __init__(self, commands: Connection, address: str, wire: StoreTransport) -> None:
        self._commands = commands
        self.group = RoundGroup(address, wire=wire)
        self._subgroup: dist.ProcessGroup | None = None
        self._broadcasts: list[dist.Work] = []
        self._loader: Any = None
        self._foreign_connections: list[ForeignConnection] = []

    def build(self, where: Assignment) -> None:
        self.group.build(where, timeout=LIMIT_SECONDS)

    def time_build(self, where: Assignment, proven: bool) -> float:
        """Build a round's group, with the proofs of membership or without; returns the seconds that took."""
        exchange = PairsOfRound._exchange
        if not proven:
            setattr(PairsOfRound, "_exchange", lambda *_: None)  # noqa: B010
        began = time.monotonic()
        try:
            self.build(where)
        finally:
            setattr(PairsOfRound, "_exchange", exchange)  # noqa: B010
        return time.monotonic() - began

    def processor_time(self) -> float:
        """The seconds of processor time that this process has used."""
        return time.process_time()

    def build_alone(self) -> None:
        self.group.build_alone()

    def teardown(self) -> None:
        self._subgroup = None
        self.group.teardown()

    def init_by_hand(self, path: str) -> None:
        dist.init_process_group("gloo", store=FileStore(path, 1), rank=0, world_size=1)

    def all_reduce(self) -> float:
        total = torch.ones(1000)
        dist.all_reduce(total)
        return float(total[0])

    def start_broadcast(self) -> None:
        """Take part in one from rank 0, and do not wait for its end."""
        work = dist.broadcast(torch.ones(1000), 0, async_op=True)
        assert work is not None
        self._broadcasts.append(work)

    def end_broadcasts(self) -> None:
        for work in self._broadcasts:
            work.wait()

    def new_group(self) -> None:
        self._subgroup = dist.new_group()

    def all_reduce_in_subgroup(self) -> None:
        dist.all_reduce(torch.ones(1000), group=self._subgroup)

    def train_step(self) -> float:
        torch.manual_seed(0)
        model = DistributedDataParallel(torch.nn.Linear(4, 2))
        model(torch.full((1, 4), float(dist.get_rank()))).sum().backward()
        gradient = model.module.weight.grad
        return float(gradient[0, 0])

    def open_loader(self) -> list[int]:
        """Fork two data-loader processes, which inherit every descriptor; returns their pids."""
        data = TensorDataset(torch.arange(64.0))
        self._loader = iter(DataLoader(data, num_workers=2, multiprocessing_context="fork"))
        next(self._loader)
        return [process.pid for process in self._loader._workers]

    def count_resources(self) -> Resources:
        """What this process holds, once what is garbage has been collected."""
        gc.collect()
        return Resources(
            descriptors=len(list(Path("/proc/self/fd").iterdir())),
            threads=len(list(Path("/proc/self/task").iterdir())),
            resident=int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE"),
        )

    def has_pythons_excepthook(self) -> bool:
        return sys.excepthook is sys.__excepthook__

    def spare_the_store(self) -> None:
        """From now on severing leaves the connection to the store alone, so that Gloo's must do."""
        setattr(StoreClient, "sever", lambda _: None)  # noqa: B010

    def announce(self, step: str) -> None:
        """Tell the test when this function of the group module, or method of a class there, is called next."""
        owner: Any = group
        *outer, name = step.split(".")
        for part in outer:
            owner = getattr(owner, part)
        function = getattr(owner, name)

        def announcing(*args: Any) -> Any:
            setattr(owner, name, function)
            self._commands.send(step)
            return function(*args)

        setattr(owner, name, announcing)

    def take_filters_away(self) -> None:
        """Have no filters on TCP sockets, as an ordinary user of some kernels."""
        tcp_filters.take_away()

    def pause_before_the_mesh(self) -> None:
        """Have the next build wait, once it knows where all others listen, until the test lets it go on."""
        look_up = StoreClient.multi_get

        def pausing(store: StoreClient, keys: list[str]) -> list[bytes]:
            values = look_up(store, keys)
            setattr(StoreClient, "multi_get", look_up)  # noqa: B010
            self._commands.send("the mesh")
            self._commands.recv()
            return values

        setattr(StoreClient, "multi_get", pausing)  # noqa: B010

    def bound_proofs(self, seconds: float) -> None:
        """Have the members of a group prove their membership within so many seconds."""
        setattr(proven_pairs, "PROOF_TIMEOUT", seconds)  # noqa: B010

    def proven_groups(self) -> list[str]:
        """The names of the groups that have been proven in this round."""
        assert self.group._round is not None
        return sorted(self.group._round.pairs.proven)

    def forget_the_secret(self) -> None:
        """Have the groups that are made from now on prove something else."""
        assert self.group._round is not None
        pairs = self.group._round.pairs
        pairs.assignment = dataclasses.replace(pairs.assignment, secret=bytes(32))

    def bypass_the_proof(self) -> None:
        """Have torch make groups in another way than the one that is wrapped."""
        setattr(gloo_groups, "when_made", lambda *_: None)  # noqa: B010

    def several_groups(self) -> float:
        """Make a group of each rank alone and one of all but rank 0; returns the sum of ranks in this rank's."""
        alone, others = [dist.new_group([rank]) for rank in range(3)], dist.new_group([1, 2])
        rank = dist.get_rank()
        dist.barrier(alone[rank])
        total = torch.tensor([float(rank or 1)])
        if rank:
            dist.all_reduce(total, group=others)
        return float(total)

    def debug_in_detail(self) -> None:
        """Have torch check each collective by a group of its own."""
        set_debug_level(DebugLevel.DETAIL)

    def split_group(self) -> None:
        """Have a group made in C++."""
        group = dist.group.WORLD
        assert group is not None
        group.split_group([0, 1])

    def build_halting(self, where: Assignment) -> None:
        """Publish this rank's address as a member does, then never connect to anyone."""
        halting = _HaltingStore(_client(where))  # torch keeps the C++ half only
        store = PrefixStore(f"round/{where.round_id}", halting)
        dist.init_process_group("gloo", store=store, rank=where.rank, world_size=where.size)

    def wait_until_published(self, where: Assignment) -> None:
        _client(where).get("published")

    def open_foreign_connections(self, path: str, rank: int, size: int) -> None:
        """Open connections that have nothing to do with the round, one of each kind."""
        self._foreign_connections = [PlainTcp(), AsyncioTcp(), GrpcTcp(), GlooGroup(path, rank, size)]
        self.use_foreign_connections()  # gRPC connects at the first use

    def use_foreign_connections(self) -> list[str]:
        for each in self._foreign_connections:
            each.use()
        return [type(each).__name__ for each in self._foreign_connections]


def _client(where: Assignment) -> StoreClient:
    client = StoreClient(*where.store, LIMIT_SECONDS, StoreTransport())
    client.connect()
    return client


class _HaltingStore(Store):
    """Publishes this rank's address; requests for another rank's address are never answered."""

    def __init__(self, inner: Store) -> None:
        super().__init__()
        self._inner = inner

    def set(self, key: str, value: Any) -> None:
        self._inner.set(key, value)
        self._inner.set("published", "yes")

    def wait(self, *_: Any) -> None:
        self._halt()

    def get(self, *_: Any) -> bytes:
        return self._halt()

    def _halt(self) -> bytes:
        threading.Event().wait()
        raise AssertionError
