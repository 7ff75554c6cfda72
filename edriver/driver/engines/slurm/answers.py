"""What Slurm's commands print and what Slurm sets in the environment, as data. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

FAILED_STATES: Final = frozenset(
    {"down", "drain", "drained", "error", "fail", "powered_down", "powering_down", "unknown"}
)
"""States of a node on which nothing is to run any longer, as `sinfo --format=%T` has them. A node that does not answer
Slurm has its old state with a mark: whether it is lost is then for the agent's lease to say, which is quicker."""

LEAVING_STATES: Final = frozenset({"draining", "failing"})
"""States of a node that gets no new jobs. Slurm lets those that run there end by themselves."""

_COUNT: Final = re.compile(r"(\d+)(?:\(x(\d+)\))?")
_GRES_OF_NODES: Final = re.compile(r"^\s+Nodes=(\S+) .*\bGRES=(\S+)", re.MULTILINE)
_GPUS: Final = re.compile(r"(?:^|,)gpu(?::[^:,()]+)?:(\d+)")


def slots_by_node(
    environment: Mapping[str, str], names: list[str], default_slots: int, gpus: Mapping[str, int]
) -> dict[str, int]:
    """The number of workers on each node of the allocation: one per GPU, else one per task, else the default.

    Args:
        environment: the environment of the allocation's script or shell.
        names: the nodes, in the order of SLURM_JOB_NODELIST.
        default_slots: the number for nodes without GPUs and tasks in the allocation.
        gpus: the number of GPUs of each node; empty: each has as many as the script's node, if any.
    """
    if on_first := gpus_on_node(environment):
        return {name: gpus.get(name, 0) for name in names} if gpus else dict.fromkeys(names, on_first)
    if "SLURM_NTASKS" in environment or "SLURM_NTASKS_PER_NODE" in environment:
        tasks = counts_of(environment.get("SLURM_TASKS_PER_NODE", ""))
        if len(tasks) == len(names):
            return dict(zip(names, tasks, strict=True))
    return dict.fromkeys(names, default_slots)


def gpus_on_node(environment: Mapping[str, str]) -> int:
    """The number of GPUs that the allocation has on the node of its script."""
    count = environment.get("SLURM_GPUS_ON_NODE", "")
    return int(count) if count.isdecimal() else 0


def gpus_of(text: str, job: str) -> list[tuple[str, int]]:
    """The nodes of a job, in Slurm's short form, and the number of its GPUs on each of them.

    Args:
        text: the output of `scontrol show job --details`, which for a job of an array lists all jobs of the array.
        job: the number of the job.
    """
    found = (record for record in text.split("\n\n") if record.lstrip().startswith(f"JobId={job} "))
    parts = _GRES_OF_NODES.findall(next(found, ""))
    return [(nodes, sum(map(int, _GPUS.findall(gres)))) for nodes, gres in parts]


def counts_of(text: str) -> list[int]:
    """The numbers of SLURM_TASKS_PER_NODE and its like, one a node: `2(x3),1` is 2, 2, 2, 1. Nothing else: none."""
    counts: list[int] = []
    for item in text.split(","):
        if not (match := _COUNT.fullmatch(item)):
            return []
        counts += [int(match[1])] * int(match[2] or 1)
    return counts


def nodes_of(text: str, job: str) -> str:
    """The nodes of a job, from the output of `squeue --noheader --format=%A|%N`; empty if it has no nodes.

    The number of a job array, by which squeue lists all of the array's jobs, is also that of one of them.
    """
    found = (line.strip().partition("|") for line in text.splitlines())
    return next((nodes for number, _, nodes in found if number == job), "")


def states_of_nodes(text: str) -> dict[str, set[str]]:
    """The states of nodes, by their names, of what `sinfo --Node --noheader --format=%N|%T` prints.

    A node has one line for each of its partitions.
    """
    found: dict[str, set[str]] = {}
    for line in text.split():
        name, _, state = line.partition("|")
        found.setdefault(name, set()).add(state.rstrip("*~#!%$@^-+").lower())
    return found
