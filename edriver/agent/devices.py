"""How many GPUs and processor cores this host has for workers: `python -m edriver.agent.devices` prints it as JSON.

The driver runs it here, or over ssh, where a host's slots are to be counted. It is the agent's own view: the GPUs are
those that its workers are given, one a slot.

A slot keeps one GPU for good: CUDA_VISIBLE_DEVICES is the entry of the slot's number in the list that the agent finds
there itself, or among all GPUs of the machine. So a script uses `cuda:0` whatever its local rank, which changes from
round to round while the process, and what it has on the device, stays. A slot's next worker is started once the last
one has been reaped, and the kernel closes a process's hold on the device before it can be: its memory is free by then.
"""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Mapping
from pathlib import Path

from edriver.agent.resources.limits import cpu_limit
from edriver.agent.workers.worker_environment import cuda_devices


def counted(environment: Mapping[str, str], devices: Path, affinity: int, cgroups: str) -> dict[str, int]:
    """The numbers.

    Args:
        environment: this process's: CUDA_VISIBLE_DEVICES is the user's choice.
        devices: /dev.
        affinity: the cores that this process may run on.
        cgroups: of /proc/self/cgroup: a container's quota of processor time counts as that many cores.
    """
    quota = cpu_limit(cgroups)
    cores = affinity if quota is None else min(affinity, max(1, math.ceil(quota.maximum)))
    return {"gpus": len(cuda_devices(environment, devices)), "cores": cores}


def main() -> None:
    """Print them."""
    try:
        cgroups = Path("/proc/self/cgroup").read_text()
    except OSError:
        cgroups = ""
    sys.stdout.write(f"{json.dumps(counted(os.environ, Path('/dev'), len(os.sched_getaffinity(0)), cgroups))}\n")


if __name__ == "__main__":
    main()
