"""`-np auto`: as many workers as the hosts have slots, counted once, before the run starts."""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import Sequence

from edriver.discovery.errors import DiscoveryError
from edriver.discovery.slot_counts import SlotCounts
from edriver.driver.config.options import THIS_MACHINE, RunOptions, usable_slots
from edriver.driver.config.usage_error import UsageError
from edriver.driver.launch.device_counts import device_counter
from edriver.model.hosts import HostSet
from edriver.text.phrases import replicas_text


def with_counted_slots(
    flags: argparse.Namespace, options: RunOptions, arguments: Sequence[str]
) -> tuple[argparse.Namespace, list[str]]:
    """The flags with a number of workers; and the command line, which a driver that takes the run over will read.

    Args:
        flags: the parsed command line.
        options: what they come to, as far as it is known.
        arguments: the command line.

    Raises:
        UsageError: a host cannot be asked, or has no such device; or there are no slots.
    """
    try:
        hosts = asyncio.run(_hosts(options))
    except DiscoveryError as error:
        raise UsageError(f"the workers cannot be counted (-np auto): {error}") from None
    if not hosts.total_slots:
        raise UsageError("-np auto: no host has been found yet: give the number of workers to start with")
    slots = usable_slots(hosts, flags.replica_size, options.mode.mode)
    if not slots:
        raise UsageError(f"-np auto: of {hosts} none can be used {replicas_text(flags.replica_size)}")
    np = slots if flags.max_np is None else min(slots, flags.max_np)
    found = argparse.Namespace(**{**vars(flags), "np": np})
    # In front: a number that stands before -np auto is what it came to (main.py).
    ours = ["-np", str(np)]
    if options.hosts == THIS_MACHINE:
        found.hosts = ",".join(map(str, hosts))
        ours += ["-H", found.hosts]
    return found, [*ours, *arguments]


async def _hosts(options: RunOptions) -> HostSet:
    counts = SlotCounts(device_counter(options.launcher_name, options.ssh), time.monotonic)
    found = await counts.counted(await options.source.find(), wait=None)
    if counts.note:
        raise DiscoveryError(counts.note)
    return found
