"""A driver that takes a run over finds another process at the run's port."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
from collections.abc import Callable, Iterator

import pytest

from edriver.driver.run import taken_port
from edriver.driver.run.take_over import await_port_of_run
from edriver.driver.run.taken_port import RETRY_PERIOD, await_port, holder_of
from edriver.system.private_files import account_name


@pytest.fixture
def taken() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener


def waited(port: int, on_pause: Callable[[int], bool]) -> tuple[bool, int]:
    """Whether the port became free within 10 s, and how many pauses there were."""
    pauses: list[float] = []

    async def pause(seconds: float) -> bool:
        pauses.append(seconds)
        return on_pause(len(pauses))

    found = asyncio.run(await_port("127.0.0.1", port, 10.0, pause, lambda: sum(pauses)))
    assert set(pauses) <= {RETRY_PERIOD}
    return found, len(pauses)


def test_a_port_that_becomes_free_is_waited_for(taken: socket.socket, caplog: pytest.LogCaptureFixture) -> None:
    port = taken.getsockname()[1]

    def end_after_three(pauses: int) -> bool:
        if pauses == 3:
            taken.close()
        return False

    with caplog.at_level(logging.WARNING):
        assert waited(port, end_after_three) == (True, 3)
    assert len(caplog.messages) == 1
    assert f"port {port}, " in caplog.messages[0]
    assert f"process {os.getpid()} (" in caplog.messages[0]


def test_the_wait_has_a_bound(taken: socket.socket) -> None:
    assert waited(taken.getsockname()[1], lambda _: False) == (False, 10)


def test_an_operator_waits_no_longer(taken: socket.socket) -> None:
    assert waited(taken.getsockname()[1], lambda pauses: pauses == 2) == (False, 2)


def test_a_signal_that_arrives_while_a_free_port_is_looked_at_is_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> signal.Signals | None:
        loop = asyncio.get_running_loop()

        def free_after_a_signal(_address: str, _port: int) -> bool:
            signal.raise_signal(signal.SIGTERM)
            for _ in range(3):  # the loop reads of the signal in one of its rounds, and calls the handler in the next
                asyncio.run_coroutine_threadsafe(asyncio.sleep(0), loop).result(timeout=30)
            return False

        monkeypatch.setattr(taken_port, "is_taken", free_after_a_signal)
        return await await_port_of_run("127.0.0.1", 1, 10.0, loop.time)

    assert asyncio.run(story()) is signal.SIGTERM


def test_the_account_of_a_process_that_is_hidden_from_this_one(
    taken: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("psutil.net_connections", lambda _: [])
    assert holder_of(taken.getsockname()[1]) == f"a process of {account_name(os.geteuid())}"
