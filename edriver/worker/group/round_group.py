"""The process group of a round: built when the round begins, severed when a member is lost, torn down before the next.

One RoundGroup lives as long as its worker process. The main thread builds and tears down; the notification thread
severs. A round stays dead once `sever` has named it, whether its group was built, being built or not yet begun.
"""

from __future__ import annotations

import atexit
import logging
import threading
import time
import weakref
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial

import torch
import torch.distributed as dist
from torch.distributed import HashStore  # type: ignore[attr-defined]  # torch/distributed/__init__.py has it
from torch.distributed.distributed_c10d import PrefixStore

from edriver.model.ids import NO_ROUND, RoundId
from edriver.model.plan import Assignment
from edriver.model.store_address import StoreAddress
from edriver.system.descriptors import check_room
from edriver.worker.backend import default_group, torch_groups
from edriver.worker.backend.checks import SEVERING_CHECK
from edriver.worker.backend.gloo import groups as gloo_groups
from edriver.worker.backend.gloo.cutting import Cut, Cutter
from edriver.worker.backend.gloo.guarded_devices import GuardedDevice
from edriver.worker.backend.gloo.listener_filter import close_listeners
from edriver.worker.backend.gloo.sever import (
    GlooDevice,
    gloo_devices,
    probe_peers,
    release_waiting_pairs,
    survive_resets,
)
from edriver.worker.backend.interpreter import never_destroy
from edriver.worker.backend.nccl import Communicator, Nccl, UnknownPartError, abort_together, nccl_here
from edriver.worker.backend.peer_loss import looks_like_peer_loss
from edriver.worker.backend.thread_count import ThreadCount
from edriver.worker.errors import PeerLostError
from edriver.worker.group.connection_guard import ConnectionGuard
from edriver.worker.group.proven_pairs import PairsOfRound
from edriver.worker.group.round_mesh import is_within_replica
from edriver.worker.group.store import StoreClient
from edriver.worker.group.store_server import StoreServer
from edriver.worker.group.store_transport import StoreTransport
from edriver.worker.watch.forked import CreatorProcess, keep_in_children

logger = logging.getLogger("edriver.worker")

DISPOSAL_TIMEOUT = 0.2
"""Seconds that the disposal of the round before the last may still take."""

FINAL_DISPOSAL_TIMEOUT = 2.0
"""The same when the process ends."""


SIGN_OF_LIFE_BOUND = 2
"""Seconds after which a member is taken for lost whose system gives no sign of life, while its replica finishes."""

_CUT_INTERVAL = 0.01
"""Seconds between two attempts to cut what is left of a round's connections once it has been left."""

_DEVICE_DESCRIPTORS = 4
"""Of a Gloo device beside its connections: an epoll set, both ends of a pipe, a listener."""

_SPARE_DESCRIPTORS = 16
"""Descriptors to leave free while a group is built: Gloo aborts the process when none is left."""


@dataclass(slots=True)
class _CurrentGroup:
    """The round whose group exists or is being built.

    Attributes:
        assignment: this worker's place in it.
        store: the connection to rank 0's store. torch holds on to its C++ half only.
        foreign_devices: the Gloo devices (listener inodes) that were there before: a group of the script's own.
        cutter: cuts its connections.
        released: the round's devices (listener inodes) none of whose pairs waits for a connection: the pairs have been
            released, or the device takes no more (listener_filter.py).
        built: the devices of all groups that have been built.
        of_replica: those of the groups within this worker's replica.
        probed: those whose peers' systems are asked for signs of life.
        aborted: the process groups, by name, whose NCCL communicators have been aborted, or are being so
        aborts: by these threads.
        pairs: what proves its connections.
    """

    assignment: Assignment
    store: StoreClient
    foreign_devices: frozenset[int]
    cutter: Cutter
    released: set[int] = field(default_factory=set)
    built: set[int] = field(default_factory=set)
    of_replica: set[int] = field(default_factory=set)
    probed: set[int] = field(default_factory=set)
    aborted: set[str] = field(default_factory=set)
    aborts: list[threading.Thread] = field(default_factory=list)
    pairs: PairsOfRound = field(init=False)


class RoundGroup:
    """Creates torch.distributed's default process group for each round: Gloo, and NCCL where there is a GPU.

    Every worker keeps a store listening from the start, so that it can be rank 0 of any round without another
    message. Keys live under `round/<round id>`: what an older round left behind is not seen.
    """

    def __init__(
        self,
        host: str | None,
        nccl: Nccl | None = None,
        wire: StoreTransport | None = None,
        broken: Collection[str] = (),
    ) -> None:
        """Start this worker's store.

        Args:
            host: this host's name or address as the other members reach it, or the path of a unix socket; the store
                listens there and nowhere else. None for a world of one, which has no store.
            nccl: NCCL; None: this machine's, if it has a GPU.
            wire: what connections to stores are made of; None: without TLS.
            broken: the names of the checks that have failed in this process (backend/checks.py).

        Raises:
            OSError: the host does not resolve, or is not an address of this machine.
        """
        self._wire = wire or StoreTransport()
        self._server = None if host is None else StoreServer(host, self._wire)
        self._nccl = nccl or nccl_here()
        self._backend = "gloo" if self._nccl is None else self._nccl.backend
        self._threads = ThreadCount(host or "")
        self._finds_connections = SEVERING_CHECK not in broken
        self._lock = threading.Lock()
        self._round: _CurrentGroup | None = None
        self._severed = NO_ROUND
        self._disposal: threading.Thread | None = None
        self._torn_down: weakref.WeakSet[object] = weakref.WeakSet()
        self._owner = CreatorProcess()
        keep_in_children(lambda: (self, *torch_groups.living(), *self._torn_down))
        atexit.register(self._finish)

    @property
    def gloo_only(self) -> bool:
        """Whether no collective can wait for a GPU."""
        return self._nccl is None

    @property
    def store(self) -> StoreAddress:
        """Where this worker's store listens."""
        server = self._listening()
        return StoreAddress(server.host, server.port)

    def build(self, assignment: Assignment, timeout: float) -> None:
        """Build the round's group and make it the default one. Main thread only.

        Args:
            assignment: this worker's place.
            timeout: in seconds, for each step of building and, as torch has it, for each collective afterwards.

        Raises:
            PeerLostError: a member is lost, the round has been severed, or the others did not connect in time. Nothing
                is left of the group. UnprovenPeerError: a connection did not prove to lead to a member.
            RuntimeError: a default process group exists already, or this process may not have the descriptors that a
                group of this size needs.
        """
        _refuse_existing_group()
        self._check_room(assignment)
        members = None if self._nccl is None else self._nccl.members_of
        store = StoreClient(*assignment.store, timeout, self._wire, members, _shared_as(assignment))
        cutter = Cutter(groups_stay_whole=assignment.replica_size > 1 and assignment.sharding is None)
        current = _CurrentGroup(assignment, store, frozenset(gloo_devices()), cutter)
        current.pairs = _pairs_of(current, timeout, partial(self._close, current), self._wire)
        try:
            with self._lock:
                self._check(assignment)
                self._round = current
            store.connect()
            prefixed = PrefixStore(f"round/{assignment.round_id}", store)
            gloo_groups.when_made(self._prove, self._guarded_devices)
            torch_groups.init(self._backend, prefixed, assignment.rank, assignment.size, timedelta(seconds=timeout))
            if not current.pairs.proven:
                raise RuntimeError(
                    f"torch {torch.__version__} makes Gloo groups in a way that allows no proof of their connections"
                )
            with self._lock:
                self._check(assignment)  # severed too late to hinder the building, but the connections are dead
        except Exception as error:
            self.teardown()
            store.close()
            if isinstance(error, PeerLostError) or not (self._is_severed(assignment) or looks_like_peer_loss(error)):
                raise
            text = f"a peer was lost while round {assignment.round_id}'s process group was built"
            raise PeerLostError(text) from error
        self._threads.follow(assignment)

    def build_alone(self) -> None:
        """Build the group of a world of one, in which DistributedDataParallel works as anywhere. Main thread only.

        Raises:
            RuntimeError: a default process group exists already.
        """
        _refuse_existing_group()
        torch_groups.init(self._backend, HashStore(), 0, 1, torch_groups.default_timeout())

    def sever(self, round_id: RoundId, spare_replica: bool = False) -> Cut:
        """Break the round, whose collectives can never complete. May be called from any thread, at any time.

        Operations of that round (or an older one) that this process is building or computing raise within
        milliseconds, but for messages that are under way between living members: their connections are cut once they
        have arrived. The round's group is never built again. A later round is not affected. New connections may open
        while this call looks for them, so the caller repeats it until the main thread has acknowledged.

        Args:
            round_id: the round.
            spare_replica: whether to leave the connections within this worker's replica alone, as long as all are
                there: for a micro-batch that its members finish. Gloo's alone.

        Returns:
            What was cut; one connection with a waiter if they cannot be found.
        """
        with self._lock:
            self._severed = max(self._severed, round_id)
            current = self._round
            if current is None or current.assignment.round_id > round_id:
                return Cut(0, 0)
            current.pairs.witness()
            current.store.sever()
            self._abort_nccl(current)
            devices = _devices(current)
            for inode in devices.keys() - current.released:
                current.released.add(inode)
                release_waiting_pairs(devices[inode], current.assignment.size)
            spared = _whole_replica(current, devices) if spare_replica else set()
            for inode in spared - current.probed:
                current.probed.add(inode)
                probe_peers(devices[inode], SIGN_OF_LIFE_BOUND)
            cut = current.cutter.cut([device for inode, device in devices.items() if inode not in spared])
            return cut if self._finds_connections else cut._replace(waiting=max(1, cut.waiting))

    def settle(self) -> None:
        """Wait until the device has finished the round's work. Main thread only.

        The host runs ahead of the device. If a member leaves, or aborts its communicators, before it has sent all that
        the others wait for, their collectives never end.

        Raises:
            PeerLostError: the round was severed meanwhile, so the device's results are invalid.
            RuntimeError: this process can no longer use its GPU.
        """
        current = self._round
        if self._nccl is None or current is None or _communicators(self._nccl) == {}:
            return
        self._nccl.finish()
        if self._is_severed(current.assignment):
            raise PeerLostError(f"round {current.assignment.round_id} was given up before its members had finished it")

    def teardown(self) -> None:
        """Forget the round's group and cut its connections; without one, do nothing. Main thread only.

        Never waits for a peer. Gloo's threads take up to 10 ms to stop, nearly all of which they sleep: that happens in
        the background, unless something (a DistributedDataParallel, the traceback of an exception) still refers to the
        group. Where one of them hangs in a send that nothing can free (sever.py), they never stop, and are left behind.

        Raises:
            RuntimeError: this process can use its GPU no longer.
        """
        self._finish_nccl()
        left: Collection[int] = ()
        with self._lock:
            current, self._round = self._round, None
            if current is not None:
                if current.pairs.guard is not None:
                    current.pairs.guard.close()
                devices = _devices(current)
                left = devices.keys()
                current.cutter.cut(devices.values())
                current.store.close()
        self._await_disposal(DISPOSAL_TIMEOUT)
        if not dist.is_initialized():
            if current is not None:
                torch_groups.count_names_anew()
            return
        held = torch_groups.living()
        self._torn_down.update(held)
        default_group.destroy()
        # A daemon, or one that hangs would keep the process from ending. But one that comes out of C++ while the
        # interpreter is shutting down would abort it: hence the wait at exit.
        cut = None if current is None else partial(_cut, current.cutter, left)
        self._disposal = threading.Thread(target=self._dispose, args=(held, cut), name="edriver-teardown", daemon=True)
        self._disposal.start()

    def _prove(self, group: gloo_groups.Backend) -> None:
        """Prove the connections of a group that this process has made in a round."""
        if self._round is not None:
            pairs, built = self._round.pairs, set(self._round.built)
            name = gloo_groups.name_in(pairs.store.last_set)
            pairs.prove(group, name)
            if is_within_replica(name):
                self._round.of_replica |= self._round.built - built

    def _guarded_devices(self) -> list[GuardedDevice] | None:
        """The devices of a group that is about to be made; None: torch's own."""
        guard = None if self._round is None else self._round.pairs.guard
        return None if guard is None else guard.guard()

    def _close(self, current: _CurrentGroup, size: int) -> None:
        """Close the listeners of the proven group of `size` ranks to new connections, and let no reset end a send."""
        own: dict[int, GlooDevice] = {}

        def find() -> Collection[GlooDevice]:
            own.update((inode, device) for inode, device in _devices(current).items() if inode not in current.built)
            return own.values()

        with self._lock:  # a severing that came between would wait for connections that the filter drops
            self._check(current.assignment)
            current.released |= close_listeners(find, size)
            current.built |= own.keys()
        survive_resets(own.values())

    def _check_room(self, assignment: Assignment) -> None:
        """See that there are descriptors for a round, if need be once an earlier one's have been closed."""
        for last_try in (False, True):
            try:
                check_room(_descriptors(assignment), f"a process group of {assignment.size} workers")
            except RuntimeError:
                if last_try:
                    raise
                self._await_disposal(FINAL_DISPOSAL_TIMEOUT)

    def _dispose(self, held: list[object], cut: Callable[[], Cut] | None) -> None:
        """Let go of a round's process groups, once no message is under way: the last reference ends their threads.

        A group that shards a model may still fetch what its next module would have needed.
        """
        while cut is not None and cut().under_way:
            time.sleep(_CUT_INTERVAL)
        held.clear()

    def _await_disposal(self, bound: float) -> None:
        """Wait for the groups that are being disposed of; what takes longer is not waited for again."""
        if not self._owner.is_here:
            return  # the thread that disposes of them is the parent's
        disposal, self._disposal = self._disposal, None
        if disposal is not None:
            disposal.join(bound)
            if disposal.is_alive():
                logger.warning("a group of an earlier round cannot be torn down: one of its threads is left behind")

    def _finish(self) -> None:
        """Before the interpreter ends: leave the groups alone that something still refers to, such as a traceback.

        The interpreter's last collection would destroy them, and wait for ever if a thread of theirs hangs in a send.
        """
        self._await_disposal(FINAL_DISPOSAL_TIMEOUT)
        for group in self._torn_down:
            never_destroy(group)

    def _finish_nccl(self) -> None:
        """Let the device finish the round, if it can, and abort the communicators.

        Where the round has ended by agreement, all members have settled by now, and nothing is on its way between them.
        torch's own way to end a communicator, ProcessGroupNCCL.shutdown(), may wait for peers.
        """
        current = self._round
        if self._nccl is None or current is None or _communicators(self._nccl) == {}:
            return
        if not self._is_severed(current.assignment):
            self._nccl.finish()
        with self._lock:
            self._abort_nccl(current)
        for abort in current.aborts:
            abort.join()
        self._nccl.finish()

    def _abort_nccl(self, current: _CurrentGroup) -> None:
        """With the lock held: begin to abort the communicators that are not being aborted yet."""
        if self._nccl is None:
            return
        found = _communicators(self._nccl)
        if found is None:
            if self._severed >= current.assignment.round_id:
                self._nccl.give_up()
            return
        if fresh := found.keys() - current.aborted:
            current.aborted |= fresh
            current.aborts.append(abort_together([found[name] for name in fresh], self._nccl.give_up))

    def _check(self, assignment: Assignment) -> None:
        """With the lock held: raise if the round has been severed."""
        if assignment.round_id <= self._severed:
            raise PeerLostError(f"round {assignment.round_id} was given up before its process group was built")

    def _is_severed(self, assignment: Assignment) -> bool:
        with self._lock:
            return assignment.round_id <= self._severed

    def _listening(self) -> StoreServer:
        if self._server is None:
            raise RuntimeError("a world of one has no store: make the RoundGroup with a host")
        return self._server


def _communicators(nccl: Nccl) -> Mapping[str, Communicator] | None:
    """Those of this process; None: they cannot be found with this torch, as the worker has logged at its start.

    Of a group that the script has made it logs that here.
    """
    try:
        return nccl.communicators()
    except AttributeError:
        return None
    except UnknownPartError as error:
        logger.error("%s", error)
        return None


def _refuse_existing_group() -> None:
    if dist.is_initialized():
        raise RuntimeError(
            "a default process group exists already: edriver makes one for each round, so remove init_process_group "
            "from the script, or call destroy_process_group before edriver.run"
        )


def _pairs_of(
    current: _CurrentGroup, timeout: float, close: Callable[[int], object], wire: StoreTransport
) -> PairsOfRound:
    assignment = current.assignment

    def connect() -> StoreClient:
        store = StoreClient(*assignment.store, timeout, wire, shared_as=_shared_as(assignment))
        store.connect()
        return store

    guard = ConnectionGuard(assignment.round_id, assignment.size, connect) if assignment.guarded else None
    return PairsOfRound(assignment, current.store, partial(_devices, current), close, guard)


def _shared_as(assignment: Assignment) -> str:
    """The name by which the members on a host share a connection to their round's store; empty: there is one member."""
    return f"round {assignment.round_id}" if assignment.local_size > 1 else ""


def _descriptors(assignment: Assignment) -> int:
    """The number of descriptors that a round needs here: of a Gloo device, its connections, and rank 0's store."""
    group = _DEVICE_DESCRIPTORS + assignment.size - 1
    return group + (assignment.size if assignment.rank == 0 else 1) + _SPARE_DESCRIPTORS


def _cut(cutter: Cutter, inodes: Collection[int]) -> Cut:
    """Cut the connections of these devices."""
    return cutter.cut([device for inode, device in gloo_devices().items() if inode in inodes])


def _whole_replica(current: _CurrentGroup, devices: Mapping[int, GlooDevice]) -> set[int]:
    """The devices within this worker's replica of which no member has left; one that is lost may still seem there."""
    peers = current.assignment.replica_size - 1
    return {inode for inode in current.of_replica & devices.keys() if len(devices[inode].connections) == peers}


def _devices(current: _CurrentGroup) -> dict[int, GlooDevice]:
    return {inode: device for inode, device in gloo_devices().items() if inode not in current.foreign_devices}
