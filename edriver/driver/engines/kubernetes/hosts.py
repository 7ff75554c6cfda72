"""The hosts of a run on Kubernetes: those that have dialled in, but for those whose pods are about to end.

The API server takes hosts away, it does not provide them: an agent has proved by its token that it belongs to the run.
So a run continues, and grows, while the API server is gone.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from typing import Any

from kubernetes.aio import client

from edriver.discovery.errors import DiscoveryError
from edriver.discovery.sources import HostSource, SourceContext
from edriver.driver.engines.kubernetes import api, pod_state
from edriver.driver.engines.kubernetes.target import Target
from edriver.driver.engines.kubernetes.watching import ObjectWatch
from edriver.model.hosts import HostSet

_log = logging.getLogger("edriver.discovery")


class KubernetesHosts:
    """A HostSource. It begins to follow the pods when it is first asked.

    Args:
        target: what starts the agents' pods.
        dialled_in: the hosts that have dialled in.
        namespace: where the pods are.
        connect: makes a client of the API server.
        clock: seconds since the epoch.
        changed: called when other hosts than before are about to be lost.

    Attributes:
        target: see there.
    """

    def __init__(
        self,
        target: Target,
        dialled_in: HostSource,
        namespace: str,
        connect: Callable[[], Awaitable[client.ApiClient]] = api.connect,
        clock: Callable[[], float] = time.time,
        changed: Callable[[], None] = lambda: None,
    ) -> None:
        self.target = target
        self._dialled_in = dialled_in
        self._namespace = namespace
        self._connect = connect
        self._clock = clock
        self._changed = changed
        self._following: asyncio.Task[None] | None = None
        self._pods: ObjectWatch | None = None
        self._nodes: ObjectWatch | None = None
        self._on_end: Callable[[str, str], None] = lambda _host, _reason: None
        self._leaving: dict[str, str] = {}
        self._lost_at: dict[str, float] = {}
        self._troubles: dict[str, str] = {}

    @classmethod
    def of(cls, context: SourceContext) -> KubernetesHosts:
        """`--kubernetes KIND/NAME`, and `--discovery kubernetes=KIND/NAME` beside --hosts-dial-in.

        Raises:
            DiscoveryError: it is not such a name, or no hosts dial in.
        """
        if context.dialled_in is None:
            raise DiscoveryError("its hosts dial in: give --kubernetes KIND/NAME instead")
        try:
            target = Target.of(context.argument)
        except ValueError as error:
            raise DiscoveryError(str(error)) from None
        return cls(target, context.dialled_in, api.namespace(), changed=context.changed)

    def watch_ends(self, on_end: Callable[[str, str], None]) -> None:
        """Have it called with each host whose pod has ended, and why."""
        self._on_end = on_end

    async def find(self) -> HostSet:
        """The hosts that have dialled in and whose pods have not ended; with notice of those that are about to end.

        Raises:
            UnusableSourceError: no API server is known here.
        """
        if self._following is None:
            found = await self._connect()
            self._following = asyncio.create_task(self._follow(found))
        hosts, lost_at, now = await self._dialled_in.find(), self._lost_at, self._clock()
        leaving = {name: max(0.0, lost_at[name] - now) if name in lost_at else None for name in hosts.names}
        staying = (host for host in hosts if host.name not in self._leaving or host.name in lost_at)
        return HostSet(tuple(replace(host, leaving=leaving[host.name]) for host in staying))

    async def _follow(self, found: client.ApiClient) -> None:
        core = client.CoreV1Api(found)
        pods = partial(
            core.list_namespaced_pod_without_preload_content, self._namespace, label_selector=self.target.selector
        )
        nodes = core.list_node_without_preload_content
        self._pods = ObjectWatch(pods, f"list pods in namespace {self._namespace}", self._look, self._removed)
        self._nodes = ObjectWatch(nodes, "list nodes", self._look, optional=True)
        try:
            await asyncio.gather(self._pods.run(), self._nodes.run())
        finally:
            await api.close(found)

    def _look(self) -> None:
        """Look at all pods: which hosts leave, which have ended, which do not start."""
        assert self._pods is not None
        assert self._nodes is not None
        cordoned = {name for name, node in self._nodes.objects.items() if pod_state.is_cordoned(node)}
        leaving = {}
        for name, pod in self._pods.objects.items():
            if reason := pod_state.leaving(pod, cordoned):
                leaving[name] = reason
                if name not in self._leaving:
                    _log.info("host %s: %s", name, reason)
            if end := pod_state.ended(pod):
                self._on_end(name, end)
            self._say_trouble(name, pod_state.trouble(pod))
        news, self._leaving = leaving.keys() != self._leaving.keys(), leaving
        now = self._clock()
        pods = {name: self._pods.objects[name] for name in leaving}
        self._lost_at = {name: pod_state.lost_at(pod, now) for name, pod in pods.items() if not pod_state.ended(pod)}
        if news:
            self._changed()

    def _removed(self, pod: dict[str, Any]) -> None:
        name = pod_state.name_of(pod)
        self._troubles.pop(name, None)
        if not self.target.reuses_names:  # else it may be the successor's agent that runs
            self._on_end(name, "its pod is gone")

    def _say_trouble(self, name: str, trouble: str) -> None:
        if trouble and trouble not in self._troubles.values():
            _log.warning("pod %s does not start: %s", name, trouble)
        if trouble:
            self._troubles[name] = trouble
        else:
            self._troubles.pop(name, None)
