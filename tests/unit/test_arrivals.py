from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine

import pytest

from edriver.discovery.hosts import Host
from edriver.driver.rpc.dial_in_hosts import Arrivals


def soon(work: Callable[[Arrivals], Coroutine[None, None, None]]) -> None:
    async def bounded() -> None:
        await asyncio.wait_for(work(Arrivals()), 20)

    asyncio.run(bounded())


async def names(arrivals: Arrivals) -> list[Host]:
    return list(await arrivals.find())


def test_a_host_is_there_from_its_arrival_until_its_agent_is_gone() -> None:
    async def work(arrivals: Arrivals) -> None:
        place = arrivals.arrive("b", 2)
        arrivals.arrive("a", 1)
        assert await names(arrivals) == [Host("b", 2), Host("a", 1)]
        assert arrivals.admit("b", 7)
        assert await place == 7
        arrivals.leave("b", 7)
        assert await names(arrivals) == [Host("a", 1)]

    soon(work)


def test_nobody_is_let_in_who_does_not_wait() -> None:
    async def work(arrivals: Arrivals) -> None:
        assert not arrivals.admit("a", 1)
        arrivals.arrive("a", 1)
        assert arrivals.admit("a", 2)
        assert not arrivals.admit("a", 3)

    soon(work)


def test_one_that_has_come_again_stays_when_its_predecessor_is_found_to_be_gone() -> None:
    async def work(arrivals: Arrivals) -> None:
        arrivals.arrive("a", 1)
        arrivals.admit("a", 1)
        arrivals.leave("a", 1)
        place = arrivals.arrive("a", 1)
        arrivals.leave("a", 2)  # the core had asked for an agent in between, and none was there
        assert arrivals.admit("a", 3)
        assert await place == 3

    soon(work)


def test_one_that_waits_no_longer_is_gone() -> None:
    async def work(arrivals: Arrivals) -> None:
        arrivals.arrive("a", 1).cancel()
        assert not arrivals.admit("a", 1)
        arrivals.leave("a")
        assert await names(arrivals) == []

    soon(work)


@pytest.mark.parametrize(
    ("host", "slots", "sentence"),
    [
        pytest.param("", 1, "is '', which is no host's name", id="no-name"),
        pytest.param("a b", 1, "is 'a b', which is no host's name", id="a-name-of-two-words"),
        pytest.param("-v", 1, "is '-v', which is no host's name", id="an-option"),
        pytest.param("fe80::1%\x1b[2J", 1, "no host's name", id="a-strange-scope"),
        pytest.param("a", 0, "of host a is 0: a host has 1 to 4096 slots", id="no-slot"),
        pytest.param("a", 4097, "of host a is 4097: a host has 1 to 4096 slots", id="too-many-slots"),
    ],
)
def test_what_is_no_host(host: str, slots: int, sentence: str) -> None:
    async def work(arrivals: Arrivals) -> None:
        with pytest.raises(ValueError, match=sentence):
            arrivals.arrive(host, slots)

    soon(work)


def test_all_hosts_together_have_a_bound() -> None:
    async def work(arrivals: Arrivals) -> None:
        for number in range(16):
            arrivals.arrive(f"h{number}", 4096)
        with pytest.raises(ValueError, match="all hosts would have 65537 slots: a run has 65536 at most"):
            arrivals.arrive("h16", 1)

    soon(work)


def test_a_name_is_one_hosts() -> None:
    async def work(arrivals: Arrivals) -> None:
        arrivals.arrive("a", 1)
        with pytest.raises(KeyError):
            arrivals.arrive("a", 1)

    soon(work)
