"""One Ray cluster as the run sees it: a source of hosts, and a launcher of agents, over one connection."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Iterable, Sequence

from edriver.discovery.errors import DiscoveryError, UnusableSourceError
from edriver.discovery.sources import SourceContext
from edriver.driver.engines.ray.connection import RayConnection, RayError, UnreachableError
from edriver.driver.engines.ray.nodes import Node, RayArgument, actor_options, default_resources, hosts_of, needed_of
from edriver.driver.launch.launcher import AgentLaunchError, Bootstrap, LaunchContext
from edriver.model.hosts import HostSet
from edriver.model.limits import MAX_TOTAL_SLOTS


class RayCluster:
    """A cluster that the run uses.

    Args:
        argument: where it is, and what one worker holds.
        timeout: seconds that the node table may take.
    """

    def __init__(self, argument: RayArgument, timeout: float) -> None:
        self._timeout = timeout
        self._resources = argument.resources
        self._listed = HostSet()
        self._wanted = MAX_TOTAL_SLOTS
        self._unused: frozenset[str] = frozenset()
        self._nodes: Sequence[Node] = ()
        self._asking: asyncio.Task[None] | None = None
        self._shown = 0
        self._doubted: set[str] = set()
        self._agents: dict[int, tuple[str, int, Bootstrap]] = {}
        self.connection = RayConnection(argument.address, self._ended)

    @property
    def resources(self) -> dict[str, float]:
        """What one worker holds."""
        return dict(self._resources or default_resources(self._nodes))

    def want(self, slots: int, unused: Iterable[str] = ()) -> None:
        """Take no more slots than these from now on, and leave these hosts where others are taken already."""
        self._wanted, self._unused = slots, frozenset(unused)

    # The source.

    async def find(self) -> HostSet:
        """The nodes on which workers can be placed, as hosts; slots that the run's agents hold count.

        Raises:
            UnusableSourceError: the cluster does not exist.
            DiscoveryError: Ray does not answer.
        """
        if self._asking is None:
            self._asking = asyncio.create_task(self._ask())
        try:
            async with asyncio.timeout(self._timeout):
                await asyncio.shield(self._asking)  # a thread of the bridge waits on: no second question meanwhile
        except TimeoutError:
            raise DiscoveryError(f"Ray has not answered for {self._timeout:g} s: is its GCS down?") from None
        except UnreachableError as error:
            raise UnusableSourceError(str(error)) from None
        except (RayError, OSError) as error:
            raise DiscoveryError(str(error)) from None
        return self._hosts()

    async def _ask(self) -> None:
        try:
            table = await self.connection.call("nodes", doubted=list(self._doubted))
            self._nodes = [Node(**fields) for fields in table]
            self._doubted &= {node.id for node in self._nodes if node.alive}
        finally:
            self._asking = None

    def _hosts(self) -> HostSet:
        held = {host: slots for host, slots, _ in self._agents.values()}
        found = hosts_of(self._nodes, self.resources, held, time.time())
        if not found:
            share = ", ".join(f"{name}={amount:g}" for name, amount in self.resources.items())
            living = sum(node.alive for node in self._nodes)
            raise DiscoveryError(f"none of the Ray cluster's {living} nodes has room for a worker, which takes {share}")
        kept = {host.name: host.slots for host in self._listed if host.name not in self._unused}
        self._listed = needed_of(found, self._wanted, kept)
        return self._listed

    # The launcher.

    async def start(self, run_id: str, host: str, bootstrap: Bootstrap) -> None:
        """Place an actor on a node, which holds all of the host's slots and starts the agent.

        Raises:
            AgentLaunchError: that cannot be done.
        """
        node = next((node for node in self._nodes if node.host == host), None)
        slots = self._listed.slots(host)
        if node is None or not slots:
            raise AgentLaunchError(f"the Ray cluster has no node {host} with room for a worker")
        config = await bootstrap.join_config()
        agent_id = bootstrap.agent_id
        await self._show(run_id)
        self._agents[agent_id] = (host, slots, bootstrap)
        try:
            await self.connection.call(
                "start",
                agent_id=agent_id,
                actor_name=f"edriver-{run_id}-{agent_id}",
                host=host,
                node=node.id,
                options=actor_options(self.resources, slots),
                config=config.decode(),
            )
        except RayError as error:
            self._agents.pop(agent_id, None)
            raise AgentLaunchError(str(error)) from None
        except BaseException:
            self._agents.pop(agent_id, None)
            if self.connection.open:
                self._stopping = asyncio.create_task(self.stop(agent_id))
            raise

    async def _show(self, run_id: str) -> None:
        """Have the bridge show the run in Ray's metrics; once for each bridge."""
        if self._shown != self.connection.number:
            self._shown = self.connection.number
            with contextlib.suppress(RayError):
                await self.connection.call("show", run_id=run_id)

    async def stop(self, agent_id: int) -> None:
        """Kill an agent's actor, and the agent with it."""
        self._forget(agent_id)
        if self.connection.open:
            await self.connection.call("stop", agent_id=agent_id)

    def watches(self, agent_id: int) -> bool:
        """Whether the end of an agent will be heard of."""
        return self.connection.open and agent_id in self._agents

    def _ended(self, agent_id: int, reason: str) -> None:
        if (bootstrap := self._forget(agent_id)) is not None:
            bootstrap.ended(reason)

    def _forget(self, agent_id: int) -> Bootstrap | None:
        """An agent has ended. Its node may have, too, which Ray notices half a minute later."""
        host, _, bootstrap = self._agents.pop(agent_id, ("", 0, None))
        self._doubted |= {node.id for node in self._nodes if node.host == host}
        return bootstrap


_in_use: list[RayCluster] = []
"""The clusters of this process, at most one: source and launcher are made apart, and share its connection."""


def ray_source(context: SourceContext) -> RayCluster:
    """`--discovery ray[=ADDRESS][,NAME=AMOUNT...]`.

    Raises:
        DiscoveryError: the argument cannot be read.
    """
    try:
        argument = RayArgument.parse(context.argument)
    except ValueError as error:
        raise DiscoveryError(str(error)) from None
    _in_use[:] = [RayCluster(argument, context.timeout)]
    return _in_use[0]


class RayLauncher:
    """Starts agents in actors of the cluster that the run's source has found.

    Args:
        context: of the run.
    """

    def __init__(self, context: LaunchContext) -> None:
        self._run_id = context.run_id

    async def start(self, host: str, bootstrap: Bootstrap) -> None:
        """Start one.

        Raises:
            AgentLaunchError: it cannot be started.
        """
        await cluster_in_use().start(self._run_id, host, bootstrap)

    async def stop(self, agent_id: int, /) -> None:
        """Kill it, with its actor."""
        await cluster_in_use().stop(agent_id)

    def watches(self, agent_id: int, /) -> bool:
        """Reported by Ray, while there is a connection to it."""
        return cluster_in_use().watches(agent_id)


def cluster_in_use() -> RayCluster:
    """The cluster that the run's source has found.

    Raises:
        AgentLaunchError: it has found none.
    """
    if not _in_use:
        raise AgentLaunchError(
            "--launcher ray starts agents on nodes that --discovery ray has found: give --ray instead"
        )
    return _in_use[0]
