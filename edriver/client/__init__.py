"""A client for those who watch or steer a run themselves.

    from edriver.client import find

    with find() as run:                                  # the only run of this user on this machine
        print(run.status().activity.text)
        for event in run.watch(since=0):                 # events, and goes on until the run has ended
            print(event.time, event.text)

`AsyncClient` does the same with asyncio. What they return are the messages of proto/edriver/v1/status.proto, where each
field is described.
"""

from __future__ import annotations

from edriver.client.addresses import Address, elsewhere, here, living_runs
from edriver.client.async_client import AsyncClient
from edriver.client.client import Client, find
from edriver.client.errors import RunError
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
    "HostStatus",
    "Member",
    "Progress",
    "ProgressSample",
    "RecoveryPhases",
    "Round",
    "Run",
    "RunError",
    "WorkerLine",
    "WorkerStatus",
    "elsewhere",
    "find",
    "here",
    "living_runs",
]
