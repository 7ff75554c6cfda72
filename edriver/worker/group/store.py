"""The key-value store in which a round's members find each other, in place of torch's TCPStore.

TCPStore looks up the name of every address that it connects to or accepts, even if nothing is logged: a DNS query per
member and round, one after the other in rank 0's only thread, 5 s each when an answer is lost (torch 2.13). Cut, its
client logs with another query, tries again on its own for the whole timeout, or waits for ever for a stopped server;
none of that can be stopped from outside. A store that only has to introduce processes to each other is small.

On the wire, a request is its kind, a number, the lengths of key and value, then both; a reply is the request's number,
the length of the answer, and the answer. Nothing is ever unpickled.
"""

from __future__ import annotations

import contextlib
import logging
import resource
import selectors
import socket
import struct
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import timedelta

from torch.distributed import DistNetworkError, DistStoreError
from torch.distributed.distributed_c10d import Store

from edriver.worker.group.store_transport import NOT_YET, StoreWire, is_known
from edriver.worker.group.unauthenticated import Strangers

logger = logging.getLogger("edriver.worker")

_REQUEST = struct.Struct("!BIII")
_REPLY = struct.Struct("!II")
_SET, _GET, _ADD, _CHECK = range(4)
_LARGEST = 1 << 20
"""Bytes of key plus value in one request. Whoever announces more is not one of ours."""

STRANGER_SECONDS = 10.0
"""How long a caller may be connected before it has proven that it is a member."""

_FIRST_WORD, _HEAD_START = 0.1, 1.0
"""Seconds during which a caller that has sent nothing, and one that has, is not turned out in favor of others."""

_MOST_STRANGERS = 1024
"""Callers that have proven nothing yet; fewer where the process may have few descriptors."""

_ACCEPT_PAUSE = 0.05
"""Seconds until the next try, when nothing can be accepted: for want of a descriptor, say."""

_ERRORS_TOLD = 10
"""How many errors that should not happen are logged."""


@dataclass(slots=True, eq=False)
class _Caller:
    """A client, as the server sees it: what it has sent of its next request, and the keys that it was first to set."""

    connection: socket.socket
    received: bytearray = field(default_factory=bytearray)
    keys: list[bytes] = field(default_factory=list)
    gone: bool = False

    def requests(self) -> Iterator[tuple[int, int, bytes, bytes]]:
        """Take out what has arrived in full: kind, number, key, value.

        Raises:
            ValueError: this is no request.
        """
        while len(self.received) >= _REQUEST.size:
            kind, number, key_size, value_size = _REQUEST.unpack_from(self.received)
            if kind > _CHECK or key_size + value_size > _LARGEST:
                raise ValueError("not a request")
            end = _REQUEST.size + key_size + value_size
            if len(self.received) < end:
                return
            key, value = self.received[_REQUEST.size : end - value_size], self.received[end - value_size : end]
            del self.received[:end]
            yield kind, number, bytes(key), bytes(value)


class StoreServer:
    """Serves one dictionary from a thread of its own, until the process ends.

    What a client was first to set goes when it hangs up. Members stay connected for as long as their round lives, and
    then nobody wants its keys any more; a rank 0 that lives through thousands of rounds would hold them all.

    Attributes:
        host: the address at which it listens,
        port: and the port; or the path of its unix socket, and 0.
    """

    def __init__(
        self,
        host: str,
        wire: StoreWire,
        strangers: Strangers[_Caller] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Listen at the host's address, and at no other.

        Args:
            host: the address, or the path that a unix socket is to have.
            wire: what connections are made of.
            strangers: the bounds on callers that have not proven that they are members; None: the usual ones.
            clock: the time, in seconds.

        Raises:
            OSError: the host does not resolve, or is not an address of this machine.
        """
        self._wire = wire
        self._listener = wire.listen(host)
        self._listener.setblocking(False)
        name = self._listener.getsockname()
        self.host, self.port = (name, 0) if isinstance(name, str) else (str(name[0]), int(name[1]))
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._accept_at = 0.0
        self._clock = clock
        usual: Strangers[_Caller] = Strangers(_most_strangers(), STRANGER_SECONDS, _FIRST_WORD, _HEAD_START)
        self._strangers = usual if strangers is None else strangers
        self._errors = 0
        self._values: dict[bytes, bytes] = {}
        self._waiting: defaultdict[bytes, list[tuple[_Caller, int]]] = defaultdict(list)
        threading.Thread(target=self._run, name="edriver-store", daemon=True).start()

    def _run(self) -> None:
        """Serve. Members of later rounds need this thread: no error ends it."""
        while True:
            try:
                self._turn()
            except Exception:  # noqa: BLE001
                self._tell_error()
                time.sleep(_ACCEPT_PAUSE)  # what fails at once and for good must not take a processor

    def _turn(self) -> None:
        """Wait until something has come, or a stranger's time is over, and deal with it."""
        for key, _ in self._selector.select(self._wait_limit()):
            if isinstance(key.data, _Caller):
                self._read(key.data)
            else:
                self._accept()
        now = self._clock()
        for caller in self._strangers.overdue(now):
            self._forget(caller)
        if self._accept_at and now >= self._accept_at:
            self._accept_at = 0.0
            self._selector.register(self._listener, selectors.EVENT_READ)

    def _wait_limit(self) -> float | None:
        until = [at for at in (self._strangers.deadline, self._accept_at) if at]
        return max(0.0, min(until) - self._clock()) if until else None

    def _accept(self) -> None:
        if self._strangers.full and not self._make_room():
            self._pause_accepting()
            return
        try:
            raw, _ = self._listener.accept()
        except (BlockingIOError, ConnectionAbortedError):
            return  # gone before it was accepted
        except OSError:  # no descriptor, or no memory: the listener would be ready again at once
            if not self._make_room():
                self._pause_accepting()
            return
        try:
            caller = _Caller(self._wire.accepted(raw))
            self._selector.register(caller.connection, selectors.EVENT_READ, caller)
        except (OSError, ValueError):  # gone meanwhile
            raw.close()
            return
        if not is_known(caller.connection):
            self._strangers.add(caller, self._clock())

    def _make_room(self) -> bool:
        """Turn out one stranger, if one can be; answers whether it was."""
        caller = self._strangers.dispensable(self._clock())
        if caller is not None:
            self._forget(caller)
        return caller is not None

    def _pause_accepting(self) -> None:
        self._selector.unregister(self._listener)
        self._accept_at = self._clock() + _ACCEPT_PAUSE

    def _read(self, caller: _Caller) -> None:
        """Take in all that has come: what TLS has read ahead would wake nobody."""
        if caller.gone:
            return  # since this turn began
        self._strangers.heard(caller)
        try:
            while data := caller.connection.recv(65536):
                caller.received += data
                for kind, number, key, value in caller.requests():
                    self._strangers.discard(caller)
                    self._answer(caller, kind, number, key, value)
        except NOT_YET:
            if is_known(caller.connection):
                self._strangers.discard(caller)
            return
        except (OSError, ValueError):
            pass
        except Exception:  # noqa: BLE001  it costs this caller its connection, and the others nothing
            self._tell_error()
        self._forget(caller)

    def _tell_error(self) -> None:
        """Log the exception that is being handled, and of many only the first ones."""
        self._errors += 1
        if self._errors <= _ERRORS_TOLD:
            logger.exception("the store goes on after an error of edriver's own, please report it")

    def _answer(self, caller: _Caller, kind: int, number: int, key: bytes, value: bytes) -> None:
        if kind == _SET:
            self._keep(caller, key, value)
            _reply(caller, number, b"")
        elif kind == _ADD:
            total = b"%d" % (int(self._values.get(key, b"0")) + int(value))
            self._keep(caller, key, total)
            _reply(caller, number, total)
        elif kind == _CHECK:
            _reply(caller, number, b"1" if key in self._values else b"0")
        elif key in self._values:
            _reply(caller, number, self._values[key])
        else:
            self._waiting[key].append((caller, number))

    def _keep(self, caller: _Caller, key: bytes, value: bytes) -> None:
        if key not in self._values:
            caller.keys.append(key)
        self._values[key] = value
        for waiting, number in self._waiting.pop(key, []):
            _reply(waiting, number, value)

    def _forget(self, caller: _Caller) -> None:
        caller.gone = True
        self._strangers.discard(caller)
        self._selector.unregister(caller.connection)
        caller.connection.close()
        for key in caller.keys:
            del self._values[key]
        for key, waiting in list(self._waiting.items()):
            self._waiting[key] = [(other, number) for other, number in waiting if other is not caller]
            if not self._waiting[key]:
                del self._waiting[key]


def _most_strangers() -> int:
    """How many strangers there may be: with so many, most descriptors are still this process's own."""
    return max(1, min(_MOST_STRANGERS, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 4))


def _reply(caller: _Caller, number: int, value: bytes) -> None:
    """Answer, or hang up: a member reads each answer before it asks again, so the socket of one that lives has room."""
    answer = _REPLY.pack(number, len(value)) + value
    with contextlib.suppress(OSError):  # its end of file is still to be read
        if caller.connection.send(answer) < len(answer):
            socket.socket.shutdown(caller.connection, socket.SHUT_RDWR)


class StoreClient(Store):
    """A round's connection to rank 0's StoreServer, which torch uses as its store; `sever` ends it from any thread.

    It has what torch asks of the store of a Gloo group (set, get, wait, add) and of an NCCL one (set and get; check,
    where the user has turned on the signal by which one rank has all others dump their flight recorders).

    Attributes:
        last_set: the key that was set last; its prefix names the group that was made last.
    """

    def __init__(self, host: str, port: int, timeout: float, wire: StoreWire) -> None:
        """Prepare to connect.

        Args:
            host: the server's address, or the path of its unix socket.
            port: its port.
            timeout: in seconds, for connecting and for a `get` or `wait` that names none.
            wire: what the connection is made of.
        """
        super().__init__()
        self.last_set = ""
        self._limit = timeout
        self._socket, self._address = wire.caller(host, port)
        self._lock = threading.Lock()
        self._number = 0
        self._received = bytearray()

    def connect(self) -> None:
        """Connect to the server.

        Raises:
            DistNetworkError: it cannot be reached. A server listens before its worker is given a place in a round, so
                that it refuses means that it is gone.
        """
        try:
            self._socket.settimeout(self._limit)
            self._socket.connect(self._address)  # type: ignore[arg-type]
        except OSError as error:
            raise DistNetworkError(f"rank 0's store at {self._address} cannot be reached: {error}") from error

    def sever(self) -> None:
        """End the connection: whatever waits for it raises DistNetworkError, now and later."""
        with contextlib.suppress(OSError):  # not connected, or no longer
            # Not ssl's: that one forgets its state first, which another thread may be using.
            socket.socket.shutdown(self._socket, socket.SHUT_RDWR)

    def close(self) -> None:
        """Give the connection back. Not while another thread uses it."""
        self._socket.close()

    def set(self, key: str, value: str | bytes) -> None:
        """Set a key."""
        self.last_set = key
        self._ask(_SET, key, value.encode() if isinstance(value, str) else value)

    def get(self, key: str) -> bytes:
        """The key's value, as soon as somebody has set it."""
        return self._ask(_GET, key)

    def add(self, key: str, value: int) -> int:
        """Add to a key that counts, from 0; answers the sum."""
        return int(self._ask(_ADD, key, b"%d" % value))

    def check(self, keys: list[str]) -> bool:
        """Whether all keys have been set."""
        return all(self._ask(_CHECK, key) == b"1" for key in keys)

    def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:
        """Return when all keys have been set.

        Raises:
            DistStoreError: that took longer than the timeout; the store can be used on.
            DistNetworkError: the connection is gone.
        """
        for key in keys:
            self._ask(_GET, key, limit=None if timeout is None else timeout.total_seconds())

    def _ask(self, kind: int, key: str, value: bytes = b"", limit: float | None = None) -> bytes:
        name = key.encode()
        limit = self._limit if limit is None else limit
        with self._lock:
            self._number += 1
            try:
                self._socket.settimeout(limit)
                self._socket.sendall(_REQUEST.pack(kind, self._number, len(name), len(value)) + name + value)
                return self._answer_to(self._number)
            except TimeoutError:
                raise DistStoreError(f"nobody has set {key!r} within {limit:g} s") from None
            except OSError as error:
                raise DistNetworkError(f"the connection to rank 0's store is gone: {error}") from error

    def _answer_to(self, number: int) -> bytes:
        """Wait for this request's answer, passing over those that came too late for an earlier one."""
        while True:
            if len(self._received) >= _REPLY.size:
                answered, size = _REPLY.unpack_from(self._received)
                end = _REPLY.size + size
                if len(self._received) >= end:
                    answer = bytes(self._received[_REPLY.size : end])
                    del self._received[:end]
                    if answered == number:
                        return answer
                    continue
            data = self._socket.recv(65536)
            if not data:
                raise ConnectionResetError("closed by the other end")
            self._received += data
