"""Asks hosts how many GPUs and cores they have, the way in which their agents are started."""

from __future__ import annotations

import asyncio
import json
import shlex
import sys
from typing import Final

from edriver.common.release import VERSION
from edriver.discovery.errors import DiscoveryError
from edriver.discovery.script import ScriptFailedError, run_script
from edriver.discovery.slot_counts import Ask, DeviceCount
from edriver.driver.launch.local import address_here
from edriver.driver.launch.ssh import failure
from edriver.system.ssh_client import CONNECT_TIMEOUT, SshOptions

ANSWER_TIMEOUT: Final = CONNECT_TIMEOUT + 15.0
"""Seconds that a host may take to answer."""

MAX_CONCURRENT: Final = 64
"""The maximum number of hosts asked at a time."""

_HERE: Final = (sys.executable, "-P", "-m", "edriver.agent.devices")


def device_counter(launcher: str, ssh: SshOptions) -> Ask:
    """What asks the hosts of a run.

    Args:
        launcher: the launcher that the operator has named; empty: this machine is asked here, others over ssh.
        ssh: how ssh is called.
    """
    places = asyncio.Semaphore(MAX_CONCURRENT)

    async def ask(host: str) -> DeviceCount:
        if launcher not in ("", "local", "ssh"):
            raise DiscoveryError(f"its slots cannot be counted through --launcher {launcher}: write a number of them")
        here = launcher == "local" or (not launcher and await address_here(host) is not None)
        # The host's shell may be any; what it starts is the same as for an agent (ssh.py).
        there = f"exec /bin/sh -c {shlex.quote(f'exec {shlex.join(_HERE)}')}"
        async with places:
            return await _asked(host, _HERE if here else ssh.command(host, there), here=here)

    return ask


async def _asked(host: str, command: list[str] | tuple[str, ...], *, here: bool) -> DeviceCount:
    try:
        output = await run_script(command, ANSWER_TIMEOUT)
    except ScriptFailedError as error:
        raise DiscoveryError(str(error) if here else failure(host, error.code, error.errors, VERSION)) from error
    except OSError as error:
        raise DiscoveryError(f"{command[0]} cannot be started: {error.strerror}") from error
    try:
        found = json.loads(output.splitlines()[-1])  # a login shell may print other lines before
        return DeviceCount(int(found["gpus"]), int(found["cores"]))
    except (ValueError, LookupError, TypeError) as error:
        raise DiscoveryError(f"it does not say how many devices it has: it printed {output[:100]!r}") from error
