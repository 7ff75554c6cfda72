from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine

import pytest

from edriver.discovery.poll_filter import REMOVAL_POLLS
from edriver.driver.agents.dial_in_hosts import DialInHosts
from edriver.model.hosts import Host


def soon(work: Callable[[DialInHosts], Coroutine[None, None, None]]) -> None:
    async def bounded() -> None:
        await asyncio.wait_for(work(DialInHosts()), 20)

    asyncio.run(bounded())


async def names(dial_in_hosts: DialInHosts) -> list[Host]:
    return list(await dial_in_hosts.find())


def test_a_host_is_there_from_its_arrival_until_its_agent_is_gone() -> None:
    async def work(dial_in_hosts: DialInHosts) -> None:
        place = dial_in_hosts.register("b", 2)
        dial_in_hosts.register("a", 1)
        assert await names(dial_in_hosts) == [Host("b", 2), Host("a", 1)]
        assert dial_in_hosts.admit("b", 7)
        assert await place == 7
        dial_in_hosts.leave("b", 7)
        assert await names(dial_in_hosts) == [Host("a", 1)]

    soon(work)


def test_an_answer_is_made_once_until_something_changes() -> None:
    async def work(dial_in_hosts: DialInHosts) -> None:
        dial_in_hosts.register("a", 1)
        first = await dial_in_hosts.find()
        assert await dial_in_hosts.find() is first
        dial_in_hosts.resume("b", 2, 5)
        assert await names(dial_in_hosts) == [Host("a", 1), Host("b", 2)]
        dial_in_hosts.register("c", 3)
        assert await names(dial_in_hosts) == [Host("a", 1), Host("b", 2), Host("c", 3)]
        dial_in_hosts.leave("a")
        assert await names(dial_in_hosts) == [Host("b", 2), Host("c", 3)]

    soon(work)


def test_only_a_host_that_waits_is_admitted() -> None:
    async def work(dial_in_hosts: DialInHosts) -> None:
        assert not dial_in_hosts.admit("a", 1)
        dial_in_hosts.register("a", 1)
        assert dial_in_hosts.admit("a", 2)
        assert not dial_in_hosts.admit("a", 3)

    soon(work)


def test_a_host_that_registered_again_stays_when_its_former_agent_is_lost() -> None:
    async def work(dial_in_hosts: DialInHosts) -> None:
        dial_in_hosts.register("a", 1)
        dial_in_hosts.admit("a", 1)
        dial_in_hosts.leave("a", 1)
        place = dial_in_hosts.register("a", 1)
        dial_in_hosts.leave("a", 2)  # the core had asked for an agent in between, and none was there
        assert dial_in_hosts.admit("a", 3)
        assert await place == 3

    soon(work)


def test_a_host_that_waits_no_longer_is_forgotten() -> None:
    async def work(dial_in_hosts: DialInHosts) -> None:
        dial_in_hosts.register("a", 1).cancel()
        assert not dial_in_hosts.admit("a", 1)
        dial_in_hosts.leave("a")
        assert await names(dial_in_hosts) == []

    soon(work)


@pytest.mark.parametrize(
    ("host", "slots", "sentence"),
    [
        pytest.param("", 1, "is '', which is not a host name", id="no-name"),
        pytest.param("a b", 1, "is 'a b', which is not a host name", id="a-name-of-two-words"),
        pytest.param("-v", 1, "is '-v', which is not a host name", id="an-option"),
        pytest.param("fe80::1%\x1b[2J", 1, "not a host name", id="a-strange-scope"),
        pytest.param("a", 0, "of host a is 0: a host has 1 to 4096 slots", id="no-slot"),
        pytest.param("a", 4097, "of host a is 4097: a host has 1 to 4096 slots", id="too-many-slots"),
    ],
)
def test_what_is_no_host(host: str, slots: int, sentence: str) -> None:
    async def work(dial_in_hosts: DialInHosts) -> None:
        with pytest.raises(ValueError, match=sentence):
            dial_in_hosts.register(host, slots)

    soon(work)


def test_all_hosts_together_have_a_bound() -> None:
    async def work(dial_in_hosts: DialInHosts) -> None:
        for number in range(16):
            dial_in_hosts.register(f"h{number}", 4096)
        with pytest.raises(ValueError, match="all hosts together would have 65537 slots: a run has 65536 at most"):
            dial_in_hosts.register("h16", 1)

    soon(work)


def test_a_second_host_of_the_same_name_is_refused() -> None:
    async def work(dial_in_hosts: DialInHosts) -> None:
        dial_in_hosts.register("a", 1)
        with pytest.raises(KeyError):
            dial_in_hosts.register("a", 1)

    soon(work)


def test_a_successor_is_listed_once_the_run_has_forgotten_the_host_that_it_let_go() -> None:
    async def work(dial_in_hosts: DialInHosts) -> None:
        dial_in_hosts.register("a", 1)
        dial_in_hosts.admit("a", 1)
        dial_in_hosts.dismissed(1)
        dial_in_hosts.leave("a", 1)
        dial_in_hosts.register("a", 2)
        assert [await names(dial_in_hosts) for _ in range(REMOVAL_POLLS + 1)] == [[], [], [Host("a", 2)]]

    soon(work)


def test_one_that_has_crashed_is_listed_as_soon_as_it_is_back() -> None:
    async def work(dial_in_hosts: DialInHosts) -> None:
        dial_in_hosts.register("a", 1)
        dial_in_hosts.admit("a", 1)
        dial_in_hosts.leave("a", 1)
        dial_in_hosts.register("a", 1)
        assert await names(dial_in_hosts) == [Host("a", 1)]

    soon(work)


def test_news_of_hosts_ends_the_sleep_that_is_on_or_the_next_one() -> None:
    async def work(dial_in_hosts: DialInHosts) -> None:
        sleeping = asyncio.create_task(dial_in_hosts.sleep(600))
        await asyncio.sleep(0)
        dial_in_hosts.wake()
        await sleeping
        dial_in_hosts.wake()
        await dial_in_hosts.sleep(600)

    soon(work)
