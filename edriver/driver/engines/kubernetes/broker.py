"""Asks the cluster for agents' pods by the size of what starts them, and gives back what the run does not use."""

from __future__ import annotations

import asyncio
import base64
import json
import logging
from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol

from kubernetes.aio import client

from edriver.common.join_config import ENDED_KEY
from edriver.driver.engines.kubernetes import pod_state
from edriver.driver.engines.kubernetes.api import REQUEST_TIMEOUT, TROUBLE, body_of, close, sentence
from edriver.driver.engines.kubernetes.pods import AGENT_FILE
from edriver.driver.engines.kubernetes.scale import Scale
from edriver.driver.engines.kubernetes.sizing import hosts_for, wanted_size
from edriver.driver.engines.kubernetes.target import Target

_log = logging.getLogger("edriver.discovery")

FIRST_PAUSE, LONGEST_PAUSE = 2.0, 60.0
"""Seconds until a size that was refused is asked for again: the first time, and at the longest."""

CLOSE_TIMEOUT: Final = 10.0
"""Seconds that giving everything back may take."""


class Demand(Protocol):
    """What the run could use; see edriver.driver.launch.broker."""

    @property
    def slots(self) -> int: ...

    @property
    def needed(self) -> int: ...

    @property
    def unused(self) -> Sequence[str]: ...


class KubernetesBroker:
    """Keeps the number of pods at what the run can use.

    Args:
        api: a client of the API server, which `close` closes.
        namespace: where the run is.
        target: what starts the agents' pods.
        slots_per_host: slots of one pod.
        hosts: the names of the hosts that the run has.
        clock: seconds, monotonic.
        own_pod: the name of the driver's pod; empty: it runs in none.
        run_id: the run.
    """

    def __init__(
        self,
        api: client.ApiClient,
        namespace: str,
        target: Target,
        slots_per_host: int,
        hosts: Callable[[], Sequence[str]],
        clock: Callable[[], float],
        own_pod: str = "",
        run_id: str = "",
    ) -> None:
        self._api = api
        self._namespace = namespace
        self._target = target
        self._slots_per_host = slots_per_host
        self._hosts = hosts
        self._clock = clock
        self._own_pod = own_pod
        self._run_id = run_id
        self._scale = Scale(api, namespace, target)
        self._core = client.CoreV1Api(api)
        self._size: int | None = None
        self._quiet_until = 0.0
        self._pause = FIRST_PAUSE
        self._said = ""

    async def meet(self, demand: Demand) -> None:
        """Ask for as many pods as the run can use; never for fewer than it needs."""
        if self._clock() < self._quiet_until:
            return
        try:
            if self._size is None:
                self._size = await self._scale.read()
            used = {
                index
                for host in self._hosts()
                if host not in demand.unused and (index := self._index(host)) is not None
            }
            most, least = (hosts_for(slots, self._slots_per_host) for slots in (demand.slots, demand.needed))
            size = wanted_size(self._size, most, least, used)
            if size != self._size:
                await self._scale.write(size)
                _log.info("%s: asked for %s pods instead of %s", self._target, size, self._size)
                self._size = size
        except TROUBLE as error:
            self._back_off(sentence(error, f"scale {self._target}"))
        else:
            self._pause, self._said = FIRST_PAUSE, ""

    async def close(self) -> None:
        """The run has ended: give all pods back, and tell those that start late."""
        try:
            async with asyncio.timeout(CLOSE_TIMEOUT):
                if not await self._is_replaced():
                    await self._give_back()
        except TROUBLE as error:
            _log.warning("%s: its pods are left to end by themselves", sentence(error, f"scale {self._target} down"))
        finally:
            await close(self._api)

    async def _give_back(self) -> None:
        ended = json.dumps({ENDED_KEY: True, "run_id": self._run_id}).encode()
        body = {"data": {AGENT_FILE: base64.b64encode(ended).decode()}}
        how: dict[str, Any] = {"_content_type": "application/merge-patch+json", "_request_timeout": REQUEST_TIMEOUT}
        patch = self._core.patch_namespaced_secret_without_preload_content
        await body_of(await patch(self._target.secret, self._namespace, body, **how))
        if self._target.kind != "jobset":  # which ends with its driver
            await self._scale.write(0)

    async def _is_replaced(self) -> bool:
        """Whether another driver comes after this one: its pod was evicted, and the agents dial in again."""
        if self._target.kind == "job" or not self._own_pod:
            return False
        how: dict[str, Any] = {"field_selector": f"metadata.name={self._own_pod}", "_request_timeout": REQUEST_TIMEOUT}
        found = await self._core.list_namespaced_pod_without_preload_content(self._namespace, **how)
        return any(pod_state.is_disrupted(pod) for pod in (await body_of(found))["items"])

    def _index(self, host: str) -> int | None:
        return self._target.index(host)

    def _back_off(self, said: str) -> None:
        if said != self._said:
            _log.warning("%s; the run continues with the pods that it has", said)
        self._said = said
        self._quiet_until = self._clock() + self._pause
        self._pause = min(2 * self._pause, LONGEST_PAUSE)
