"""Callers that have not authenticated: which of their connections are closed."""

from __future__ import annotations

import os
import socket

import pytest

from edriver.wire.port_watch import (
    AcceptedSocket,
    PortLimit,
    PortSockets,
    plain_address,
    shut_down,
)


def caller(inode: int) -> AcceptedSocket:
    return AcceptedSocket(inode, inode, ("10.0.0.1", inode))


def callers(*inodes: int) -> list[AcceptedSocket]:
    return [caller(inode) for inode in inodes]


def test_the_oldest_strangers_go_when_there_are_too_many() -> None:
    strangers = PortLimit(most=2, timeout=15.0)
    assert strangers.to_close(callers(9), 0.0) == []
    assert strangers.to_close(callers(1, 2, 3, 9), 1.0) == callers(9, 1)


def test_of_those_that_came_together_the_first_go_whichever_processor_has_accepted_them() -> None:
    strangers = PortLimit(most=1, timeout=15.0)
    first, last = AcceptedSocket(2048, 5, ("10.0.0.1", 1)), AcceptedSocket(1024, 6, ("10.0.0.1", 2))
    assert strangers.to_close([first, last], 0.0) == [first]
    assert strangers.to_close([last, first], 0.1) == [first]


def test_a_stranger_has_some_seconds() -> None:
    strangers = PortLimit(most=5, timeout=15.0)
    assert strangers.to_close(callers(1), 0.0) == []
    assert strangers.to_close(callers(1, 2), 14.9) == []
    assert strangers.to_close(callers(1, 2), 15.0) == callers(1)


def test_a_caller_that_has_shown_a_token_stays() -> None:
    strangers = PortLimit(most=1, timeout=15.0)
    strangers.authenticate(("10.0.0.1", 1))
    strangers.authenticate(("10.0.0.1", 2))
    assert strangers.to_close(callers(1, 2, 3), 0.0) == []
    assert strangers.to_close(callers(1, 2), 100.0) == []


def test_a_port_that_another_caller_has_later_is_a_strangers() -> None:
    strangers = PortLimit(most=1, timeout=15.0)
    strangers.authenticate(("10.0.0.1", 1))
    assert strangers.to_close(callers(1), 0.0) == []
    assert strangers.to_close([], 1.0) == []
    assert strangers.to_close(callers(1), 2.0) == []
    assert strangers.to_close(callers(1), 17.0) == callers(1)


def test_the_next_look_is_soon_only_after_there_were_too_many() -> None:
    strangers = PortLimit(most=2, timeout=15.0)
    strangers.to_close(callers(1, 2), 0.0)
    assert not strangers.crowded
    strangers.to_close(callers(1, 2, 3), 0.0)
    assert strangers.crowded
    strangers.to_close(callers(2, 3), 0.1)
    assert not strangers.crowded


@pytest.mark.parametrize(
    ("address", "plain"),
    [
        pytest.param("10.0.0.1", "10.0.0.1", id="ipv4"),
        pytest.param("::ffff:10.0.0.1", "10.0.0.1", id="ipv4-on-a-socket-for-both"),
        pytest.param("fe80:0::1%eth0", "fe80::1", id="with-a-scope"),
    ],
)
def test_addresses_have_one_form(address: str, plain: str) -> None:
    assert plain_address(address) == plain


def test_connections_at_a_port_are_found_and_shut_down() -> None:
    with (
        socket.create_server(("::1", 0), family=socket.AF_INET6) as server,
        socket.create_server(("127.0.0.1", 0)) as other,
    ):
        connections = PortSockets(server.getsockname()[1])
        assert connections.look() == []
        with socket.create_connection(server.getsockname()[:2]) as calling, server.accept()[0] as accepted:
            with socket.create_connection(other.getsockname()), other.accept()[0]:
                [found] = connections.look()
            assert connections.look() == [found]
            assert (found.fd, found.where) == (accepted.fileno(), ("::1", calling.getsockname()[1]))
            shut_down(found)
            assert calling.recv(1) == b""
        assert connections.look() == []


def test_a_descriptor_that_is_anothers_by_now_is_left_alone() -> None:
    one, other = socket.socketpair()
    with one, other:
        shut_down(AcceptedSocket(os.fstat(other.fileno()).st_ino, one.fileno(), ("10.0.0.1", 1)))
        other.send(b"x")
        assert one.recv(1) == b"x"
