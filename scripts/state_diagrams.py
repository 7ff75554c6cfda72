"""Draws the state diagrams of docs/architecture.md from the core's tables: `python -m scripts.state_diagrams`.

It rewrites what stands between the marks in the page; tests/unit/test_transitions.py fails while that is out of date.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from edriver.driver.core.round import ROUND_TRANSITIONS, RoundState
from edriver.model.records import WORKER_TRANSITIONS, WorkerState
from edriver.model.transitions import State, Step

PAGE: Final = Path(__file__).resolve().parents[1] / "docs" / "architecture.md"


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


def diagrams() -> dict[str, str]:
    """The diagrams by their marks."""
    worker_ends = (WorkerState.FINISHED, WorkerState.STOPPING)
    round_ends = (RoundState.STOPPING, RoundState.ABORTED, RoundState.FINISHED)
    return {
        "worker": diagram(WORKER_TRANSITIONS, WorkerState.BOOTING, worker_ends, "StartWorker", "WorkerExited"),
        "round": diagram(ROUND_TRANSITIONS, RoundState.RUNNING, round_ends, "RoundPlan", "all are back, or gone"),
    }


def with_diagrams(page: str) -> str:
    """The page, with the diagrams as they are now.

    Raises:
        ValueError: it has no place for one of them.
    """
    for mark, text in diagrams().items():
        block = re.compile(rf"(<!-- states of a {mark}: .+? -->\n).*?(<!-- end -->)", re.DOTALL)
        page, found = block.subn(lambda match, text=text: f"{match[1]}\n{text}\n\n{match[2]}", page)  # type: ignore[misc]
        if found != 1:
            raise ValueError(f"{PAGE} has {found} places for the states of a {mark}")
    return page


if __name__ == "__main__":
    PAGE.write_text(with_diagrams(PAGE.read_text()))
