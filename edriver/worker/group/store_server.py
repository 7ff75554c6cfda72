"""The server of the key-value store in which a round's members find each other: see store.py.

Callers that have not yet proven that they are members are bounded in number and in time
(edriver/wire/unauthenticated.py): a timer closes their connections, and if there is no room, those that have sent
nothing are closed first. Members never make room for them. Where the process has no descriptor left for a caller,
accepting pauses. No error ends the store's thread: a caller's error costs that caller its connection.
"""

from __future__ import annotations

import contextlib
import logging
import resource
import selectors
import socket
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from edriver.wire import store_protocol as protocol
from edriver.wire import store_values
from edriver.wire.store_protocol import as_list, items_of
from edriver.wire.unauthenticated import UnauthenticatedCallers
from edriver.worker.group.store_transport import WOULD_BLOCK_ERRORS, StoreTransport, is_known

logger = logging.getLogger("edriver.worker")

AUTHENTICATION_TIMEOUT = 10.0
"""How long a caller may be connected before it has proven that it is a member."""

_SILENT_GRACE, _ACTIVE_GRACE = 0.1, 1.0
"""Seconds during which a caller that has sent nothing, and one that has, is not closed in favor of others."""

_MAX_UNAUTHENTICATED = 1024
"""Callers that have proven nothing yet; fewer where the process may have few descriptors."""

_ACCEPT_RETRY_DELAY = 0.05
"""Seconds until the next try, when nothing can be accepted, for example for lack of a descriptor."""

_MAX_UNSENT_BYTES = 1 << 26
"""Bytes of answers that a caller may leave unread: all values of the largest round, several times."""

_SEND_BYTES = 1 << 18
"""The maximum number of bytes to send a caller before the others have a turn."""

_NO_LIST: Final = (0, (), b"")

_MAX_LOGGED_ERRORS = 10
"""The maximum number of unexpected errors to log."""


@dataclass(slots=True, eq=False)
class _Caller:
    """A client, as the server sees it.

    Attributes:
        connection: to it.
        received: what it has sent of its next request.
        unsent: the parts of its answers for which its socket has had no room.
        unsent_bytes: of all of them.
        keys: the keys that it was first to set.
        gone: whether its connection is closed.
    """

    connection: socket.socket
    received: bytearray = field(default_factory=bytearray)
    unsent: deque[memoryview] = field(default_factory=deque)
    unsent_bytes: int = 0
    keys: list[bytes] = field(default_factory=list)
    gone: bool = False

    def drop_answers(self) -> None:
        """Send it nothing more."""
        self.unsent.clear()
        self.unsent_bytes = 0

    def requests(self) -> Iterator[tuple[int, int, bytes, bytes]]:
        """Remove and return a complete request: kind, number, key, value.

        Raises:
            ValueError: the bytes are not a request.
        """
        while len(self.received) >= protocol.REQUEST_FORMAT.size:
            kind, number, key_size, value_size = protocol.REQUEST_FORMAT.unpack_from(self.received)
            if kind > protocol.LAST_KIND or key_size + value_size > protocol.MAX_REQUEST_BYTES:
                raise ValueError("not a request")
            end = protocol.REQUEST_FORMAT.size + key_size + value_size
            if len(self.received) < end:
                return
            key, value = (
                self.received[protocol.REQUEST_FORMAT.size : end - value_size],
                self.received[end - value_size : end],
            )
            del self.received[:end]
            yield kind, number, bytes(key), bytes(value)


@dataclass(slots=True, eq=False)
class _Question:
    """A request for values, some of which are not set yet, and all that have made it.

    All members of a group ask for the keys of all of them. Were each one's question looked at whenever a key is set,
    that would take the square of their number; were each looked at from the first key on, the cube.

    Attributes:
        kind: of the request.
        text: the request's own text of its keys: those who send the same ask the same.
        keys: whose values are asked for.
        askers: who asks, and the numbers of their requests.
        at: the place among the keys of the first that was missing.
    """

    kind: int
    text: bytes
    keys: tuple[bytes, ...]
    askers: list[tuple[_Caller, int]]
    at: int = 0

    def missing(self, values: Mapping[bytes, bytes]) -> bytes | None:
        """The next key that is not set; None: all of them are."""
        while self.at < len(self.keys):
            if (key := self.keys[self.at]) not in values:
                return key
            self.at += 1
        # One that was passed is gone if its owner has left meanwhile.
        self.at = next((at for at, key in enumerate(self.keys) if key not in values), self.at)
        return self.keys[self.at] if self.at < len(self.keys) else None


class StoreServer:
    """Serves one dictionary from a separate thread, until the process ends.

    When a client disconnects, the keys that it was the first to set are deleted. Members stay connected as long as
    their round lives, and after that its keys are no longer needed; otherwise a rank 0 that lives through thousands of
    rounds would hold the keys of all of them.

    Attributes:
        host: the address at which it listens, or the path of its unix socket.
        port: the port at which it listens; 0 for a unix socket.
    """

    def __init__(
        self,
        host: str,
        wire: StoreTransport,
        unauthenticated: UnauthenticatedCallers[_Caller] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Listen at the host's address, and at no other.

        Args:
            host: the address, or the path that a unix socket is to have.
            wire: what connections are made of.
            unauthenticated: the bounds on callers that have not proven that they are members; None: the usual ones.
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
        usual: UnauthenticatedCallers[_Caller] = UnauthenticatedCallers(
            _max_unauthenticated(), AUTHENTICATION_TIMEOUT, _SILENT_GRACE, _ACTIVE_GRACE
        )
        self._unauthenticated = usual if unauthenticated is None else unauthenticated
        self._errors = 0
        self._values: dict[bytes, bytes] = {}
        self._owners: dict[bytes, _Caller] = {}
        self._last_names: tuple[bytes, tuple[bytes, ...]] = (b"", ())
        self._last_list: tuple[int, tuple[bytes, ...], bytes] = _NO_LIST
        self._waiting: defaultdict[bytes, list[_Question]] = defaultdict(list)
        self._open: dict[tuple[int, bytes], _Question] = {}
        threading.Thread(target=self._run, name="edriver-store", daemon=True).start()

    def _run(self) -> None:
        """Serve. Members of later rounds need this thread: no error ends it."""
        while True:
            try:
                self._turn()
            except Exception:  # noqa: BLE001
                self._log_error()
                time.sleep(_ACCEPT_RETRY_DELAY)  # an error that repeats at once must not use up a processor

    def _turn(self) -> None:
        """Wait for data, or for the deadline of an unauthenticated caller, and handle it."""
        for key, ready in self._selector.select(self._wait_limit()):
            if not isinstance(key.data, _Caller):
                self._accept()
                continue
            if ready & selectors.EVENT_WRITE:
                self._send(key.data)
            if ready & selectors.EVENT_READ:
                self._read(key.data)
        now = self._clock()
        for caller in self._unauthenticated.overdue(now):
            self._forget(caller)
        if self._accept_at and now >= self._accept_at:
            self._accept_at = 0.0
            self._selector.register(self._listener, selectors.EVENT_READ)

    def _wait_limit(self) -> float | None:
        until = [at for at in (self._unauthenticated.deadline, self._accept_at) if at]
        return max(0.0, min(until) - self._clock()) if until else None

    def _accept(self) -> None:
        if self._unauthenticated.full and not self._make_room():
            self._pause_accepting()
            return
        try:
            raw, _ = self._listener.accept()
        except (BlockingIOError, ConnectionAbortedError):
            return  # closed before it was accepted
        except OSError:  # no descriptor, or no memory: the listener would be ready again at once
            if not self._make_room():
                self._pause_accepting()
            return
        try:
            caller = _Caller(self._wire.accepted(raw))
            self._selector.register(caller.connection, selectors.EVENT_READ, caller)
        except (OSError, ValueError):  # closed meanwhile
            raw.close()
            return
        if not is_known(caller.connection):
            self._unauthenticated.add(caller, self._clock())

    def _make_room(self) -> bool:
        """Close one unauthenticated caller, if one may be; returns whether there was one."""
        caller = self._unauthenticated.dispensable(self._clock())
        if caller is not None:
            self._forget(caller)
        return caller is not None

    def _pause_accepting(self) -> None:
        self._selector.unregister(self._listener)
        self._accept_at = self._clock() + _ACCEPT_RETRY_DELAY

    def _read(self, caller: _Caller) -> None:
        """Read everything that has arrived: data that TLS has read ahead would not wake the selector."""
        if caller.gone:
            return  # since this turn began
        self._unauthenticated.note_data(caller)
        try:
            while data := caller.connection.recv(65536):
                caller.received += data
                for kind, number, key, value in caller.requests():
                    self._unauthenticated.discard(caller)
                    self._answer(caller, kind, number, key, value)
        except WOULD_BLOCK_ERRORS:
            if is_known(caller.connection):
                self._unauthenticated.discard(caller)
            return
        except (OSError, ValueError):
            pass
        except Exception:  # noqa: BLE001  it costs this caller its connection, and the others nothing
            self._log_error()
        self._forget(caller)

    def _log_error(self) -> None:
        """Log the exception that is being handled, and of many only the first ones."""
        self._errors += 1
        if self._errors <= _MAX_LOGGED_ERRORS:
            logger.exception("the store continues after an internal error of edriver, please report it")

    def _answer(self, caller: _Caller, kind: int, number: int, key: bytes, value: bytes) -> None:
        if kind == protocol.SET:
            self._keep(caller, key, value)
            self._reply(caller, number, b"")
        elif kind == protocol.ADD:
            total = store_values.added(self._values.get(key), int(value))
            self._keep(caller, key, total)
            self._reply(caller, number, total)
        elif kind == protocol.APPEND:
            self._keep(caller, key, self._values.get(key, b"") + value)
            self._reply(caller, number, b"")
        elif kind == protocol.CHECK:
            self._reply(caller, number, b"1" if self._knows(key) else b"0")
        elif kind == protocol.COMPARE_SET:
            expected, desired = items_of(value)
            answer, is_set = store_values.compared(self._values.get(key), expected, desired)
            if is_set:
                self._keep(caller, key, desired)
            self._reply(caller, number, answer)
        elif kind == protocol.DELETE:
            self._reply(caller, number, b"1" if self._delete(key) else b"0")
        elif kind == protocol.COUNT:
            self._reply(caller, number, b"%d" % len(self._values))
        else:
            self._ask(caller, kind, number, key if kind == protocol.GET else value)

    def _knows(self, key: bytes) -> bool:
        return key in self._values or key == protocol.COMPRESSION_KEY

    def _names_in(self, text: bytes) -> tuple[bytes, ...]:
        """The keys that a request names; one object for all members that ask for the same."""
        if text != self._last_names[0]:
            self._last_names = text, tuple(items_of(text))
        return self._last_names[1]

    def _ask(self, caller: _Caller, kind: int, number: int, text: bytes) -> None:
        """Answer a request for values, once all of them are set."""
        if asked := self._open.get((kind, text)):
            asked.askers.append((caller, number))
            return
        keys = (text,) if kind == protocol.GET else self._names_in(text)
        self._answer_once_set(_Question(kind, text, keys, [(caller, number)]))

    def _answer_once_set(self, question: _Question) -> None:
        """Answer, or look again when the first of its keys that is missing is set."""
        missing = question.missing(self._values)
        if missing is not None:
            self._open[question.kind, question.text] = question
            self._waiting[missing].append(question)
            return
        self._open.pop((question.kind, question.text), None)
        found = self._values[question.keys[0]] if question.kind == protocol.GET else self._list_for(question)
        for caller, number in question.askers:
            self._reply(caller, number, found)

    def _list_for(self, question: _Question) -> bytes:
        """The values that are asked for, made once for all members that ask for the same."""
        kind, keys, found = self._last_list
        if (kind, keys) != (question.kind, question.keys):
            found = as_list(self._values[key] for key in question.keys)
            if question.kind == protocol.COMPRESSED_MULTI_GET:
                found = protocol.compressed(found)
            self._last_list = question.kind, question.keys, found
        return found

    def _keep(self, caller: _Caller, key: bytes, value: bytes) -> None:
        if key not in self._values:
            caller.keys.append(key)
            self._owners[key] = caller
        else:  # a key that is new is in no list that was made
            self._last_list = _NO_LIST
        self._values[key] = value
        for question in self._waiting.pop(key, []):
            self._answer_once_set(question)

    def _delete(self, key: bytes) -> bool:
        """Remove a key; returns whether it was set."""
        if key not in self._values:
            return False
        self._last_list = _NO_LIST
        del self._values[key]
        self._owners.pop(key).keys.remove(key)
        return True

    def _reply(self, caller: _Caller, number: int, value: bytes) -> None:
        head = protocol.REPLY_FORMAT.pack(number, len(value))
        # What is large is not copied: members share it.
        parts = (head + value,) if len(value) <= _SEND_BYTES else (head, value)
        caller.unsent.extend(map(memoryview, parts))
        caller.unsent_bytes += len(head) + len(value)
        self._send(caller)

    def _send(self, caller: _Caller) -> None:
        """Send what its socket has room for, and the rest once it has room again."""
        if caller.gone:
            return  # since this turn began
        waited = bool(self._selector.get_key(caller.connection).events & selectors.EVENT_WRITE)
        try:
            if caller.unsent:
                # TLS wants the same bytes again where it has had no room for them.
                sent = caller.connection.send(caller.unsent[0][:_SEND_BYTES])
                caller.unsent_bytes -= sent
                caller.unsent[0] = caller.unsent[0][sent:]
                if not caller.unsent[0]:
                    caller.unsent.popleft()
        except WOULD_BLOCK_ERRORS:
            pass
        except OSError:  # its end of file is still to be read
            caller.drop_answers()
        if caller.unsent_bytes > _MAX_UNSENT_BYTES:
            caller.drop_answers()
            with contextlib.suppress(OSError):
                socket.socket.shutdown(caller.connection, socket.SHUT_RDWR)
        if bool(caller.unsent) != waited:
            wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if caller.unsent else 0)
            self._selector.modify(caller.connection, wanted, caller)

    def _forget(self, caller: _Caller) -> None:
        caller.gone = True
        self._unauthenticated.discard(caller)
        self._selector.unregister(caller.connection)
        caller.connection.close()
        if caller.keys:
            self._last_list = _NO_LIST
        for key in caller.keys:
            del self._values[key], self._owners[key]
        for key, waiting in list(self._waiting.items()):
            for question in waiting:
                question.askers = [asker for asker in question.askers if asker[0] is not caller]
                if not question.askers:
                    del self._open[question.kind, question.text]
            self._waiting[key] = [question for question in waiting if question.askers]
            if not self._waiting[key]:
                del self._waiting[key]


def _max_unauthenticated() -> int:
    """The maximum number of unauthenticated callers, which leaves most descriptors to this process."""
    return max(1, min(_MAX_UNAUTHENTICATED, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 4))
