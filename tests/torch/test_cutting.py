"""Connections are cut between messages, and stay open for the peer."""

from __future__ import annotations

import os
import select
import socket
import threading

import pytest
import torch

from edriver.system.sockets import TcpProgress, tcp_progress
from edriver.worker.backend.gloo.cutting import (
    LINGER_TIMEOUT,
    MESSAGE_BOUND,
    QUIET,
    QUIET_WHOLE,
    STALL_BOUND,
    Cut,
    Cutter,
    is_under_way,
)
from edriver.worker.backend.gloo.sever import Descriptor, GlooDevice
from tests.torch.gloo_pair import Pair, loopback
from tests.waiting import until

ESTABLISHED, SYN_SENT, FIN_WAIT2, CLOSE_WAIT = 1, 2, 5, 8
LARGE = 2**25
"""Bytes: more than a connection's buffers hold."""


def device_of(connection: socket.socket, writing: bool = False) -> GlooDevice:
    fd = connection.fileno()
    descriptor = Descriptor(fd, os.fstat(fd).st_ino, armed=True, writing=writing)
    return GlooDevice(descriptor, (descriptor,))


def cut_by(cutter: Cutter, device: GlooDevice) -> None:
    until(lambda: not cutter.cut([device]).under_way)


def lingers() -> bool:
    return any(thread.name == "edriver-linger" for thread in threading.enumerate())


class Clock:
    """Stands still until it is moved."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.mark.parametrize(
    ("state", "writing", "heard_ago", "acknowledged", "still_for", "asked_for", "whole", "expected"),
    [
        (ESTABLISHED, True, 9.0, 1, 0.0, 0.0, False, True),
        (ESTABLISHED, True, 9.0, 1, STALL_BOUND, 1.0, True, False),
        (ESTABLISHED, False, QUIET / 2, 1, 9.0, 0.0, False, True),
        (ESTABLISHED, False, QUIET, 1, 9.0, 0.0, False, False),
        (ESTABLISHED, False, QUIET_WHOLE, 1, 9.0, 0.0, True, True),
        (ESTABLISHED, False, QUIET, 1, 9.0, 1.0, True, True),
        (ESTABLISHED, False, QUIET_WHOLE, 1, 9.0, QUIET_WHOLE, True, False),
        (ESTABLISHED, True, 0.0, 1, 0.0, MESSAGE_BOUND, True, False),
        (ESTABLISHED, False, 0.0, 0, 9.0, 0.0, True, False),
        (SYN_SENT, True, 9.0, 1, 0.0, 0.0, False, False),
        (CLOSE_WAIT, True, 0.0, 1, 0.0, 0.0, False, False),
    ],
    ids=[
        "written",
        "stalled",
        "arriving",
        "quiet",
        "about to begin",
        "paused",
        "quiet and whole",
        "endless",
        "not told",
        "connecting",
        "closed by the peer",
    ],
)
def test_whether_a_message_is_under_way(
    state: int,
    writing: bool,
    heard_ago: float,
    acknowledged: int,
    still_for: float,
    asked_for: float,
    whole: bool,
    expected: bool,
) -> None:
    progress = TcpProgress(state, heard_ago, acknowledged)
    assert is_under_way(writing, progress, still_for, asked_for, whole) is expected


def test_the_system_tells_how_far_a_connection_is() -> None:
    with loopback() as (near, far):
        near.sendall(b"four")
        assert far.recv(4) == b"four"
        until(lambda: tcp_progress(near).acknowledged >= 4)
        assert tcp_progress(near).established
        until(lambda: tcp_progress(far).heard_ago >= QUIET_WHOLE)
        far.shutdown(socket.SHUT_WR)
        until(lambda: tcp_progress(near).closed_by_peer)
        until(lambda: tcp_progress(far).state == FIN_WAIT2)
        assert not tcp_progress(far).closed_by_peer


def test_a_device_on_which_a_message_is_being_written_is_left_until_the_message_stands_still() -> None:
    clock = Clock()
    cutter = Cutter(clock)
    with loopback() as (near, far), loopback() as (idle, other):
        for connection in (near, idle):
            connection.sendall(b"x")
        assert far.recv(1) + other.recv(1) == b"xx"
        until(lambda: min(tcp_progress(one).heard_ago for one in (near, idle)) >= QUIET_WHOLE)
        until(lambda: tcp_progress(near).acknowledged >= 1)
        writing, listener = device_of(near, writing=True), device_of(idle)
        both = GlooDevice(listener.listener, writing.connections + listener.connections)
        cutter.cut([both])
        clock.now = STALL_BOUND / 2
        assert cutter.cut([both]) == Cut(waiting=0, under_way=1), "the idle one, too, is left"
        near.sendall(b"y")
        until(lambda: tcp_progress(near).acknowledged >= 2)
        assert cutter.cut([both]).under_way == 1
        clock.now += STALL_BOUND * 0.9
        assert cutter.cut([both]).under_way == 1, "it has moved since"
        clock.now += STALL_BOUND
        assert cutter.cut([both]) == Cut(waiting=2, under_way=0)
        assert near.recv(1) + idle.recv(1) == b""


def test_a_group_that_a_loss_has_broken_is_cut_at_once_though_the_dead_member_seems_connected() -> None:
    cutter = Cutter(Clock(), groups_stay_whole=False)
    with loopback() as (near, far):
        far.sendall(b"x")
        assert near.recv(1) == b"x"
        until(lambda: tcp_progress(near).heard_ago >= QUIET)
        assert cutter.cut([device_of(near)]) == Cut(waiting=1, under_way=0)


def test_what_was_sent_before_the_cut_arrives_though_bytes_were_left_unread() -> None:
    cutter = Cutter()
    with loopback() as (near, far):
        device = device_of(near)
        near.setblocking(False)
        sent = near.send(bytes(LARGE))
        far.sendall(b"unread")
        cut_by(cutter, device)
        near.close()
        far.settimeout(30)
        received = 0
        while data := far.recv(2**20):
            received += len(data)
        assert received == sent
    until(lambda: not lingers())


def test_what_the_peer_still_sends_is_read_away_and_not_answered_with_a_reset() -> None:
    clock = Clock()
    cutter = Cutter(clock)
    with loopback() as (near, far):
        cutter.cut([device_of(near)])
        clock.now = QUIET_WHOLE
        cut_by(cutter, device_of(near))
        near.close()
        far.settimeout(30)
        far.sendall(bytes(LARGE))
        for _ in range(int(LINGER_TIMEOUT / QUIET_WHOLE / 2)):
            clock.now += QUIET_WHOLE
            if select.select([far], [], [], 0.5)[0]:
                break
        assert far.recv(1) == b"", "the peer learns of the end, though the connection is still kept"
    until(lambda: not lingers())


def test_a_connection_that_gloo_still_reads_is_left_to_it() -> None:
    cutter = Cutter()
    with loopback() as (near, far):
        far.sendall(b"x")
        cut_by(cutter, device_of(near))
        far.sendall(b"y")
        until(lambda: tcp_progress(near).heard_ago >= QUIET_WHOLE)
        assert near.recv(2) == b"xy"
        near.close()
    until(lambda: not lingers())


def test_a_message_between_members_that_live_arrives_before_their_connections_are_cut() -> None:
    clock = Clock()
    cutter = Cutter(clock)
    pair = Pair()
    assert pair.all_reduce() == [2.0, 2.0]
    tensors = [torch.ones(LARGE // 4), torch.zeros(LARGE // 4)]
    works = [pair.broadcast(rank, tensors[rank]) for rank in range(2)]
    while not all(work.is_completed() for work in works):
        cutter.cut(pair.devices().values())
    for work in works:
        work.wait()
    assert bool((tensors[1] == 1).all())
    clock.now = QUIET_WHOLE
    until(lambda: not cutter.cut(pair.devices().values()).under_way)
    with pytest.raises(RuntimeError):
        pair.all_reduce()
