"""What Ray's autoscaler is asked for, and how the connection to Ray ends and comes back."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from edriver.discovery.sources import SourceContext
from edriver.driver.core.demand import Demand
from edriver.driver.engines.ray.broker import RayBroker
from edriver.driver.engines.ray.cluster import ray_source
from tests import needs
from tests.engines.ray.clusters import RayCluster, ray_cluster
from tests.process.running import BOUND

pytestmark = [
    pytest.mark.engines,
    pytest.mark.needs(needs.RAY),
]


def demand(slots: int) -> Demand:
    return Demand(slots=slots, needed=1, unused=())


@pytest.fixture(scope="module")
def cluster() -> Iterator[RayCluster]:
    with ray_cluster() as made:
        made.add(cpus=3)
        yield made


def test_the_autoscaler_is_asked_and_what_was_asked_is_taken_back(cluster: RayCluster) -> None:
    async def play() -> None:
        source = ray_source(SourceContext(f"{cluster.address},CPU=1", 1, BOUND))
        broker = RayBroker(source)
        try:
            await broker.reconcile(demand(5))  # there is no connection yet
            assert (await source.find()).total_slots == 3
            await broker.reconcile(demand(5))
            assert cluster.demand() == [{"CPU": 1.0}] * 5
            await broker.reconcile(demand(2))
            assert cluster.demand() == [{"CPU": 1.0}] * 2
        finally:
            await broker.close()

    asyncio.run(play())
    assert cluster.demand() == []


def test_a_client_that_was_killed_is_started_again(cluster: RayCluster) -> None:
    async def play() -> None:
        source = ray_source(SourceContext(f"{cluster.address},CPU=1", 1, BOUND))
        broker = RayBroker(source)
        try:
            await source.find()
            bridge = source.connection._bridge
            assert bridge is not None
            bridge.process.kill()
            assert source.connection._reading is not None
            await source.connection._reading
            assert (await source.find()).total_slots == 3
            await broker.reconcile(demand(4))
            assert cluster.demand() == [{"CPU": 1.0}] * 4
        finally:
            await broker.close()

    asyncio.run(play())
