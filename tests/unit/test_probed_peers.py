"""A connection whose peer is gone ends although its reset is not heard, and one whose peer lives does not."""

from __future__ import annotations

import socket

import pytest

from edriver.system.sockets import drop_resets, probe
from tests.needs import FILTERS, require

BOUND = 120.0


def connected() -> tuple[socket.socket, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        caller = socket.create_connection(listener.getsockname(), timeout=BOUND)
        peer, _ = listener.accept()
    return caller, peer


def test_a_peer_that_is_gone_and_whose_reset_is_not_heard() -> None:
    require(FILTERS)
    caller, peer = connected()
    with caller:
        drop_resets(caller)
        caller.send(b"unread")
        assert peer.recv(1, socket.MSG_PEEK)
        peer.close()  # with a byte unread: by a reset
        probe(caller, 1)
        with pytest.raises(TimeoutError) as raised:
            caller.recv(1)
        assert raised.value.errno, "by the system, not by this test's bound"


def test_a_peer_that_lives_and_is_silent_is_left_alone() -> None:
    caller, peer = connected()
    with caller, peer:
        probe(caller, 1)
        probe(peer, 1)
        caller.settimeout(4.0)  # in which several are asked for
        with pytest.raises(TimeoutError) as raised:
            caller.recv(1)
        assert not raised.value.errno
        peer.send(b"!")
        assert caller.recv(1) == b"!"
