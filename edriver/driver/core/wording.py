"""How workers, failures and exits are put into words, for reasons and reports."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from edriver.driver.core.actions import Failure
from edriver.driver.core.ranks import RoundPlan
from edriver.driver.core.roster import Worker
from edriver.text.phrases import count_text, exit_text

STUCK_TEXT: Final = "sits in a collective of the aborted round, which nothing frees"
"""What is wrong with a worker whose training thread does not come back."""


def worker_text(worker: Worker | Failure) -> str:
    """A worker by everything an operator may know it by."""
    rank = "" if worker.rank is None else f"rank {worker.rank}, "
    return f"worker {worker.worker_id} ({rank}{worker.host}:{worker.slot})"


def place_text(host: str, slot: int | None) -> str:
    """A slot; None: all of its host."""
    return f"host {host}" if slot is None else f"slot {slot} of host {host}"


def round_text(plan: RoundPlan) -> str:
    """A round by its size and its hosts."""
    hosts = dict.fromkeys(seat.host for seat in plan.seats)
    return f"round {plan.round_id}: {count_text(len(plan.seats), 'worker')} on {', '.join(hosts)}"


def done_text(boundaries: Iterable[int]) -> str:
    """The end of a round by the boundaries that its members have passed."""
    text = "all workers are done; their processes end, or enter the script's next run"
    if len(counts := sorted(set(boundaries))) > 1:
        text += f" (ranks passed unequal numbers of boundaries, {counts[0]} to {counts[-1]})"
    return text


def failure_text(failure: Failure) -> str:
    """A failure in one sentence."""
    return f"{worker_text(failure)} {failure.reason}"


def early_exit_text(code: int, reason: str = "") -> str:
    """How a process ended that should not have ended yet; `reason` is what its agent knows beyond the code."""
    if reason:
        return reason
    hint = " before its edriver.run was done (does the script call edriver.run, and not exit inside it?)"
    return exit_text(code) + (hint if code == 0 else "")


def raised_text(kind: str) -> str:
    """What left a worker's training function: an exception of this type."""
    return "called sys.exit before its edriver.run was done" if kind.startswith("SystemExit") else "raised an exception"


def stall_text(phase: str, seconds: float) -> str:
    """What a stalled worker has not done."""
    return f"has made no progress for {seconds:.0f} s ({phase})"
