"""Asks the cluster for agents' pods by the size of what starts them, and gives back what the run does not use."""

from __future__ import annotations

import base64
import json
import logging
import os
import time
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Final

from kubernetes.aio import client

from edriver.common.join_config import ENDED_KEY
from edriver.driver.core.demand import Demand
from edriver.driver.engines.kubernetes import pod_state
from edriver.driver.engines.kubernetes.api import (
    REQUEST_TIMEOUT,
    TROUBLE,
    body_of,
    close,
    connect,
    namespace,
    sentence,
)
from edriver.driver.engines.kubernetes.hosts import KubernetesHosts
from edriver.driver.engines.kubernetes.pods import AGENT_FILE
from edriver.driver.engines.kubernetes.scale import ScaleClient
from edriver.driver.engines.kubernetes.target import Target
from edriver.driver.engines.pause import Pause
from edriver.driver.launch.broker import BrokerContext, BrokerError
from edriver.text.phrases import count_text

_log = logging.getLogger("edriver.driver")

POD_VARIABLE: Final = "POD_NAME"
"""The variable with the name of the driver's pod."""

FIRST_PAUSE, LONGEST_PAUSE = 2.0, 60.0
"""Seconds until a size that was refused is asked for again: the first time, and at the longest."""


class KubernetesBroker:
    """Keeps the number of pods at what the run can use.

    Args:
        namespace: where the run is.
        target: what starts the agents' pods.
        slots_per_host: slots of one pod.
        run_id: the run.
        own_pod: the name of the driver's pod; empty: it runs in none.
        connect: makes a client of the API server.
        clock: seconds, monotonic.
    """

    def __init__(
        self,
        namespace: str,
        target: Target,
        slots_per_host: int,
        run_id: str,
        own_pod: str = "",
        connect: Callable[[], Awaitable[client.ApiClient]] = connect,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._namespace = namespace
        self._target = target
        self._slots_per_host = slots_per_host
        self._run_id = run_id
        self._own_pod = own_pod
        self._connect = connect
        self._clock = clock
        self._api: client.ApiClient | None = None
        self._size: int | None = None
        self._pause = Pause(FIRST_PAUSE, LONGEST_PAUSE)
        self._trouble = ""

    @classmethod
    def of(cls, context: BrokerContext) -> KubernetesBroker:
        """The broker of a run with --kubernetes.

        Raises:
            ValueError: its hosts come from elsewhere.
        """
        if not isinstance(context.source, KubernetesHosts):
            raise ValueError("it works only with the hosts of --kubernetes KIND/NAME")
        where, pod = namespace(), os.environ.get(POD_VARIABLE, "")
        return cls(where, context.source.target, context.slots_per_host, context.run_id, pod)

    async def reconcile(self, demand: Demand) -> None:
        """Ask for as many pods as the run can use; never for fewer than it needs.

        Raises:
            BrokerError: the API server refuses, or cannot be reached.
        """
        if self._clock() < self._pause.until:
            raise BrokerError(self._trouble)  # the same sentence, which is printed once
        try:
            await self._meet(demand)
        except TROUBLE as error:
            self._pause.begin(self._clock())
            self._size = None
            reason = sentence(error, f"scale {self._target}")
            self._trouble = f"{reason}; the run continues with the pods that it has"
            raise BrokerError(self._trouble) from error
        self._pause.end()

    async def _meet(self, demand: Demand) -> None:
        scale = ScaleClient(await self._reached(), self._namespace, self._target)
        if self._size is None:
            self._size = await scale.read()
        in_use = {*demand.hosts} - {*demand.unused}
        used = [index for host in in_use if (index := self._target.index(host)) is not None]
        most, least = (hosts_for(slots, self._slots_per_host) for slots in (demand.slots, demand.needed))
        size = wanted_size(self._size, most, least, used)
        if size != self._size:
            await scale.write(size)
            _log.info("%s: asked for %s instead of %s", self._target, count_text(size, "pod"), self._size)
            self._size = size

    async def close(self) -> None:
        """The run has ended: give all pods back, and tell those that start late.

        Raises:
            BrokerError: the API server refuses, or cannot be reached.
        """
        try:
            if not await self._is_replaced():
                await self._give_back()
        except TROUBLE as error:
            name = f"kubectl scale --replicas 0 or kubectl delete {self._target.kind} {self._target.name}"
            raise BrokerError(f"{sentence(error, f'scale {self._target} down')}: {name}") from error
        finally:
            if self._api is not None:
                await close(self._api)

    async def _reached(self) -> client.ApiClient:
        if self._api is None:
            self._api = await self._connect()
        return self._api

    async def _give_back(self) -> None:
        ended = json.dumps({ENDED_KEY: True, "run_id": self._run_id}).encode()
        body = {"data": {AGENT_FILE: base64.b64encode(ended).decode()}}
        how: dict[str, Any] = {"_content_type": "application/merge-patch+json", "_request_timeout": REQUEST_TIMEOUT}
        api = await self._reached()
        patch = client.CoreV1Api(api).patch_namespaced_secret_without_preload_content
        await body_of(await patch(self._target.secret, self._namespace, body, **how))
        if self._target.kind != "jobset":  # which ends with its driver
            await ScaleClient(api, self._namespace, self._target).write(0)

    async def _is_replaced(self) -> bool:
        """Whether another driver comes after this one: its pod was evicted, and the agents dial in again."""
        if self._target.kind == "job" or not self._own_pod:
            return False
        how: dict[str, Any] = {"field_selector": f"metadata.name={self._own_pod}", "_request_timeout": REQUEST_TIMEOUT}
        core = client.CoreV1Api(await self._reached())
        found = await core.list_namespaced_pod_without_preload_content(self._namespace, **how)
        return any(pod_state.is_disrupted(pod) for pod in (await body_of(found))["items"])


def wanted_size(size: int, most: int, least: int, used: Iterable[int]) -> int:
    """The number of pods to request.

    A controller ends the pods with the highest indexes when there are to be fewer. So what can be given back is the end
    of the row, up to the last pod that is used.

    Args:
        size: the number requested now.
        most: the maximum number that the run can use.
        least: the minimum number that it needs to train.
        used: the indexes of the pods that it uses.
    """
    if size < most:
        return most
    kept = max(used, default=-1) + 1
    return min(size, max(most, least, kept))


def hosts_for(slots: int, slots_per_host: int) -> int:
    """The number of hosts that have this many slots."""
    return -(-slots // slots_per_host)
