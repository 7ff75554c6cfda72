"""The process group of a round: built when the round begins, severed when a member is lost, torn down before the next.

One RoundGroup lives as long as its worker process. The main thread builds and tears down; the notification thread
severs. A round is dead for good once `sever` has named it, whether its group was built, being built or not yet begun.
"""

from __future__ import annotations

import queue
import socket
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TypeAlias

import torch.distributed as dist
from torch._C._distributed_c10d import HashStore, PrefixStore, Store, TCPStore
from torch.distributed import distributed_c10d as c10d

from edriver.version import NO_ROUND, RoundId
from edriver.worker.assignment import Assignment
from edriver.worker.errors import PeerLostError
from edriver.worker.peer_loss import looks_like_peer_loss
from edriver.worker.sever import GlooDevice, gloo_devices, release_waiting_pairs, sever_gloo, sever_store

Dialled: TypeAlias = TCPStore | Exception | None
"""How the dialling of a round's store ended: a client, an error, or None: the round was severed meanwhile."""


@dataclass(slots=True)
class _Round:
    """The round whose group exists or is being built.

    Attributes:
        place: this worker's place in it.
        strangers: the Gloo devices (listener inodes) that were there before: a group of the user's own with others.
        released: the round's devices (listener inodes) whose waiting pairs have been released.
        dialled: receives the store's client, and None when the round is severed.
    """

    place: Assignment
    strangers: frozenset[int]
    released: set[int] = field(default_factory=set)
    dialled: queue.SimpleQueue[Dialled] = field(default_factory=queue.SimpleQueue)


class RoundGroup:
    """Makes torch.distributed's default process group anew for each round, over Gloo.

    Every worker keeps a TCPStore listening from the start, so that it can be rank 0 of any round without another
    message. Keys live under `round/<round id>`: what an older round left behind is not seen.
    """

    def __init__(self, host: str | None) -> None:
        """Start this worker's store.

        Args:
            host: this host's name or address as the other members reach it; the store listens there and nowhere
                else. None for a world of one, which has no store.

        Raises:
            OSError: the host does not resolve, or is not an address of this machine.
        """
        self._server = None if host is None else _serve_store(host)
        self._lock = threading.Lock()
        self._round: _Round | None = None
        self._severed = NO_ROUND
        self._disposal: threading.Thread | None = None

    @property
    def store_host(self) -> str:
        """The address at which this worker's store listens."""
        return self._store().host

    @property
    def store_port(self) -> int:
        """The port at which this worker's store listens."""
        return self._store().port

    def build(self, place: Assignment, timeout: float) -> None:
        """Build the round's group and make it the default one. Main thread only.

        Args:
            place: this worker's place; `place.store_host` is an IP address.
            timeout: in seconds, for each step of building and, as torch has it, for each collective afterwards.

        Raises:
            PeerLostError: a member is gone, the round has been severed, or the others did not come in time. Nothing
                is left of the group.
            RuntimeError: a default process group exists already.
        """
        _refuse_existing_group()
        current = _Round(place, frozenset(gloo_devices()))
        with self._lock:
            if place.round_id <= self._severed:
                raise PeerLostError(f"round {place.round_id} was given up before its process group was built")
            self._round = current
        try:
            store = _dial(current, timeout)
            _init(PrefixStore(f"round/{place.round_id}", store), place.rank, place.size, timeout)
        except Exception as error:
            severed = self._is_severed(place.round_id)
            self.teardown()
            if severed or looks_like_peer_loss(error):
                raise _lost_while_building(place) from error
            raise
        if self._is_severed(place.round_id):  # too late to hinder the building, but the connections are dead
            self.teardown()
            raise _lost_while_building(place)

    def build_alone(self) -> None:
        """Build the group of a world of one, in which DistributedDataParallel works as anywhere. Main thread only.

        Raises:
            RuntimeError: a default process group exists already.
        """
        _refuse_existing_group()
        _init(HashStore(), 0, 1, c10d.default_pg_timeout.total_seconds())

    def sever(self, round_id: RoundId) -> int:
        """Break the round: what its members' collectives wait for will never come. From any thread, at any time.

        Whatever of that round (or an older one) this process is building or computing raises within milliseconds,
        and the round's group is never built again. A later round is not touched. Connections may be made while
        this looks for them, so the caller repeats it until the main thread has acknowledged.

        Returns:
            How many connections were cut.
        """
        with self._lock:
            self._severed = max(self._severed, round_id)
            current = self._round
            if current is None or current.place.round_id > round_id:
                return 0
            current.dialled.put(None)
            return _cut(current)

    def teardown(self) -> None:
        """Forget the round's group and cut its connections; without one, do nothing. Main thread only.

        Never waits for a peer. Gloo's threads take about 10 ms to stop: that happens in the background, unless
        something (a DistributedDataParallel, the traceback of an exception) still refers to the group.
        """
        with self._lock:
            current, self._round = self._round, None
            if current is not None:
                sever_gloo(_devices(current).values())
        if self._disposal is not None:
            self._disposal.join()
            self._disposal = None
        if not dist.is_initialized():
            c10d._world.group_count = 0  # a failed build has used up the name "0", and names must agree
            return
        held = list(c10d._world.pg_map)
        dist.destroy_process_group()
        # Not a daemon: a thread that comes out of C++ while the interpreter is shutting down aborts the process.
        self._disposal = threading.Thread(target=held.clear, name="edriver-teardown")
        self._disposal.start()

    def _is_severed(self, round_id: RoundId) -> bool:
        with self._lock:
            return round_id <= self._severed

    def _store(self) -> TCPStore:
        if self._server is None:
            raise RuntimeError("a world of one has no store: make the RoundGroup with a host")
        return self._server


def _serve_store(host: str) -> TCPStore:
    """A TCPStore that listens at the host's address only: on its own it would listen on all of them."""
    family, _, _, _, address = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)[0]
    with socket.socket(family, socket.SOCK_STREAM) as listener:
        listener.bind(address)
        listener.listen(socket.SOMAXCONN)
        bound, port = listener.getsockname()[:2]
        return TCPStore(bound, port, None, True, master_listen_fd=listener.detach(), wait_for_workers=False)


def _refuse_existing_group() -> None:
    if dist.is_initialized():
        raise RuntimeError(
            "a default process group exists already: edriver makes one for each round, so take init_process_group out "
            "of the script, or call destroy_process_group before edriver.run"
        )


def _dial(current: _Round, timeout: float) -> TCPStore:
    """Connect to the round's store, or give up as soon as the round is severed.

    In a thread, because TCPStore tries again when its connection is cut, and waits for ever for the answer of a
    stopped server: if the round is severed the thread is left behind. It ends when that server's process does.
    """
    place, answer = current.place, current.dialled.put
    args = (place.store_host, place.store_port, timeout, answer)
    threading.Thread(target=_connect, args=args, name="edriver-dial", daemon=True).start()
    try:
        dialled = current.dialled.get(timeout=timeout)
    except queue.Empty:
        dialled = TimeoutError(f"no answer within {timeout:g} s")
    if isinstance(dialled, TCPStore):
        return dialled
    what = f"no connection to rank 0's store at {place.store_host}:{place.store_port}"
    if dialled is None:
        raise PeerLostError(f"{what}: the round was severed")
    raise PeerLostError(what) from dialled


def _connect(host: str, port: int, timeout: float, answer: Callable[[Dialled], None]) -> None:
    try:
        # A store listens before its worker is assigned: a refusal means that it is gone. TCPStore would try on.
        socket.create_connection((host, port), timeout).close()
        answer(TCPStore(host, port, None, False, timedelta(seconds=timeout), wait_for_workers=False))
    except Exception as error:  # noqa: BLE001  the waiting thread raises it
        answer(error)


def _init(store: Store, rank: int, size: int, timeout: float) -> None:
    hook = sys.excepthook
    try:
        dist.init_process_group("gloo", store=store, rank=rank, world_size=size, timeout=timedelta(seconds=timeout))
    finally:
        sys.excepthook = hook  # torch wraps it at each call, with a rank that changes from round to round


def _devices(current: _Round) -> dict[int, GlooDevice]:
    return {inode: device for inode, device in gloo_devices().items() if inode not in current.strangers}


def _cut(current: _Round) -> int:
    devices = _devices(current)
    for inode in devices.keys() - current.released:
        current.released.add(inode)
        release_waiting_pairs(devices[inode], current.place.size)
    return sever_gloo(devices.values()) + sever_store(current.place.store_host, current.place.store_port)


def _lost_while_building(place: Assignment) -> PeerLostError:
    return PeerLostError(f"a peer was lost while the process group of round {place.round_id} was being built")
