"""Cutting Gloo's connections between messages, so that nobody is left with half of one.

Gloo forgets a message of which only a part has been written or has arrived when its connection ends: it has left the
queues whose operations get the error (`signalException` in gloo/transport/tcp/pair.cc), and whoever waits for it waits
for good. So a connection is cut

* once Gloo has nothing left to write to it. While it has, its epoll set waits for EPOLLOUT (sever.py);
* once nothing has arrived for a moment, because the member at its other end may be amid a message. Nothing here shows
  that; but what that member has begun to write it writes to the end, for it obeys these rules, too. In a group of which
  no member is lost, a message may also be about to begin, so the moment begins with the first attempt to cut it.

What has been cut stays open for the peer, by a second descriptor, until the peer has closed its end. What the peer
still writes is read and thrown away, so it comes to its message's end; and what this process has written reaches the
peer. Were the connection closed with bytes unread, the kernel would reset it, and throw away what it has not sent yet.

Messages follow one another for as long as the members of a group that is whole make collectives. So the training thread
has to be stopped as well: where a sharded model's replica is whole, its modules do that (state/sharded_state.py), but
in a micro-batch that it finishes, within which its connections are not cut at all (rounds/severing.py). Else it stops
at the first collective with the lost member, or after MESSAGE_BOUND.

A peer that is dead or stopped finishes nothing. A message that has not moved for STALL_BOUND is given up, and what
waits for it stays stuck unless it waits for another one of the same tensor, too, as a ring mostly does.

docs/benchmarks/gloo.md has how often a member hung with and without these rules.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final, NamedTuple

from edriver.system.sockets import TcpProgress, duplicate, give_up_after, tcp_progress
from edriver.worker.backend.gloo.sever import Descriptor, GlooDevice

QUIET: Final = 0.005
"""Seconds without a byte after which no message is arriving, in a group that has lost a member: its collectives stand
still, and the others wait."""

QUIET_WHOLE: Final = 0.1
"""The same in a group that is whole, whose messages end: a member on a busy machine may pause amid one."""

STALL_BOUND: Final = 0.5
"""Seconds for which a message that is being written may stand still."""

MESSAGE_BOUND: Final = 5.0
"""Seconds that the messages of a connection may take in all, from the first attempt to cut it on."""

LINGER_TIMEOUT: Final = 5.0
"""Seconds for which the kernel may continue sending to a dead peer, and a connection stays open for a silent one."""

_LINGER_INTERVAL: Final = 0.01
_BYTES_AT_ONCE: Final = 2**20


class Cut(NamedTuple):
    """What one attempt has done.

    Attributes:
        waiting: the number of connections cut on which Gloo waited for anything.
        under_way: the number left for now, because a message is under way.
    """

    waiting: int
    under_way: int


@dataclass(slots=True)
class _Watched:
    """A connection that is to be cut.

    Attributes:
        since: when that was first asked for.
        acknowledged: the number of bytes that the peer had acknowledged
        moved_at: when that last changed.
    """

    since: float
    acknowledged: int
    moved_at: float


@dataclass(slots=True)
class _Kept:
    """A connection that has been cut and is kept open for the peer.

    Attributes:
        connection: the second descriptor.
        descriptor: Gloo's.
        heard_at: when it was cut, or the last byte arrived since.
        said: whether the peer has been sent its end.
    """

    connection: socket.socket
    descriptor: Descriptor
    heard_at: float
    said: bool = False


class Cutter:
    """Cuts the connections of one round's groups. Any thread may call it.

    Args:
        clock: seconds, monotonic.
        groups_stay_whole: whether a loss may leave a group whole, in which members go on until they notice: one that
            shards a model, where the lost member was in another replica.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic, *, groups_stay_whole: bool = True) -> None:
        self._clock = clock
        self._groups_stay_whole = groups_stay_whole
        self._lock = threading.Lock()
        self._watched: dict[int, _Watched] = {}
        self._kept: dict[int, _Kept] = {}
        self._lingering = False

    def cut(self, devices: Iterable[GlooDevice]) -> Cut:
        """Cut the devices' connections, but for those on which a message is under way: to be called again for them.

        Operations that wait on a connection raise within milliseconds of its cut. Listening sockets stay open: Gloo
        calls std::terminate when accept() fails.
        """
        waiting = under_way = 0
        with self._lock:
            for device in devices:
                connections = [one for one in device.connections if one.inode not in self._kept]
                # All or none: an operation that raises for one connection leaves its messages on others half written.
                if moving := self._under_way(connections):
                    under_way += moving
                else:
                    waiting += sum([self._shut(connection) and connection.armed for connection in connections])
            if self._kept and not self._lingering:
                self._lingering = True
                threading.Thread(target=self._linger, name="edriver-linger", daemon=True).start()
        return Cut(waiting, under_way)

    def _under_way(self, connections: Iterable[Descriptor]) -> int:
        """On how many connections of a device a message may be under way."""
        now = self._clock()
        found = []
        for descriptor in connections:
            connection = duplicate(descriptor.fd, descriptor.inode)
            if connection is None:
                continue
            with connection:
                progress = tcp_progress(connection)
            watched = self._watched.setdefault(descriptor.inode, _Watched(now, progress.acknowledged, now))
            if progress.acknowledged != watched.acknowledged:
                watched.acknowledged, watched.moved_at = progress.acknowledged, now
            found.append((descriptor.writing, progress, now - watched.moved_at, now - watched.since))
        # A peer that has died may still seem connected, as resets are not heard (sever.py).
        whole = self._groups_stay_whole and all(progress.established for _, progress, _, _ in found)
        return sum(is_under_way(*one, whole) for one in found)

    def _shut(self, descriptor: Descriptor) -> bool:
        """End a connection; whether it was still there."""
        connection = duplicate(descriptor.fd, descriptor.inode)
        if connection is None:
            return False
        with contextlib.suppress(OSError):  # not connected (any more)
            give_up_after(connection, LINGER_TIMEOUT)
            # For reading only: Gloo reads the end of file, raises and closes. Were writing shut down too, a send in the
            # moment before would fail and be forgotten: Gloo's own thread has to be the first that knows of the end.
            connection.shutdown(socket.SHUT_RD)
        self._kept[descriptor.inode] = _Kept(connection, descriptor, self._clock())
        return True

    def _linger(self) -> None:
        """Keep what has been cut open for the peers, until all have closed their ends or are silent."""
        buffer = bytearray(_BYTES_AT_ONCE)
        while True:
            began = self._clock()
            with self._lock:
                kept = list(self._kept.items())
                if not kept:
                    self._lingering = False
                    return
            done = [inode for inode, one in kept if self._has_ended(one, buffer)]
            with self._lock:
                for inode in done:
                    self._kept.pop(inode).connection.close()
            # With a thousand connections a look takes a while, and the next round has more need of the processor.
            time.sleep(max(_LINGER_INTERVAL, 4 * (self._clock() - began)))

    def _has_ended(self, kept: _Kept, buffer: bytearray) -> bool:
        """Read away what the peer still sends, once Gloo has closed its descriptor; whether nothing more is to come."""
        connection, now = kept.connection, self._clock()
        if _is_open(kept.descriptor):
            return now - kept.heard_at >= MESSAGE_BOUND  # Gloo's thread reads what there is before it sees the end
        with contextlib.suppress(OSError):
            while connection.recv_into(buffer, flags=socket.MSG_DONTWAIT):
                kept.heard_at = now
        if tcp_progress(connection).closed_by_peer or now - kept.heard_at >= LINGER_TIMEOUT:
            with contextlib.suppress(OSError):  # Gloo may have asked for a reset
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 0, 0))
            return True
        if not kept.said and now - kept.heard_at >= QUIET_WHOLE:
            kept.said = True  # what the peer sent from now on would be answered with a reset
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_WR)
        return False


def is_under_way(writing: bool, progress: TcpProgress, still_for: float, asked_for: float, whole: bool) -> bool:
    """Whether a message may be under way on a connection.

    Args:
        writing: whether Gloo has something left to write.
        progress: of the connection.
        still_for: seconds for which the peer has acknowledged nothing new.
        asked_for: seconds since the connection was first to be cut.
        whole: whether all connections of its group are there.
    """
    if not progress.established or asked_for >= MESSAGE_BOUND or not progress.acknowledged:
        return False  # nothing has been acknowledged where nothing has been sent, or where the system does not tell
    if writing:
        return still_for < STALL_BOUND
    return min(progress.heard_ago, asked_for) < QUIET_WHOLE if whole else progress.heard_ago < QUIET


def _is_open(descriptor: Descriptor) -> bool:
    try:
        return os.fstat(descriptor.fd).st_ino == descriptor.inode
    except OSError:
        return False
