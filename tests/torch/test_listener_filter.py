"""Gloo's listener once its group is built: nothing new connects, and what was connected goes on; two ranks in one
process."""

from __future__ import annotations

import contextlib
import socket
import struct
from collections.abc import Iterator
from datetime import timedelta

import pytest
from torch._C._distributed_c10d import HashStore, ProcessGroupGloo

from edriver.system import sockets
from edriver.system.sockets import duplicate
from edriver.worker.backend import checks
from edriver.worker.backend.gloo import listener_filter
from edriver.worker.backend.gloo.listener_filter import close_listeners
from edriver.worker.backend.gloo.sever import GlooDevice, gloo_devices
from tests.torch.gloo_pair import Pair
from tests.torch.tcp_filters import BOTH_WAYS, NO_OPTION
from tests.waiting import until

LIMIT_SECONDS = 30.0
ESTABLISHED, SYN_SENT = 1, 2
NO_PAIR = struct.pack("=q", 1 << 40)


def addresses(pair: Pair) -> list[tuple[str, int]]:
    listeners = [duplicate(device.listener.fd, device.listener.inode) for device in pair.devices().values()]
    assert None not in listeners
    with contextlib.ExitStack() as stack:
        return [stack.enter_context(listener).getsockname() for listener in listeners if listener is not None]


@contextlib.contextmanager
def knocking(address: tuple[str, int], family: int = socket.AF_INET) -> Iterator[socket.socket]:
    """A connection that is begun; over loopback it is made at once, if at all."""
    with socket.socket(family) as caller:
        caller.setblocking(False)
        caller.connect_ex(address)
        yield caller


def state(connection: socket.socket) -> int:
    return connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0]


@pytest.fixture(autouse=True)
def filters(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a test is parametrized so, it runs without filters, too."""
    if not getattr(request, "param", True):
        monkeypatch.setattr(sockets, "_SO_ATTACH_FILTER", NO_OPTION)


both_ways = pytest.mark.parametrize("filters", BOTH_WAYS, indirect=True)


@both_ways
def test_nothing_new_connects_and_the_group_goes_on() -> None:
    pair = Pair()
    assert close_listeners(lambda: pair.devices().values(), 2) == pair.devices().keys()
    before = pair.devices()
    for address in addresses(pair):
        with knocking(address) as caller:
            assert pair.all_reduce() == [2.0, 2.0]
            assert state(caller) == SYN_SENT
    assert pair.devices() == before


@both_ways
def test_connections_over_ipv6_are_refused_too() -> None:
    with socket.create_server(("::1", 0), family=socket.AF_INET6) as listener:
        assert sockets.close_listener(listener) == ""
        with socket.socket(socket.AF_INET6) as caller:
            caller.setblocking(False)
            caller.connect_ex(listener.getsockname())
            assert state(caller) == SYN_SENT


def test_the_listeners_of_another_group_stay_open() -> None:
    other = Pair()
    address = addresses(other)[0]
    pair = Pair()
    close_listeners(lambda: pair.devices().values(), 2)
    with knocking(address) as caller:
        assert state(caller) == ESTABLISHED


@both_ways
def test_silent_strangers_that_came_before_are_hung_up_on_and_others_are_not_waited_for() -> None:
    pair = Pair()
    with contextlib.ExitStack() as stack:
        silent = [
            stack.enter_context(socket.create_connection(address, LIMIT_SECONDS))
            for address in addresses(pair)
            for _ in range(20)
        ]
        wrong = stack.enter_context(socket.create_connection(addresses(pair)[0], LIMIT_SECONDS))
        wrong.sendall(NO_PAIR)
        # Gloo's thread takes its turn when it gets the processor; one that it is just accepting is in no list.
        until(lambda: sum(len(device.connections) for device in pair.devices().values()) == len(silent) + 1 + 2)
        assert close_listeners(lambda: pair.devices().values(), 2) == pair.devices().keys()
        for stranger in silent:
            assert stranger.recv(1) == b""
        assert pair.all_reduce() == [2.0, 2.0]


def test_a_caller_that_waits_to_be_accepted_is_disconnected() -> None:
    """Gloo's thread accepts one after the other; that it is behind is made by a listener of our own."""
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        socket.create_connection(listener.getsockname(), LIMIT_SECONDS),
    ):
        assert listener_filter.await_queue(listener)  # nothing accepts it: given up at the bound
        listener.accept()[0].close()
        assert not listener_filter.await_queue(listener)


def test_a_group_that_connects_at_first_use_is_left_open() -> None:
    pair = Pair(lazy=True)
    assert close_listeners(lambda: pair.devices().values(), 2) == set()
    assert pair.all_reduce() == [2.0, 2.0]


def test_a_group_of_one_is_closed_too() -> None:
    others = gloo_devices().keys()
    alone = ProcessGroupGloo(HashStore(), 0, 1, timedelta(seconds=LIMIT_SECONDS))

    def devices() -> list[GlooDevice]:
        return [device for inode, device in gloo_devices().items() if inode not in others]

    assert len(close_listeners(devices, 1)) == 1
    del alone


@pytest.mark.parametrize("address", ["::1", "127.0.0.1"])
def test_a_listener_of_both_families_is_closed_to_both(monkeypatch: pytest.MonkeyPatch, address: str) -> None:
    monkeypatch.setattr(sockets, "_SO_ATTACH_FILTER", NO_OPTION)
    with socket.create_server(("", 0), family=socket.AF_INET6, dualstack_ipv6=True) as listener:
        where = (address, listener.getsockname()[1])
        assert sockets.close_listener(listener) == ""
        with knocking(where, socket.AF_INET6 if ":" in address else socket.AF_INET) as caller:
            assert state(caller) == SYN_SENT
            sockets.hear(listener)
        with knocking(where, socket.AF_INET6 if ":" in address else socket.AF_INET) as caller:
            assert state(caller) == ESTABLISHED


def test_a_system_that_can_close_no_listener_leaves_them_open_and_groups_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sockets, "_SO_ATTACH_FILTER", NO_OPTION)
    monkeypatch.setattr(sockets, "_TCP_MD5SIG_EXT", NO_OPTION)
    pair = Pair()
    assert close_listeners(lambda: pair.devices().values(), 2) == set()
    assert pair.all_reduce() == [2.0, 2.0]
    found = {finding.name: finding.trouble for finding in checks.found_by(checks.PROCESS_CHECKS)}
    trouble = "Protocol not available"
    assert found["listeners"] == f"TCP sockets get no filters: {trouble}; nor can they demand signatures: {trouble}"


def test_a_closed_group_can_be_severed() -> None:
    pair = Pair()
    close_listeners(lambda: pair.devices().values(), 2)
    assert pair.cut() >= 1
    with pytest.raises(RuntimeError):
        pair.all_reduce()
