"""Finding this process's Gloo connections, so that a collective that hangs on a silent peer can be made to raise.

Nothing in torch frees such a collective: `abort()`, `shutdown()` and `destroy_process_group()` all leave it hanging
(torch 2.13). Shutting down the sockets underneath does, within milliseconds. The difficulty is to cut Gloo's sockets
and no others: a difference of the open descriptors before and after the group was built also catches what other
threads opened meanwhile, and misses the subgroups made later.

Gloo's own book-keeping answers it. Each process group (the default one and each `new_group`) has a device: one
epoll set with one thread. What is in that set, and so in /proc/self/fdinfo/<epoll>, is (gloo/transport/tcp/loop.cc,
listener.cc, pair.cc):

 - the read end of one pipe, by which the loop is woken;
 - one listening TCP socket;
 - the TCP connections to the other ranks, those still being made included;
 - for each of them, as epoll's user data, the address of its handler, where asyncio and libuv keep the descriptor;

and the set itself was made by epoll_create(1), without close-on-exec, which Python, libuv and gRPC all ask for.
A set is taken for Gloo's only if all of this holds. If one of these marks changes, no device is found: nothing is
severed, listeners stay open, and the worker reports that at its start (checks.py).

Everything here may be called from any thread while another one hangs in a collective: those release the GIL.

Other sockets are never touched. Subgroups are found as the default group is. A descriptor is duplicated, and compared
with the inode, before it is shut down, so a number that has been reused is harmless.

Severing cannot free two kinds of operation, because Gloo keeps no record of them that it could reach (pair.cc and
context.cc):

* A message of which only a part has been written, or has arrived, when its connection ends: it has left the queues that
  `signalException` goes through. So connections are cut between messages (cutting.py). What a peer's death cuts stays
  half done: a ring all-reduce nearly always waits for another message too, which gets the error: none of 225 survivors
  of a kill amid all-reduces of 32 MB stayed stuck. The root of a broadcast waits for sends only, and learns of the
  failure of one that is larger than the sockets hold only by luck. DistributedDataParallel makes such a broadcast when
  it is built, which is of no use where the state has been synced: build it with `init_sync=False`.
* A receive from any source (`dist.recv` without one): it belongs to no connection, so no connection's error reaches it.

Gloo also forgets a send that its own thread makes and that fails: one for which a peer has asked, and then died. The
write fails once the peer's kernel has reset the connection, as it does for a process that dies with bytes unread. So
once a group is built, its connections hear no resets (`drop_resets`, a socket filter like that of its listener): the
write ends in the system's buffer, and nothing hangs. Where TCP sockets get no filters (edriver/system/sockets.py), such
a sender counts as stuck, and is replaced.
"""

from __future__ import annotations

import contextlib
import os
import re
import select
import socket
import stat
import struct
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from edriver.system.descriptors import links
from edriver.system.sockets import drop_resets, duplicate, hear, probe

_EPOLL_LINK = "anon_inode:[eventpoll]"
_FDINFO_FOLDER = Path("/proc/self/fdinfo")
_FLAGS_PATTERN = re.compile(r"^flags:\s+([0-7]+)$", re.MULTILINE)
_WATCHED_PATTERN = re.compile(
    r"^tfd:\s+(\d+) events:\s+([0-9a-f]+) data:\s+([0-9a-f]+)\s+pos:\S+ ino:([0-9a-f]+) ", re.MULTILINE
)
_ARMED_EVENTS = select.EPOLLIN | select.EPOLLOUT

_LOW_HALF = 0xFFFFFFFF
"""Where an event loop that keeps descriptors as user data (an int in a union of 8 bytes) keeps them."""


class Descriptor(NamedTuple):
    """An open descriptor of this process, with the inode that shows whether the number has been reused since.

    Attributes:
        fd: the number.
        inode: what it referred to when it was found. Socket inodes are not reused in a process's life.
        armed: whether its device waits for anything to happen on it. One that came in before its pair was there is kept
            unarmed (listener.cc); so are those with which `release_waiting_pairs` has called in vain.
        writing: whether it waits until it can write more: a message, or a connection, is half made.
    """

    fd: int
    inode: int
    armed: bool = True
    writing: bool = False


@dataclass(frozen=True, slots=True)
class GlooDevice:
    """What one Gloo process group of this process is connected by.

    Attributes:
        listener: its listening socket.
        connections: its connections to other ranks, established or not, in no order.
    """

    listener: Descriptor
    connections: tuple[Descriptor, ...]


def gloo_devices() -> dict[int, GlooDevice]:
    """The Gloo devices of this process, by their listener's inode.

    Descriptors that come and go during the scan are tolerated: a device that is just being built or torn down is
    listed as far as it can be seen, or not at all, so a caller that severs a group under construction repeats it.
    """
    devices = (_device_of(fd) for fd, link in links() if link == _EPOLL_LINK)
    return {device.listener.inode: device for device in devices if device is not None}


def survive_resets(devices: Collection[GlooDevice]) -> None:
    """Let no reset through to the devices' connections, so that no write of Gloo's fails.

    Gloo's own thread writes what a peer has just asked for. If the peer dies first and leaves bytes unread, its system
    resets the connection and the write fails. Gloo then forgets the send, which has left the queue of pending ones, and
    its caller hangs (see docs/benchmarks/gloo.md for how often). Without the reset the write succeeds, and the send
    ends, or raises when the connection is severed. The dead peer's agent reports the death at once, so no reset is
    needed.

    To be called once a group is built. Without socket filters (edriver.system.sockets), such a caller counts as stuck
    when its round is aborted, and its worker is replaced.
    """
    for connection in (connection for device in devices for connection in device.connections):
        duplicated = duplicate(connection.fd, connection.inode)
        if duplicated is not None:
            with duplicated:
                drop_resets(duplicated)


def probe_peers(device: GlooDevice, seconds: int) -> None:
    """Have a device's connections end that lead to processes which are gone, as those do whose resets are not heard.

    Args:
        device: the device.
        seconds: see sockets.probe.
    """
    for connection in device.connections:
        duplicated = duplicate(connection.fd, connection.inode)
        if duplicated is not None:
            with duplicated, contextlib.suppress(OSError):  # it may have ended
                probe(duplicated, seconds)


def release_waiting_pairs(device: GlooDevice, pairs: int) -> None:
    """Free a thread that waits for another rank to connect to this device, while a group is being built.

    Of two ranks one connects, and one waits for a connection that begins with the number of its pair (8 bytes,
    host order: gloo/transport/tcp/listener.cc). A rank that waits has no socket yet that could be shut down, and
    would wait for the group's whole timeout. So connect in the missing rank's place and hang up: the pair finds
    its connection closed. Once per device is enough, even before the wait begins: Gloo keeps the connection until then.

    Args:
        device: the device whose waiting pairs are released.
        pairs: the number of pair numbers to try, from 0: the size of the round.
    """
    listener = duplicate(device.listener.fd, device.listener.inode)
    if listener is None:
        return
    with listener:
        hear(listener)  # what it was guarded from can do no more harm: the round is over
        address = listener.getsockname()
        for pair in range(pairs):
            with socket.socket(listener.family, socket.SOCK_STREAM) as caller, contextlib.suppress(OSError):
                caller.settimeout(0.1)  # a full backlog must not hold up the severing
                caller.connect(address)
                caller.send(struct.pack("=q", pair))


def _device_of(epoll: int) -> GlooDevice | None:
    """What this epoll set watches, if it has every mark of a Gloo device (see the module's docstring)."""
    try:
        text = (_FDINFO_FOLDER / str(epoll)).read_text()
    except OSError:
        return None
    flags = _FLAGS_PATTERN.search(text)
    watched = [
        (int(fd), int(events, 16), int(data, 16), int(ino, 16))
        for fd, events, data, ino in _WATCHED_PATTERN.findall(text)
    ]
    if flags is None or int(flags[1], 8) & os.O_CLOEXEC or any(data & _LOW_HALF == fd for fd, _, data, _ in watched):
        return None
    return _device_from(
        [
            Descriptor(fd, ino, bool(events & _ARMED_EVENTS), bool(events & select.EPOLLOUT))
            for fd, events, _, ino in watched
        ]
    )


def _device_from(watched: list[Descriptor]) -> GlooDevice | None:
    pipes = 0
    listeners: list[Descriptor] = []
    connections: list[Descriptor] = []
    for descriptor in watched:
        try:
            status = os.fstat(descriptor.fd)
        except OSError:
            continue
        if status.st_ino != descriptor.inode:
            continue  # closed since; a forked child that still has it open keeps the entry in the set
        if stat.S_ISFIFO(status.st_mode):
            pipes += 1
            continue
        connection = duplicate(descriptor.fd, descriptor.inode)
        if connection is None or not stat.S_ISSOCK(status.st_mode):
            return None
        with connection:
            if not _is_tcp(connection):
                return None
            listens = connection.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
            (listeners if listens else connections).append(descriptor)
    if pipes != 1 or len(listeners) != 1:
        return None
    return GlooDevice(listeners[0], tuple(connections))


def _is_tcp(connection: socket.socket) -> bool:
    return connection.family in (socket.AF_INET, socket.AF_INET6) and connection.type == socket.SOCK_STREAM
