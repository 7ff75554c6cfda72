"""Actions as the lines that stand in a case."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from edriver.common.ids import NO_VERSION
from edriver.driver.core import actions
from edriver.driver.core.actions import Action, Failure
from edriver.driver.core.ranks import RoundPlan
from edriver.driver.observe.cause_text import cause_text, worker_words


def render(action: Action) -> Iterator[str]:
    """One action: a line, and indented lines for what it carries."""
    match action:
        case actions.StartAgent(host, agent_id):
            yield f"start agent {agent_id} on {host}"
        case actions.StopAgent(host, agent_id):
            yield f"stop agent {agent_id} on {host}"
        case actions.AbandonAgent(host, agent_id, cause):
            yield f"abandon agent {agent_id} on {host}: {cause_text(cause)}"
        case actions.StartWorker(worker_id, host, slot):
            yield f"start worker {worker_id} in {host}:{slot}"
        case actions.StopWorker(worker_id, host, grace):
            yield f"stop worker {worker_id} on {host}: grace {grace:g} s"
        case actions.Notify(workers, round_id, number, result):
            yield f"notify {_listed(workers)}: round {round_id}, interrupt {number}, {(result.name or '?').lower()}"
        case actions.StopAt(workers, round_id, number, boundary):
            yield f"stop-at {_listed(workers)}: round {round_id}, interrupt {number}, boundary {boundary}"
        case actions.GoOn(workers, round_id, number):
            yield f"go-on {_listed(workers)}: round {round_id}, interrupt {number}"
        case actions.Abort(workers, round_id, cause):
            yield f"abort {_listed(workers)}: round {round_id}, {cause_text(cause)}"
        case actions.AssignRound(plan):
            yield from _rendered_plan(plan)
        case actions.Finish(workers, round_id):
            yield f"finish {_listed(workers)}: round {round_id}"
        case actions.Leave(worker_id):
            yield f"leave worker {worker_id}"
        case actions.Skip(worker_id, ordinal):
            yield f"skip worker {worker_id}: ordinal {ordinal}"
        case actions.Explain(cause):
            yield f"explain: {cause_text(cause)}"
        case actions.FinishRun(end, cause, failures):
            first, *rest = cause_text(cause).splitlines()
            yield f"finish-run {'success' if end is actions.RunEnd.DONE else 'failure'}: {first}"
            yield from _indented(rest)
            if cause.itself and failures:
                yield "    before that:"
            for failure in failures:
                yield from _rendered_failure(failure)


def _listed(workers: Iterable[int]) -> str:
    return " ".join(["workers", *map(str, workers)])


def _indented(lines: Iterable[str]) -> Iterator[str]:
    return (f"    {line}" for line in lines)


def _rendered_plan(plan: RoundPlan) -> Iterator[str]:
    version = "none" if plan.version == NO_VERSION else str(plan.version)
    store = f"{plan.store.host}:{plan.store.port}"
    yield f"assign round {plan.round_id}: ordinal {plan.ordinal}, version {version}, store {store}"
    for seat in plan.seats:
        receives = ", receives" if seat.rank in plan.receivers else ""
        yield f"    rank {seat.rank}: worker {seat.worker_id} in {seat.host}:{seat.slot}{receives}"


def _rendered_failure(failure: Failure) -> Iterator[str]:
    worker = failure.worker
    rank = "no rank" if worker.rank is None else f"rank {worker.rank}"
    yield f"    worker {worker.worker_id} ({rank}, {worker.host}:{worker.slot}): {worker_words(failure.cause)}"
    yield from _indented(_indented([*failure.traceback.splitlines(), *failure.tail.splitlines()]))
