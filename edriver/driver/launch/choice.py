"""Which launcher starts the agent of a host."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from edriver.driver.launch.dial_in import DialInLauncher
from edriver.driver.launch.launcher import LaunchContext, Launcher
from edriver.driver.launch.local import LocalLauncher
from edriver.driver.launch.ssh import SshLauncher


@dataclass(frozen=True, slots=True)
class LaunchChoice:
    """How an agent is started.

    Attributes:
        launcher: by whom.
        address: the address of this machine at which the others reach it; None: it is another machine.
    """

    launcher: Launcher
    address: str | None = None


Choose = Callable[[str], Awaitable[LaunchChoice]]
"""How a host's agent is started."""

FindOwnAddress = Callable[[str], Awaitable["str | None"]]
"""Returns the address at which the others reach a host on this machine; None: it is another machine."""


def choice(make: Callable[[LaunchContext], Launcher] | None, context: LaunchContext, reach: FindOwnAddress) -> Choose:
    """The launcher that the operator has named; else for each host the one that suits it."""
    if make is not None:
        return always(make(context))
    if context.admit is not None:
        return always(DialInLauncher.of(context))
    return by_host(reach, LocalLauncher.of(context), SshLauncher.of(context))


def by_host(reach: FindOwnAddress, local: Launcher, remote: Launcher) -> Choose:
    """Every name or address of this machine counts as a separate host on it; all other names are other machines.

    Args:
        reach: returns the address at which the others reach a host on this machine; None: it is another machine.
        local: starts agents here,
        remote: and elsewhere.
    """

    async def choose(host: str) -> LaunchChoice:
        address = await reach(host)
        return LaunchChoice(remote if address is None else local, address)

    return choose


def always(launcher: Launcher) -> Choose:
    """One launcher for all hosts, which count as elsewhere."""

    async def choose(_: str) -> LaunchChoice:
        return LaunchChoice(launcher)

    return choose
