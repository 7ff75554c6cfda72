"""State diagrams, from the core's tables of transitions."""

from __future__ import annotations

from collections.abc import Mapping

from edriver.driver.core.round import ROUND_TRANSITIONS, RoundState
from edriver.model.records import WORKER_TRANSITIONS, WorkerState
from edriver.model.transitions import State, Step


def diagram(
    table: Mapping[tuple[State, Step], State], first: Mapping[State, str], last: tuple[State, ...], ends: str
) -> str:
    """A table as a Mermaid diagram.

    Args:
        table: which state follows from a state and a step.
        first: the states in which it begins, each with what it begins by.
        last: the states in which it ends.
        ends: what it ends by.
    """
    lines = [f"[*] --> {state.value}: {begins}" for state, begins in first.items()]
    lines += [f"{state.value} --> {following.value}: {step.value}" for (state, step), following in table.items()]
    lines += [f"{state.value} --> [*]: {ends}" for state in last]
    return "\n    ".join(["```mermaid\nstateDiagram-v2", *lines]) + "\n```"


def of_a_worker() -> str:
    """The states of a worker."""
    last = (WorkerState.FINISHED, WorkerState.STOPPING)
    return diagram(WORKER_TRANSITIONS, {WorkerState.BOOTING: "StartWorker"}, last, "WorkerExited")


def of_a_round() -> str:
    """The states of a round."""
    first = {RoundState.RUNNING: "RoundPlan", RoundState.HANDING_OVER: "RoundPlan with guests"}
    last = (RoundState.STOPPING, RoundState.HANDING_OVER, RoundState.ABORTED, RoundState.FINISHED)
    return diagram(ROUND_TRANSITIONS, first, last, "all are back, or gone")
