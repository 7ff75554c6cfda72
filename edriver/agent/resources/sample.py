"""What is sampled, and what a sample has."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from edriver.v1 import resources_pb2


class WorkerPlace(NamedTuple):
    """A worker that is sampled.

    Attributes:
        worker_id: its id.
        pid: its command's process, which leads a session.
        gpu: what its CUDA_VISIBLE_DEVICES has; empty: it was given none.
    """

    worker_id: int
    pid: int
    gpu: str = ""


@dataclass(frozen=True, slots=True)
class Sample:
    """What was used at one moment.

    Attributes:
        host: by the host.
        workers: by each worker, by its id.
        processes: each process of a worker's but the command's own, by its id: whose it is, and bytes in memory.
    """

    host: resources_pb2.HostUsage
    workers: Mapping[int, resources_pb2.WorkerUsage]
    processes: Mapping[int, tuple[int, int]] = field(default_factory=dict)
