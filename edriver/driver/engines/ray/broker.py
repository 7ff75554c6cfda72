"""Asks Ray's autoscaler for as many workers' resources as the run can use, and takes that back in the end."""

from __future__ import annotations

from typing import Final

from edriver.driver.core.demand import Demand
from edriver.driver.engines.ray.cluster import RayCluster, cluster_in_use
from edriver.driver.engines.ray.connection import RayError
from edriver.driver.launch.broker import BrokerContext, BrokerError

MAX_ASKED: Final = 4096
"""The most workers that Ray is asked for: a run without --max-np could use any number."""


class RayBroker:
    """Tells the autoscaler what the run can use, and has the run take no more of the nodes that there are.

    The request stands for all of the run's workers, those that it has included; nodes that it does not cover the
    autoscaler takes back on its own, once they are idle.

    Args:
        cluster: the cluster.
    """

    def __init__(self, cluster: RayCluster) -> None:
        self._cluster = cluster
        self._asked = (0, 0)

    async def reconcile(self, demand: Demand, /) -> None:
        """Ask for that, unless it has been asked for already over this connection.

        Raises:
            BrokerError: Ray refuses, or does not answer.
        """
        self._cluster.want(demand.slots, demand.unused)
        wanted = (min(demand.slots, MAX_ASKED), self._cluster.connection.number)
        if wanted == self._asked or not self._cluster.connection.open:
            return
        try:
            await self._cluster.connection.call("demand", bundles=[self._cluster.resources] * wanted[0])
        except RayError as error:
            raise BrokerError(f"Ray's autoscaler could not be asked: {error}") from None
        self._asked = wanted

    async def close(self) -> None:
        """Take back what was asked for, and leave Ray."""
        await self._cluster.connection.close()


def ray_broker(_: BrokerContext) -> RayBroker:
    """The broker of the cluster that the run's source has found.

    Raises:
        AgentLaunchError: it has found none.
    """
    return RayBroker(cluster_in_use())
