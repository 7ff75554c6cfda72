"""What counts as Gloo's connection, and that nothing else is touched; two ranks in one process."""

from __future__ import annotations

import os
import select
import socket
import threading
from concurrent import futures

import pytest

from edriver.worker.backend.gloo.cutting import LINGER_TIMEOUT, Cutter
from edriver.worker.backend.gloo.sever import Descriptor, GlooDevice, gloo_devices, survive_resets
from tests.torch.gloo_pair import Pair, loopback
from tests.torch.tcp_filters import needs_filters
from tests.waiting import until


def until_cut(device: GlooDevice) -> None:
    cutter = Cutter()
    until(lambda: not cutter.cut([device]).under_way)


def is_open(near: socket.socket, far: socket.socket) -> bool:
    far.sendall(b"x")
    near.settimeout(10)
    return near.recv(1) == b"x"


def test_each_rank_has_a_device_with_one_listener_and_a_connection_to_each_other_rank() -> None:
    pair = Pair()
    devices = pair.devices()
    assert [len(device.connections) for device in devices.values()] == [1, 1]
    assert pair.all_reduce() == [2.0, 2.0]
    del pair
    assert not gloo_devices().keys() & devices.keys()


def test_severing_frees_a_hanging_collective_and_leaves_other_groups_alone() -> None:
    other = Pair()
    pair = Pair()
    with futures.ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(pair.hang)
        cut = pair.cut()
        with pytest.raises(RuntimeError, match=r"Connection (closed|reset) by peer"):
            waiting.result(30)
    assert cut >= 1  # the first cut may have closed the other end already
    assert other.all_reduce() == [2.0, 2.0]


def test_severing_twice_does_no_harm_and_listeners_stay_open() -> None:
    pair = Pair()
    devices = pair.devices()
    pair.cut()
    pair.cut()
    with pytest.raises(RuntimeError):
        pair.all_reduce()
    assert pair.devices().keys() == devices.keys()


def test_a_descriptor_that_means_something_else_by_now_is_not_cut() -> None:
    with loopback() as (near, far):
        fd = near.fileno()
        stale = Descriptor(fd, os.fstat(fd).st_ino - 1)
        assert Cutter().cut([GlooDevice(stale, (stale,))]) == (0, 0)
        assert is_open(near, far)
        current = Descriptor(fd, os.fstat(fd).st_ino)
        until_cut(GlooDevice(current, (current,)))
        assert near.recv(1) == b""


@needs_filters
def test_what_a_dead_peers_system_answers_is_not_heard_until_the_connection_is_severed() -> None:
    with loopback() as (near, far):
        fd = near.fileno()
        connection = Descriptor(fd, os.fstat(fd).st_ino)
        device = GlooDevice(connection, (connection,))
        survive_resets([device])
        near.sendall(b"unread")
        far.close()
        near.sendall(b"more")
        near.sendall(b"and more")
        near.setblocking(False)
        with pytest.raises(BlockingIOError):
            near.recv(1)
        until_cut(device)
        assert near.recv(1) == b""
        near.sendall(b"on its way")
        timeout = near.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT)
        assert timeout == LINGER_TIMEOUT * 1000, "the kernel would go on sending for minutes"


def test_a_closed_descriptor_is_not_cut() -> None:
    gone = Descriptor(os.dup(0), 1)
    os.close(gone.fd)
    assert Cutter().cut([GlooDevice(gone, (gone,))]) == (0, 0)


@pytest.mark.parametrize("close_on_exec", [True, False])
def test_an_event_loop_with_the_same_kinds_of_descriptors_is_not_taken_for_gloo(close_on_exec: bool) -> None:
    before = gloo_devices().keys()
    reading, writing = os.pipe()
    with loopback() as (near, _), socket.create_server(("127.0.0.1", 0)) as listener, select.epoll() as loop:
        os.set_inheritable(loop.fileno(), not close_on_exec)
        for fd in (reading, listener.fileno(), near.fileno()):
            loop.register(fd, select.EPOLLIN)
        found = gloo_devices()
    os.close(reading)
    os.close(writing)
    assert not found.keys() - before


def test_the_scan_bears_descriptors_that_come_and_go() -> None:
    pair = Pair()
    expected = pair.devices().keys()
    stop = threading.Event()

    def churn() -> None:
        while not stop.is_set():
            with loopback() as (near, _), select.epoll() as loop:
                loop.register(near.fileno(), select.EPOLLIN)

    with futures.ThreadPoolExecutor(1) as threads:
        churning = threads.submit(churn)
        try:
            found = [pair.devices().keys() for _ in range(200)]
        finally:
            stop.set()
        churning.result(30)
    assert found == [expected] * 200
    assert pair.all_reduce() == [2.0, 2.0]
