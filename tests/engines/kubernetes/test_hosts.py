"""The hosts of a run, with the real client on a fake API server: what a pod's change or end says of them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from kubernetes.aio import client

from edriver.driver.engines.kubernetes.hosts import KubernetesHosts
from edriver.driver.engines.kubernetes.target import Target
from edriver.model.hosts import Host, HostSet
from tests.engines.kubernetes.fake_api import FakeApi, Object, serving
from tests.process.running import BOUND
from tests.waiting import until_async


class DialledIn:
    """Two hosts, whose pods have the same names."""

    async def find(self) -> HostSet:
        return HostSet((Host("a-agents-0", 1), Host("a-agents-1", 1)))


LABELS = {
    "batch.kubernetes.io/job-name": "a-agents",
    "app.kubernetes.io/instance": "a",
    "app.kubernetes.io/component": "agent",
}


def pod(number: int, phase: str = "Running", **metadata: str) -> Object:
    name = f"a-agents-{number}"
    return {"metadata": {"name": name, "labels": LABELS, **metadata}, "spec": {}, "status": {"phase": phase}}


class Scene:
    """Hosts that follow two pods.

    Attributes:
        ends: the hosts whose pods have ended, and why.
        news: grows when other hosts than before are about to be lost.
    """

    def __init__(self, api: FakeApi, hosts: KubernetesHosts, news: list[None]) -> None:
        self.api = api
        self.news = news
        self.ends: dict[str, str] = {}
        self._hosts = hosts
        hosts.watch_ends(self.ends.__setitem__)

    async def become(self, *wanted: str) -> None:
        """Wait until the hosts are these."""
        while [host.name for host in await self._hosts.find()] != [*wanted]:  # noqa: ASYNC110
            await asyncio.sleep(0.01)

    async def gives_notice(self, wanted: dict[str, float | None]) -> None:
        """Wait until these are the hosts, with the seconds that are left to them; it is second 1000."""
        while {host.name: host.leaving for host in await self._hosts.find()} != wanted:  # noqa: ASYNC110
            await asyncio.sleep(0.01)

    async def until(self, holds: Callable[[], bool]) -> None:
        """Wait for something: the API server announces nothing here."""
        await until_async(holds)

    async def followed(self) -> None:
        """Wait until the pods are watched."""
        await self._hosts.find()
        await self.until(lambda: ("watch", "pods", "") in self.api.asked)


def play(target: str, scene: Callable[[Scene], Awaitable[None]]) -> None:
    async def run() -> None:
        api = FakeApi([{"apiGroups": [""], "resources": ["pods", "nodes"], "verbs": ["list", "watch"]}])
        for number in range(2):
            await api.put("pods", pod(number))
        async with serving(api) as url:
            reached = client.ApiClient(client.Configuration(host=url))

            async def connect() -> client.ApiClient:
                return reached

            news: list[None] = []
            hosts = KubernetesHosts(
                Target.of(target), DialledIn(), "default", connect, lambda: 1000.0, lambda: news.append(None)
            )
            try:
                async with asyncio.timeout(BOUND):
                    await scene(Scene(api, hosts, news))
            finally:
                if hosts._following is not None:
                    hosts._following.cancel()
                    await asyncio.wait({hosts._following})

    asyncio.run(run())


def test_notice_is_given_of_a_host_whose_pod_is_about_to_end() -> None:
    async def scene(on: Scene) -> None:
        await on.followed()
        await on.api.put("pods", pod(1, deletionTimestamp="1970-01-01T00:18:20Z"))
        await on.gives_notice({"a-agents-0": None, "a-agents-1": 100.0})
        assert len(on.news) == 1, "the run is told, and does not have to ask first"
        await on.api.put("pods", pod(1))
        await on.gives_notice({"a-agents-0": None, "a-agents-1": None})
        assert len(on.news) == 2
        await on.api.put("pods", pod(1, "Failed"))
        await on.become("a-agents-0")

    play("job/a-agents", scene)


def test_a_watch_that_is_too_old_begins_with_a_list() -> None:
    async def scene(on: Scene) -> None:
        await on.followed()
        await on.api.forget_history()
        await on.until(lambda: on.api.asked.count(("list", "pods", "")) == 2)
        await on.api.put("pods", pod(0, "Failed"))
        await on.become("a-agents-1")

    play("job/a-agents", scene)


@pytest.mark.parametrize(
    ("target", "ends"),
    [
        pytest.param("job/a-agents", {"a-agents-0": "its pod is gone"}, id="job"),
        pytest.param("statefulset/a-agents", {}, id="its-successor-has-its-name"),
    ],
)
def test_a_pod_that_is_gone_ends_its_host(target: str, ends: dict[str, str]) -> None:
    async def scene(on: Scene) -> None:
        await on.followed()
        await on.api.delete("pods", "a-agents-0")
        await on.api.put("pods", pod(1, "Failed"))
        await on.until(lambda: "a-agents-1" in on.ends)
        assert on.ends == {**ends, "a-agents-1": "its pod has ended: Failed"}

    play(target, scene)
