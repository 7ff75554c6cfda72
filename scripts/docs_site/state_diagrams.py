"""State diagrams, from the core's tables of transitions."""

from __future__ import annotations

from collections.abc import Mapping

from edriver.driver.core.round import ROUND_TRANSITIONS, RoundState
from edriver.model.records import WORKER_TRANSITIONS, WorkerState
from edriver.model.transitions import State, Step


def diagram(
    table: Mapping[tuple[State, Step], State], first: State, last: tuple[State, ...], begins: str, ends: str
) -> str:
    """A table as a Mermaid diagram.

    Args:
        table: which state follows from a state and a step.
        first: the state in which it begins.
        last: the states in which it ends.
        begins: what it begins by,
        ends: and ends by.
    """
    lines = [f"[*] --> {first.value}: {begins}"]
    lines += [f"{state.value} --> {following.value}: {step.value}" for (state, step), following in table.items()]
    lines += [f"{state.value} --> [*]: {ends}" for state in last]
    return "\n    ".join(["```mermaid\nstateDiagram-v2", *lines]) + "\n```"


def of_a_worker() -> str:
    """The states of a worker."""
    last = (WorkerState.FINISHED, WorkerState.STOPPING)
    return diagram(WORKER_TRANSITIONS, WorkerState.BOOTING, last, "StartWorker", "WorkerExited")


def of_a_round() -> str:
    """The states of a round."""
    last = (RoundState.STOPPING, RoundState.ABORTED, RoundState.FINISHED)
    return diagram(ROUND_TRANSITIONS, RoundState.RUNNING, last, "RoundPlan", "all are back, or gone")
