"""Flags of horovodrun that edriver does not have, and what to use instead."""

from __future__ import annotations

from typing import Final

_KNOBS: Final = "gradients are reduced in buckets of a fixed size: there is nothing to tune"
_GLOO: Final = "Gloo reduces CPU tensors and NCCL reduces GPU tensors: there is no choice"
_LOGS: Final = "edriver prints what happens to the run; --verbose prints every event and every action"
_STALLS: Final = "--stall-timeout bounds how long a worker may make no progress, and names the one that does not"
_TIMELINE: Final = "record with torch.profiler in the script; `edriver report` shows what the run did"
_RINGS: Final = "NCCL itself chooses rings or trees within hosts and between them; NCCL_ALGO overrides that"
_INTEL: Final = "edriver does not use oneCCL or MLSL"

INSTEAD: Final = {
    "--autotune": _KNOBS,
    "--binding-args": "edriver does not use MPI: bind processes in the command, as in `numactl ... python train.py`",
    "--cache-capacity": "nothing is cached: members agree before each collective",
    "--check-build": "`edriver doctor` says what works here",
    "-cb": "`edriver doctor` says what works here",
    "--config-file": "give the flags themselves; `edriver ... --explain` prints all settings",
    "--cycle-time-ms": _KNOBS,
    "--disable-cache": "nothing is cached between runs",
    "--fusion-threshold-mb": _KNOBS,
    "--gloo": _GLOO,
    "--gloo-timeout-seconds": "--stall-timeout bounds how long a collective may take",
    "--hierarchical-allgather": _KNOBS,
    "--hierarchical-allreduce": _KNOBS,
    "--jsrun": "-H, --hostfile, --host-discovery-script or --hosts-dial-in say where workers run",
    "--log-hide-timestamp": _LOGS,
    "--no-log-hide-timestamp": _LOGS,
    "--log-level": _LOGS,
    "--log-with-timestamp": _LOGS,
    "--log-without-timestamp": _LOGS,
    "--mlsl-bgt-affinity": _INTEL,
    "--ccl-bgt-affinity": _INTEL,
    "--mpi": _GLOO,
    "--mpi-args": "edriver does not use MPI",
    "--mpi-threads-disable": "edriver does not use MPI",
    "--network-interfaces": "--network-interface takes one interface",
    "--nics": "--network-interface takes one interface",
    "--no-autotune": _KNOBS,
    "--no-hierarchical-allgather": _KNOBS,
    "--no-hierarchical-allreduce": _KNOBS,
    "--no-mpi-threads-disable": "edriver does not use MPI",
    "--no-stall-check": _STALLS,
    "--no-timeline-mark-cycles": _TIMELINE,
    "--no-torus-allreduce": _RINGS,
    "--num-nccl-streams": "NCCL's own variables reach the workers: set them in front of edriver",
    "--prefix-output-with-timestamp": "pipe the output through `ts`, or see --event-log",
    "-prefix-timestamp": "pipe the output through `ts`, or see --event-log",
    "--slots": "--slots-per-host",
    "--stall-check": _STALLS,
    "--stall-check-shutdown-time-seconds": _STALLS,
    "--stall-check-warning-time-seconds": _STALLS,
    "--tcp": "edriver does not use MPI",
    "--thread-affinity": "bind processes in the command, as in `numactl ... python train.py`",
    "--timeline-filename": _TIMELINE,
    "--timeline-mark-cycles": _TIMELINE,
    "--torus-allreduce": _RINGS,
}

FAMILIES: Final = {"--autotune-": _KNOBS}
"""The same for flags that begin so."""
