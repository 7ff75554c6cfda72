"""What hosts and workers use, as agents say it, now and from the run's beginning on. Nothing is decided by it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Final

from edriver.common.downsample import Downsampled
from edriver.driver.core.roster import Roster
from edriver.runview.usage import SAMPLE_INTERVAL, sum_of
from edriver.v1 import agent_pb2, resources_pb2, status_pb2
from edriver.wire.conversion import timestamp

MAX_SAMPLED_HOSTS: Final = 50
"""Hosts that are remembered over time, each for itself; all of them are together."""


SAMPLED_PER_SECOND: Final = 100
"""Hosts that are added up in a second, at most: those of a large run say rarely what they use."""


class UsageTracker:
    """What there is to know of the use of resources.

    Args:
        roster: the hosts and workers that there are.

    Attributes:
        hosts: what each host uses now, by its name, as far as its agent has said it.
        workers: what each worker uses, by its id.
    """

    def __init__(self, roster: Roster) -> None:
        self._roster = roster
        self.hosts: dict[str, resources_pb2.HostUsage] = {}
        self.workers: dict[int, resources_pb2.WorkerUsage] = {}
        self._samples: Downsampled[bytes] = Downsampled(interval=SAMPLE_INTERVAL)

    def record(self, host: str, heartbeat: agent_pb2.Heartbeat) -> None:
        """Record what a host and its workers use, as a heartbeat of its agent says."""
        if heartbeat.HasField("usage"):
            self.hosts[host] = heartbeat.usage
        for beat in heartbeat.workers:
            if beat.HasField("usage") and beat.worker_id in self._roster.workers:
                self.workers[beat.worker_id] = beat.usage

    def fill(self, run: status_pb2.Run) -> None:
        """Add to a run what its hosts and workers use."""
        for host in run.hosts:
            if (used := self.hosts.get(host.name)) is not None:
                host.usage.CopyFrom(used)
        for worker in run.workers:
            if (of_worker := self.workers.get(worker.worker_id)) is not None:
                worker.usage.CopyFrom(of_worker)

    def sample(self, now: float) -> resources_pb2.UsageSample | None:
        """Remember what hosts use now, where that is due; returns it then. Those that are gone are forgotten.

        Args:
            now: in seconds since the epoch.
        """
        last = self._samples.samples[-1][0] if self._samples.samples else -math.inf
        if not self._samples.due(now) or now - last < len(self.hosts) / SAMPLED_PER_SECOND:
            return None
        hosts, workers = self._roster.hosts, self._roster.workers
        self.hosts = {name: usage for name, usage in self.hosts.items() if name in hosts and hosts[name].connected}
        self.workers = {worker_id: usage for worker_id, usage in self.workers.items() if worker_id in workers}
        if not self.hosts:
            return None
        sample = resources_pb2.UsageSample(time=timestamp(now), host_count=len(self.hosts))
        for host in sorted(self.hosts)[:MAX_SAMPLED_HOSTS]:
            sample.hosts[host].CopyFrom(_without_gpus(self.hosts[host]))
        sample.total.CopyFrom(sum_of(self.hosts.values()))
        self._samples.add(now, sample.SerializeToString())
        return sample

    def samples(self) -> Iterator[resources_pb2.UsageSample]:
        """All that are remembered, oldest first."""
        return (resources_pb2.UsageSample.FromString(data) for _, data in self._samples.samples)


def _without_gpus(usage: resources_pb2.HostUsage) -> resources_pb2.HostUsage:
    if not usage.gpus:
        return usage
    plain = resources_pb2.HostUsage()
    plain.CopyFrom(usage)
    plain.ClearField("gpus")
    return plain
