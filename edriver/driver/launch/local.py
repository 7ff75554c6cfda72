"""Agents on this machine: which names are its own, and how an agent is started here."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import threading
from collections.abc import Callable, Iterable
from itertools import islice
from typing import Final

from edriver.driver.launch.launcher import Bootstrap, LaunchContext, agent_command
from edriver.driver.launch.watched import WatchedProcess, standard_input
from edriver.system.child import Child
from edriver.system.own_addresses import Where, addresses_by_interface, is_link_local, is_loopback, is_own
from edriver.system.runs import RUN_FOLDER_VARIABLE
from edriver.text.phrases import exit_text

RESOLVE_TIMEOUT: Final = 3.0
"""How long looking up a host's name may take. This machine's own name is in a file; one for which a name server needs
longer (a question is repeated after 5 s) is another machine's, and ssh, which may know it, is not kept waiting."""

MAX_OTHERS: Final = 64
"""Other hosts that are looked up, at most, to find the address by which they reach this machine."""


class OwnNames:
    """The hosts that have turned out to be this machine."""

    def __init__(self) -> None:
        self._names: dict[str, None] = {}
        self._said = False

    def add(self, name: str, is_used: Callable[[str], bool]) -> str:
        """Another name of this machine; returns a warning, once, if it is not the only one that is used.

        Args:
            name: the host.
            is_used: whether discovery names a host now.
        """
        self._names[name] = None
        used = [each for each in self._names if is_used(each)]
        if len(used) < 2 or self._said:
            return ""
        self._said = True
        return (
            f"{' and '.join(used[:2])} are both this machine. They count as two hosts, whose slots share its "
            "processors and GPUs: list it once, with all its slots, unless you mean that"
        )


async def address_here(name: str) -> str | None:
    """The address of this machine that a name resolves to; None if the name is another machine's, or unknown.

    An address is this machine's if a socket can be bound to it.
    """
    try:
        found = await _look_up(name, 0, socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return None  # ssh's configuration may know it
    return next((str(where[0]) for family, where in found if is_own(family, where)), None)


async def address_towards(name: str, bound: float = RESOLVE_TIMEOUT) -> str | None:
    """The address that this machine has on the way to another; None if the other's name is not known here.

    Args:
        name: the other's name.
        bound: seconds that looking it up may take.
    """
    with contextlib.suppress(OSError, UnicodeError):
        for family, where in await _look_up(name, 9, socket.SOCK_DGRAM, bound):
            with contextlib.suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as probe:
                probe.connect(where)  # sends nothing
                return str(probe.getsockname()[0])
    return None


async def address_among(name: str, others: Iterable[str], chosen: str = "") -> str | None:
    """As `address_here`, but by which these others can reach this machine, too, as far as there is one.

    localhost beside hosts elsewhere is called by the address that this machine has on the way to them.

    Args:
        name: the host.
        others: the run's hosts; the first MAX_OTHERS count.
        chosen: the address of this machine that the operator has chosen; empty: any.
    """
    own = await address_here(name)
    if own is not None and chosen:
        return chosen
    if own is None or not is_loopback(own):
        return own
    for other in islice(others, MAX_OTHERS):
        there = await address_here(other)
        seen = await address_towards(other) if there is None else there
        if seen is not None and not is_loopback(seen):
            return seen
    return own


def interface_address(name: str) -> str:
    """The address of a network interface, preferably IPv4.

    Raises:
        ValueError: the interface does not exist or has no address; the message names those that have one.
    """
    found = addresses_by_interface()
    if not found.get(name):
        there = ", ".join(interface for interface, addresses in found.items() if addresses)
        raise ValueError(f"no network interface {name!r} with an address exists here, only {there}")
    return min(found[name], key=is_link_local)


async def _look_up(
    name: str, port: int, kind: socket.SocketKind, bound: float = RESOLVE_TIMEOUT
) -> list[tuple[int, Where]]:
    """The addresses of a name, each with its family.

    Each lookup has a separate thread, which is not joined: a name server that does not answer delays neither other
    hosts nor the driver's end.

    Raises:
        OSError: the name is not known, or was not found in time (TimeoutError).
        UnicodeError: it is not a valid name.
    """
    loop = asyncio.get_running_loop()
    found: asyncio.Future[list[tuple[int, Where]]] = loop.create_future()

    def tell(answer: list[tuple[int, Where]] | Exception) -> None:
        if found.done():
            return
        if isinstance(answer, Exception):
            found.set_exception(answer)
        else:
            found.set_result(answer)

    def look() -> None:
        answer: list[tuple[int, Where]] | Exception
        try:
            answer = [(family, where) for family, _, _, _, where in socket.getaddrinfo(name, port, type=kind)]
        except (OSError, UnicodeError) as error:
            answer = error
        with contextlib.suppress(RuntimeError):  # the loop is closed: the result is not awaited any more
            loop.call_soon_threadsafe(tell, answer)

    threading.Thread(target=look, name=f"look up {name}", daemon=True).start()
    async with asyncio.timeout(bound):
        return await found


class LocalLauncher:
    """Starts agents on this machine, independently of the names of their hosts.

    Args:
        spawn: starts an agent with a join config.
    """

    def __init__(self, spawn: Callable[[str, bytes], Child] | None = None) -> None:
        self._spawn = spawn or spawn_agent
        self._children: dict[int, WatchedProcess] = {}

    @classmethod
    def of(cls, _: LaunchContext) -> LocalLauncher:
        """The launcher of a run."""
        return cls()

    async def start(self, host: str, bootstrap: Bootstrap) -> None:
        """Start one.

        Raises:
            OSError: it cannot be started.
        """
        process = self._spawn(host, await bootstrap.join_config())

        def reaped(code: int) -> None:
            del self._children[bootstrap.agent_id]
            bootstrap.ended(f"its agent {exit_text(code)}")

        self._children[bootstrap.agent_id] = WatchedProcess(process, reaped)

    async def stop(self, agent_id: int, /) -> None:
        """Kill it, with its process group."""
        if child := self._children.get(agent_id):
            child.kill()
            await child.gone.wait()

    def watches(self, _: int, /) -> bool:
        """Reported by the kernel."""
        return True


def spawn_agent(host: str, join_config: bytes) -> Child:
    """Start an agent here.

    Raises:
        OSError: it cannot be started.
    """
    inherited = {name: value for name, value in os.environ.items() if name != RUN_FOLDER_VARIABLE}
    with standard_input(join_config) as config_file:
        return Child(
            agent_command(host),
            stdin=config_file,
            stdout=2,  # it prints nothing that belongs on the driver's standard output
            environment={**inherited, "GRPC_ENABLE_FORK_SUPPORT": "0"},
        )
