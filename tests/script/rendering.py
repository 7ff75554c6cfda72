"""Actions as the lines that stand in a case."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from edriver.model import actions
from edriver.model.actions import Action, Failure
from edriver.model.ids import NO_VERSION
from edriver.model.memory_checkpoint import CheckpointId
from edriver.model.plan import RoundPlan
from tests.script.causes import name_shown, shown


def render(action: Action) -> Iterator[str]:
    """One action: a line, and indented lines for what it carries."""
    match action:
        case actions.StartAgent(host, agent_id):
            yield f"start agent {agent_id} on {host}"
        case actions.StopAgent(host, agent_id):
            yield f"stop agent {agent_id} on {host}"
        case actions.AbandonAgent(host, agent_id, cause):
            yield f"abandon agent {agent_id} on {host}: {shown(cause)}"
        case actions.StartWorker(worker_id, host, slot):
            yield f"start worker {worker_id} in {host}:{slot}"
        case actions.StopWorker(worker_id, host, grace):
            yield f"stop worker {worker_id} on {host}: grace {grace:g} s"
        case actions.HostsUpdated(workers, round_id, number, result):
            yield f"notify {_listed(workers)}: round {round_id}, interrupt {number}, {(result.name or '?').lower()}"
        case actions.StopAt(workers, round_id, number, boundary, cause):
            verdict = f"interrupt {number}, boundary {boundary}"
            yield f"stop-at {_listed(workers)}: round {round_id}, {verdict}, {shown(cause)}"
        case actions.GoOn(workers, round_id, number):
            yield f"go-on {_listed(workers)}: round {round_id}, interrupt {number}"
        case actions.Abort(workers, round_id, cause):
            yield f"abort {_listed(workers)}: round {round_id}, {shown(cause)}"
        case RoundPlan() as plan:
            yield from _rendered_plan(plan)
        case actions.Finish(workers, round_id, cause):
            yield f"finish {_listed(workers)}: round {round_id}, {shown(cause)}"
        case actions.Leave(worker_id):
            yield f"leave worker {worker_id}"
        case actions.Skip(worker_id, ordinal):
            yield f"skip worker {worker_id}: ordinal {ordinal}"
        case actions.SaveCheckpoint(worker_id, round_id, number):
            yield f"save-checkpoint worker {worker_id}: round {round_id}, request {number}"
        case actions.FindNewestCheckpoint(workers):
            yield f"find-newest-checkpoint {_listed(workers)}"
        case actions.KeepCheckpoints(host, newest, keep, copies, disk):
            yield f"keep-checkpoints on {host}: newest {_checkpoint(newest)}, keep {', '.join(map(_checkpoint, keep))}"
            for copy in copies:
                yield f"    fetch {_checkpoint(copy.shard.checkpoint)}/{copy.shard.rank} from {copy.address}"
            if disk is not None:
                ranks = ", ".join(map(str, disk.ranks))
                what = "complete it" if disk.seal else f"write ranks {ranks} to {disk.name or 'a new folder'}"
                yield f"    disk {disk.number}: of {_checkpoint(disk.checkpoint)} {what}"
        case actions.Explain(cause):
            yield f"explain: {shown(cause)}"
        case actions.FinishRun(end, cause, failures):
            yield f"finish-run {end.value}: {shown(cause)}"
            if cause.itself and failures:
                yield "    before that:"
            for failure in failures:
                yield from _rendered_failure(failure)


def _checkpoint(checkpoint: CheckpointId) -> str:
    return f"{checkpoint.round_id}:{checkpoint.step}"


def _listed(workers: Iterable[int]) -> str:
    return " ".join(["workers", *map(str, workers)])


def _indented(lines: Iterable[str]) -> Iterator[str]:
    return (f"    {line}" for line in lines)


def _rendered_plan(plan: RoundPlan) -> Iterator[str]:
    version = "none" if plan.version == NO_VERSION else str(plan.version)
    store = f"{plan.store.host}:{plan.store.port}"
    guarded = (f", checkpoint {plan.checkpoint}" if plan.checkpoint else "") + (", guarded" if plan.guarded else "")
    norm = "" if plan.gradient_norm is None else f", gradient norm {plan.gradient_norm:g}"
    yield f"assign round {plan.round_id}: ordinal {plan.ordinal}, version {version}, store {store}{guarded}{norm}"
    if (start := plan.memory_checkpoint) is not None:
        holders = ", ".join(start.addresses[holder] for holder in start.holders)
        yield f"    from {_checkpoint(start.checkpoint)}, whose shards are at {holders}"
    if plan.sharding is not None and plan.sharding.size:
        yield f"    cut anew from the {plan.sharding.size} shards of round {plan.sharding.round_id}"
    for seat in plan.seats:
        receives = ", receives" if seat.rank in plan.receivers else ""
        yield f"    rank {seat.rank}: worker {seat.worker_id} in {seat.host}:{seat.slot}{receives}"


def _rendered_failure(failure: Failure) -> Iterator[str]:
    of_itself = "" if failure.worker == failure.cause.worker else f"{name_shown(failure.worker)}: "
    yield f"    {of_itself}{shown(failure.cause)}"
    yield from _indented(_indented([*failure.traceback.splitlines(), *failure.tail.splitlines()]))
