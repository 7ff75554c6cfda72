"""A client with which programs watch or control a run.

    from edriver.client import find

    with find() as run:                                  # the only run of this user on this machine
        print(run.status().activity.text)
        for event in run.watch(since=0):                 # events, until the run has ended
            print(event.time, event.text)

`AsyncClient` does the same with asyncio. What they return are the messages of proto/edriver/v1/status.proto and
resources.proto, where each field is described.
"""

from __future__ import annotations

from edriver.client.addresses import Address, elsewhere, here, living_names, living_runs
from edriver.client.async_client import AsyncClient
from edriver.client.client import Client, find
from edriver.client.errors import RunError
from edriver.v1.resources_pb2 import GpuUsage, HostUsage, UsageSample, WorkerUsage
from edriver.v1.status_pb2 import (
    Event,
    HostStatus,
    Member,
    Progress,
    ProgressSample,
    RecoveryPhases,
    Round,
    Run,
    WorkerLine,
    WorkerStatus,
)

__all__ = [
    "Address",
    "AsyncClient",
    "Client",
    "Event",
    "GpuUsage",
    "HostStatus",
    "HostUsage",
    "Member",
    "Progress",
    "ProgressSample",
    "RecoveryPhases",
    "Round",
    "Run",
    "RunError",
    "UsageSample",
    "WorkerLine",
    "WorkerStatus",
    "WorkerUsage",
    "elsewhere",
    "find",
    "here",
    "living_names",
    "living_runs",
]
