"""The bridge: the driver's child process that is Ray's client. Started by connection.py; not for the command line.

It reads requests and writes answers as lines of JSON on one socket. When the driver has gone, in whatever way, the
socket ends: the bridge leaves Ray, and Ray ends the actors that it has made.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import sys
import threading
from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import Any, Final

import ray
from ray._private.state import available_resources_per_node, state
from ray.autoscaler.sdk import request_resources
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from edriver.driver.engines.ray.agent_actor import AgentActor
from edriver.driver.engines.ray.metrics import show
from edriver.driver.engines.ray.nodes import AUTO_ADDRESS

NAMESPACE: Final = "edriver"
"""Ray's namespace of the run's actors."""

MAX_LINE_BYTES: Final = 64 * 1024 * 1024

REACH_TIMEOUT: Final = 5.0
"""Seconds within which something must listen at the cluster's address."""

PROBE_TIMEOUT: Final = 1.0
"""Seconds within which a raylet must accept a connection."""

AGAIN_SECONDS: Final = 0.2
"""Seconds until an actor that cannot be reached is asked again."""

PLACE_TIMEOUT: Final = 15.0
"""Seconds within which Ray must place an actor and start it."""

LEAVE_TIMEOUT: Final = 10.0
"""Seconds that leaving Ray may take."""


class Bridge:
    """Serves the driver's requests.

    Args:
        send: sends a message to the driver.
    """

    def __init__(self, send: Callable[[dict[str, Any]], None]) -> None:
        self._send = send
        self._actors: dict[int, Any] = {}
        self._tasks: set[asyncio.Task[Any]] = set()
        self._requested = False
        self._table: dict[str, dict[str, Any]] = {}

    def take(self, request: dict[str, Any]) -> None:
        """Serve a request in the background."""
        self._keep(self._serve(request))

    def warm_up(self) -> None:
        """Have Ray import what it needs for its first actor: half a second that a node need not wait for."""
        self._keep(asyncio.to_thread(ray.put, None))

    async def leave(self) -> None:
        """Take back what was asked of the autoscaler, and leave Ray, which ends the actors."""
        if self._requested:
            await asyncio.to_thread(request_resources, bundles=[])
        await asyncio.to_thread(ray.shutdown)

    async def _serve(self, request: dict[str, Any]) -> None:
        number, name = request.pop("id"), request.pop("call")
        calls: dict[str, Callable[..., Awaitable[Any]]] = {
            "nodes": self._nodes,
            "start": self._start,
            "stop": self._stop,
            "demand": self._demand,
            "show": self._show,
        }
        try:
            self._send({"id": number, "result": await calls[name](**request)})
        except Exception as error:  # noqa: BLE001  Ray's errors have no common class
            self._send({"id": number, "error": failure_text(error)})

    async def _nodes(self, doubted: list[str]) -> list[dict[str, Any]]:
        table = await asyncio.to_thread(ray.nodes)
        self._table = {node["NodeID"]: node for node in table}
        return await asyncio.to_thread(_described, table, frozenset(doubted))

    async def _start(
        self, agent_id: int, actor_name: str, host: str, node: str, options: dict[str, Any], config: str
    ) -> None:
        actor: Any = (
            ray.remote(AgentActor)
            .options(**options, name=actor_name, scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False))
            .remote()
        )
        self._actors[agent_id] = actor
        try:
            async with asyncio.timeout(PLACE_TIMEOUT):
                await actor.start.remote(host, config)
        except TimeoutError:
            await self._stop(agent_id)
            raise TimeoutError(
                f"Ray has not placed its actor within {PLACE_TIMEOUT:g} s: other actors hold its resources, or the "
                "node is gone"
            ) from None
        except BaseException:
            await self._stop(agent_id)
            raise
        self._keep(self._watch(agent_id, node, actor))

    async def _watch(self, agent_id: int, node: str, actor: Any) -> None:
        reason = ""
        while not reason:
            try:
                reason = await actor.ended.remote()
            except (
                ray.exceptions.ActorUnavailableError
            ):  # its connection broke: Ray takes half a minute to find out why
                if (place := self._table.get(node)) and not await asyncio.to_thread(_listens, place):
                    reason = "its node has ended: the raylet there does not listen"
                await asyncio.sleep(AGAIN_SECONDS)
            except Exception as error:  # noqa: BLE001  Ray's errors have no common class
                reason = failure_text(error)
        self._send({"ended": agent_id, "reason": reason})
        await self._stop(agent_id)

    async def _stop(self, agent_id: int) -> None:
        if (actor := self._actors.pop(agent_id, None)) is not None:
            with contextlib.suppress(Exception):
                await asyncio.to_thread(ray.kill, actor)

    async def _demand(self, bundles: list[dict[str, float]]) -> None:
        self._requested = bool(bundles)
        await asyncio.to_thread(request_resources, bundles=bundles)

    async def _show(self, run_id: str) -> None:
        self._keep(show(run_id))

    def _keep(self, work: Awaitable[Any]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)  # the event loop alone would not keep it
        task.add_done_callback(self._tasks.discard)


def failure_text(error: BaseException) -> str:
    """An error of Ray in one sentence."""
    text = str(error)
    if "No module named 'edriver" in text:
        return (
            "edriver is not installed for Ray's workers there: install it on all nodes, or name it in the job's "
            "runtime_env"
        )
    if isinstance(error, ray.exceptions.ActorUnschedulableError):
        return "Ray has no room for its actor there: the node is gone, or too small"
    if isinstance(error, ray.exceptions.RayActorError):
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        why = next((line for line in reversed(lines) if line.startswith("The actor")), lines[0] if lines else "")
        return f"its Ray actor has ended: {why[:300]}"
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:300] if lines else type(error).__name__


def _described(table: Sequence[dict[str, Any]], doubted: Collection[str]) -> list[dict[str, Any]]:
    """The node table as the driver reads it; a node that is in doubt is alive only if its raylet listens."""
    available = available_resources_per_node()
    draining = state.get_draining_nodes()
    return [
        {
            "id": node["NodeID"],
            "name": node["NodeName"] or node["NodeManagerAddress"],
            "alive": node["Alive"] and (node["NodeID"] not in doubted or _listens(node)),
            "draining": node["NodeID"] in draining,
            "deadline": draining.get(node["NodeID"], 0) / 1000,  # Ray has milliseconds, and 0 for none
            "total": node["Resources"],
            "available": available.get(node["NodeID"], {}),
        }
        for node in table
    ]


def _listens(node: dict[str, Any]) -> bool:
    try:
        socket.create_connection((node["NodeManagerAddress"], node["NodeManagerPort"]), PROBE_TIMEOUT).close()
    except OSError:
        return False
    return True


def connect(address: str) -> None:
    """Connect to the cluster.

    Raises:
        ConnectionError: it is not there.
    """
    if address != AUTO_ADDRESS:
        host, _, port = address.rpartition(":")
        try:
            socket.create_connection((host.strip("[]"), int(port)), REACH_TIMEOUT).close()
        except (OSError, OverflowError) as error:
            raise ConnectionError(f"nothing answers there: {error}") from None
    ray.init(address, namespace=NAMESPACE, log_to_driver=False, logging_level="ERROR")


async def serve(descriptor: int, address: str) -> None:
    """Serve the driver at the other end of a socket until it has gone."""
    connection = socket.socket(fileno=descriptor)
    reader, writer = await asyncio.open_connection(sock=connection, limit=MAX_LINE_BYTES)

    def send(message: dict[str, Any]) -> None:
        writer.write(json.dumps(message).encode() + b"\n")

    try:
        await asyncio.to_thread(connect, address)
    except Exception as error:  # noqa: BLE001  Ray's errors have no common class
        send({"refused": " ".join(str(error).split())[:300]})
        await writer.drain()
        return
    bridge = Bridge(send)
    send({"connected": True})
    bridge.warm_up()
    with contextlib.suppress(ConnectionError):
        while line := await reader.readline():
            bridge.take(json.loads(line))
    threading.Timer(LEAVE_TIMEOUT, os._exit, (1,)).start()
    await bridge.leave()


def main(arguments: Sequence[str]) -> None:
    """Run the bridge: the socket's descriptor, and the cluster's address."""
    descriptor, address = arguments
    asyncio.run(serve(int(descriptor), address))
    os._exit(0)  # not what Ray does at exit: a thread of it may wait for its GCS


if __name__ == "__main__":
    main(sys.argv[1:])
