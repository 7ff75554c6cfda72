"""A real agent whose driver is cut off, silent, gone or succeeded: what it loses, and when it ends."""

from __future__ import annotations

import asyncio
import os
import signal
import tempfile
from pathlib import Path

import pytest

from edriver.v1 import notification_pb2, rounds_pb2
from tests.process.fake_driver import (
    AMPLE,
    FAKE_WORKER,
    FORKS_A_SLEEPER,
    AgentProcess,
    Host,
    end_of,
    finish,
    host,
    in_loop,
    pidfd_of,
    round_of,
    script,
)


@in_loop
async def test_a_cut_stream_loses_nothing_and_repeats_nothing() -> None:
    count = 600
    async with host(FAKE_WORKER) as on:
        on.driver.start_worker(1)
        await on.driver.waiting()
        for number in range(1, count + 1):
            on.driver.notify(1, notification_pb2.Notice(stop_at=notification_pb2.StopAt(number=number)))
        for reached in range(100, count, 100):
            await on.driver.until(lambda reached=reached: len(on.driver.reports("boundary_reached")) >= reached)  # type: ignore[misc]
            on.driver.cut()
        await on.driver.until(lambda: len(on.driver.reports("boundary_reached")) >= count)
        numbers = [report.boundary_reached.number for report in on.driver.reports("boundary_reached")]
        assert numbers == list(range(1, count + 1))
        assert len(on.driver.hellos) > 1
        await finish(on)


@in_loop
async def test_workers_end_with_the_lease_of_a_driver_that_is_gone() -> None:
    async with host(script(FORKS_A_SLEEPER), driver_lease=1) as on:
        on.driver.start_worker(1)
        ends = [pidfd_of(pid) for pid in await on.driver.numbers(2)]
        await on.server.stop(None)
        assert await on.agent.exit_code() == 1
        for end in ends:
            await end_of(end)


@in_loop
async def test_a_driver_whose_address_is_free_is_not_awaited_for_its_lease(capfd: pytest.CaptureFixture[str]) -> None:
    async with host(FAKE_WORKER) as on:
        on.driver.start_worker(1)
        await on.driver.waiting()
        await on.server.stop(None)
        assert await on.agent.exit_code() == 1
    assert "the driver is gone: nothing listens at its address; stopping this host's workers" in capfd.readouterr().err


@in_loop
async def test_workers_end_with_the_lease_of_a_driver_that_is_silent() -> None:
    async with host(script(FORKS_A_SLEEPER), driver_lease=1) as on:
        on.driver.start_worker(1)
        ends = [pidfd_of(pid) for pid in await on.driver.numbers(2)]
        on.driver.quiet = True
        assert await on.agent.exit_code() == 1
        for end in ends:
            await end_of(end)


@in_loop
async def test_a_driver_that_has_given_the_agent_up_ends_it() -> None:
    async with host(script(FORKS_A_SLEEPER)) as on:
        on.driver.start_worker(1)
        ends = [pidfd_of(pid) for pid in await on.driver.numbers(2)]
        on.driver.refuses = True
        on.driver.cut()
        assert await on.agent.exit_code() == 1
        for end in ends:
            await end_of(end)


def test_an_agent_whose_driver_is_gone_before_it_could_dial(capfd: pytest.CaptureFixture[str]) -> None:
    """It need not wait as long as for an answer: a driver that has started it was there."""
    folder = Path(tempfile.mkdtemp(prefix="ed"))  # short: sockets lie in it
    agent = AgentProcess(folder / "driver.sock", folder)
    try:
        assert asyncio.run(asyncio.wait_for(agent.exit_code(), AMPLE)) == 1
    finally:
        agent.kill()
    assert "the driver is gone: nothing listens at its address; stopping this host's workers" in capfd.readouterr().err


async def train(on: Host, workers: int) -> int:
    """Start so many workers, of which 1 and 2 are in a round; returns the process id of worker 1."""
    for slot in range(workers):
        on.driver.start_worker(slot + 1, slot)
    await on.driver.waiting(workers)
    members = [rounds_pb2.Seat(worker_id=number, rank=number - 1) for number in (1, 2)]
    on.driver.send(assign_round=round_of(*members))
    await on.driver.until(lambda: on.driver.texts().count(b"placed") == 2)
    return next(int(line.text) for line in on.driver.lines if line.worker_id == 1)


@in_loop
@pytest.mark.parametrize("first", ["driver", "worker"])
async def test_without_a_driver_members_of_a_round_that_has_lost_one_are_freed(first: str) -> None:
    async with host(FAKE_WORKER) as on:
        first_worker = await train(on, workers=3)
        on.driver.away = first == "driver"
        os.kill(first_worker, signal.SIGKILL)
        if first == "worker":
            await on.driver.exit_of(1)
            on.driver.away = True
        on.driver.cut()
        await on.driver.until(lambda: b"freed" in on.driver.texts())
        on.driver.away = False
        assert (await on.driver.exit_of(1)).code == -signal.SIGKILL
        assert [line.worker_id for line in on.driver.lines if line.text == b"freed"] == [2]
        await finish(on)


@in_loop
async def test_with_a_driver_it_alone_aborts_rounds() -> None:
    async with host(FAKE_WORKER, worker_lease=4) as on:
        first_worker = await train(on, workers=2)
        os.kill(first_worker, signal.SIGKILL)
        await on.driver.exit_of(1)
        await on.driver.until(lambda: b"lives" in on.driver.texts())  # the agent has looked at its workers since
        assert b"freed" not in on.driver.texts()
        await finish(on)


@in_loop
async def test_an_older_driver_is_not_followed_once_another_has_taken_over() -> None:
    async with host(script("print('hello')")) as on:
        await on.driver.until(lambda: bool(on.driver.hellos))
        for number, streams in ((3, 2), (2, 4)):
            on.driver.welcome.incarnation = number
            on.driver.cut()
            await on.driver.until(lambda streams=streams: len(on.driver.hellos) >= streams)  # type: ignore[misc]
        on.driver.start_worker(1)
        streams = len(on.driver.hellos)
        await on.driver.until(lambda: len(on.driver.hellos) >= streams + 2)  # both have had the order in them
        assert on.driver.messages == []
        on.driver.welcome.incarnation = 3
        assert (await on.driver.exit_of(1)).code == 0
        await on.driver.until(lambda: on.driver.texts() == [b"hello"])
        await finish(on)
