"""Causes in words: the one place where the core's causes become sentences for people.

A cause of a worker or a host is rendered as its name and the words that follow it; next to a name, only as those words.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from edriver.common.release import VERSION
from edriver.model import cause as why
from edriver.model.cause import AgentFaultKind, Cause, CauseKind, Halt, RoundEnd, WorkerName
from edriver.model.ids import NO_VERSION, RoundId, Version
from edriver.model.script_error import ScriptError
from edriver.model.settings import WHOLE_HOSTS
from edriver.text.pace_text import SAME_COLLECTIVES
from edriver.text.phrases import count_text, exit_text, some_of, workers_text
from edriver.v1 import cause_pb2
from edriver.wire.causes import cause_message

_LIMIT_NAMES: Final = {
    RoundEnd.FAILURE: "--reset-limit",
    RoundEnd.PREEMPTION: "the limit of preemptions",
    RoundEnd.RESIZE: "the limit of resizes",
}

_EQUAL_ADVICE: Final = (
    "Attributes of the state must be equal on all ranks: keep values that differ out of it, or have all ranks take "
    "rank 0's (from_rank_0=)"
)

_MODES: Final = "_modes"
"""Under this name a digest has, as its last part, the modes that a worker computes in."""


_EXIT_OVERDUE: Final = "did not exit after its script had ended: no sign of life"

_HALTS: Final = {
    Halt.STOPPED: "its process is stopped by a signal (SIGSTOP or Ctrl-Z)",
    Halt.TRACED: "its process is stopped by a debugger",
    Halt.FROZEN: "its process is frozen with its cgroup (is its container paused?)",
}
"""What keeps a process from running."""

_BOUNDARY_ADVICE: Final = "Call state.check_host_updates() or state.commit() after each step"

_ANNOUNCE_ADVICE: Final = (
    'Announce an evaluation, a download or the like by `with edriver.phase("eval"):`; --stall-timeout sets how '
    "long each phase may last"
)


@dataclass(frozen=True, slots=True)
class Line:
    """A line that is announced.

    Attributes:
        cause: the cause.
        ended: the round that it has ended.
    """

    cause: Cause
    ended: RoundId | None = None

    @property
    def is_failure(self) -> bool:
        """Whether it tells of a round that a failure has ended, or of a worker that failed outside of one."""
        tells_of_end = self.ended is not None or self.cause.worker is not None
        return tells_of_end and self.cause.round_end is RoundEnd.FAILURE

    @property
    def text(self) -> str:
        """As it is printed."""
        text = cause_text(self.cause)
        return text if self.ended is None else f"round {self.ended} ended: {text}"


def cause_text(cause: Cause) -> str:
    """Describe a cause in a sentence; for failed collectives the tracebacks follow on further lines.

    Raises:
        ValueError: the core does not make such a cause.
    """
    if cause.worker is not None and (words := worker_words(cause)):
        return f"{worker_text(cause.worker)} {words}"
    if cause.host is not None and (words := host_words(cause)):
        return f"{_place_of(cause)} {words}"
    if text := _end_of_round(cause) or _end_of_run(cause) or _doing(cause):
        return text
    if words := _waits_for(cause):
        return f"waiting: {words}"
    raise ValueError(f"there are no words for {cause}")


def doing_text(cause: Cause | None) -> str:
    """What a run does or waits for; None: it has just begun."""
    return "starting" if cause is None else cause_text(cause)


def cause_with_text(cause: Cause) -> cause_pb2.Cause:
    """A cause as a message, with its sentence."""
    return cause_message(cause, cause_text(cause))


def activity_message(cause: Cause | None) -> cause_pb2.Cause:
    """What a run does or waits for; None: it has just begun."""
    return cause_message(cause or Cause(CauseKind.RUN_BEGAN), doing_text(cause))


def obstacle_messages(causes: Iterable[Cause]) -> list[cause_pb2.Cause]:
    """Why a host is not used, or not in all of its slots, each with words that follow the host's name."""
    return [cause_message(cause, host_words(cause)) for cause in causes]


def worker_text(worker: WorkerName) -> str:
    """A worker by everything an operator may know it by."""
    rank = "" if worker.rank is None else f"rank {worker.rank}, "
    return f"worker {worker.worker_id} ({rank}{worker.host}:{worker.slot})"


def worker_words(cause: Cause) -> str:
    """A cause of a worker, as text that follows its name; empty: the cause is of another kind."""
    match cause.kind, cause.detail:
        case ((CauseKind.EXITED | CauseKind.KILLED), why.Exit(code, recorded=ScriptError() as error)):
            return f"{exit_text(code)} after it had recorded {error}"
        case CauseKind.KILLED, why.Exit(code, place=ScriptError() as place):
            return f"{exit_text(code)}, at {place}"
        case CauseKind.COLLECTIVES_DIFFER, why.Exit(code, place=place):
            return _mismatch_text(code, place)
        case CauseKind.COLLECTIVES_DIFFER, why.Mismatch(code, place, others):
            where = some_of([f"{worker_text(worker)} was at {at}" for worker, at in others])
            return f"{_mismatch_text(code, place)}; {where}. {SAME_COLLECTIVES}"
        case ((CauseKind.EXITED | CauseKind.KILLED), why.Exit(code)):
            hint = " before its edriver.run was done (does the script call edriver.run, and not exit inside it?)"
            return exit_text(code) + (hint if code == 0 else "")
        case CauseKind.NOT_STARTED, why.Exit(_, reason):
            return f"could not be started: {reason}"
        case CauseKind.OUT_OF_MEMORY, why.Exit(memory_limit=limit):
            return f"was killed by the kernel: out of memory{_limit_text(limit)}"
        case CauseKind.MAYBE_OUT_OF_MEMORY, why.Exit():
            return "was killed by SIGKILL while the kernel killed a process on its host because memory ran out"
        case CauseKind.CHILD_OUT_OF_MEMORY, why.MemoryKill(pid, limit, uncertain):
            lost = f"lost process {pid}, which it had started" if pid else "may have lost a process that it had started"
            if uncertain:
                return f"{lost}, while the kernel killed a process on its host because memory ran out"
            return f"{lost}: out of memory, so the kernel killed {'it' if pid else 'one'}{_limit_text(limit)}"
        case CauseKind.NO_BOUNDARY, why.NoBoundary(steps, place, returned):
            made = f"{count_text(steps, 'step')} without a boundary{f' ({place})' if place else ''}"
            if returned:
                end = "has returned from its training function after"
                return f"{end} {made}: nothing of it was counted. {_BOUNDARY_ADVICE}"
            return (
                f"has made {made}: until it passes one, no step counts, a failure loses all of them, and workers that "
                f"join wait. {_BOUNDARY_ADVICE}"
            )
        case CauseKind.SAME_SAMPLES, why.SameSamples(source, place, other):
            where = f" at {place}" if place else ""
            return (
                f"trains on the same samples as {worker_text(other)}: the data loader{where} hands out the same "
                f"batches on both, so a step learns no more than one worker would. {_samples_advice(source)}"
            )
        case CauseKind.NOT_FINITE, why.NotFinite(name, value, place, step):
            where = ", ".join(filter(None, [f"step {step}" if step else "", place]))
            return f"reported {name} = {value}{f' ({where})' if where else ''}"
        case CauseKind.SOURCE_DIFFERS, why.ReportedText(text):
            return f"runs a script that differs from the one that the run began with: {text}"
        case CauseKind.ENDED, None:
            return "has ended"
        case CauseKind.RAISED, ScriptError(kind):
            left = kind.startswith("SystemExit")
            return "called sys.exit before training was done" if left else "raised an exception"
        case CauseKind.SILENT, why.Duration(seconds):
            return f"did not answer for {seconds:g} s"
        case CauseKind.SILENT, why.Silence(seconds, halt):
            return f"did not answer for {seconds:g} s: {_HALTS[halt]}"
        case CauseKind.STALLED, why.Stall(phase, seconds, place):
            return f"has made no progress for {seconds:.0f} s ({phase})" + (f", at {place}" if place else "")
        case CauseKind.STUCK, None:
            return "hangs in a collective of the aborted round and cannot be freed"
        case CauseKind.EXIT_OVERDUE, why.Duration(seconds):
            return f"{_EXIT_OVERDUE} for {seconds:g} s (--exit-timeout)"
        case CauseKind.EXIT_OVERDUE, why.Silence(seconds, halt):
            return f"{_EXIT_OVERDUE} for {seconds:g} s (--exit-timeout): {_HALTS[halt]}"
        case CauseKind.NEVER_TRAINED, None:
            return (
                "has not completed a step, and collectives fail in each round with it (a bad link to its host, or "
                "another version of the script?)"
            )
        case CauseKind.UNREACHABLE, why.AgentFault() as fault:
            return f"cannot be reached: {agent_fault_text(fault)}"
        case CauseKind.LOST_WITH_HOST, why.AgentFault() as fault:
            return f"was lost: {agent_fault_text(fault)}"
        case CauseKind.LEFT_ROUND, None:
            return "left the round on its own"
    return ""


def _mismatch_text(code: int, place: ScriptError | None) -> str:
    where = f" at {place}" if place else ""
    return f"{exit_text(code)}: ranks called different collectives. It called one{where}, and received data of another"


def _samples_advice(source: str) -> str:
    """What to change, by the type of a loader's sampler or data set."""
    match source:
        case "WeightedRandomSampler":
            return (
                "Give its WeightedRandomSampler another generator on each worker: "
                "generator=torch.Generator().manual_seed(edriver.worker_seed())"
            )
        case "IterableDataset":
            return "Have each rank read other samples, as edriver.ElasticStream does"
    return "Give it a sampler that splits them: DataLoader(dataset, sampler=edriver.ElasticSampler(dataset), ...)"


def _limit_text(limit: int | None) -> str:
    return "" if limit is None else f" (its cgroup's limit is {limit / (1 << 20):.0f} MiB)"


def host_words(cause: Cause) -> str:
    """A cause of a host or a slot, as text that follows its name; empty: the cause is of another kind."""
    match cause.kind, cause.detail:
        case CauseKind.HOST_ADDED, why.Count(count):
            return f"was added with {count_text(count, 'slot')}"
        case CauseKind.HOST_REMOVED, None:
            return "is no longer named by discovery"
        case CauseKind.HOST_RESIZED, why.Count(count):
            return f"has {count_text(count, 'slot')} now"
        case CauseKind.HOST_LOST, why.AgentFault() as fault:
            return f"is lost: {agent_fault_text(fault)}"
        case CauseKind.HOST_UNUSED, why.AgentFault() as fault:
            return f"is not used: {agent_fault_text(fault)}"
        case CauseKind.HOST_UNANSWERED, None:
            return "has not answered yet"
        case CauseKind.DRAINED, why.DrainTarget(_, reason):
            return f"is drained: {_request_text(cause, reason)}"
        case CauseKind.UNDRAINED, why.SlotTarget():
            return f"may be used again: {_request_text(cause)}" if cause.requester else "may be used again"
        case CauseKind.SLOTS_DRAINED, why.Count(count):
            return f"has {count_text(count, 'slot')} drained"
        case CauseKind.SLOTS_COOLING, why.Count(count):
            return f"has {count_text(count, 'slot')} cooling down after a failure"
        case CauseKind.SLOTS_SPARE, why.SpareSlots(count, most, resized, refused):
            if refused:
                return (
                    f"has {count_text(count, 'slot')} idle: the script fails with {count_text(refused, 'worker')}, so "
                    f"the run stays at {most} (--max-np; `edriver resize` has it try again)"
                )
            limit = "edriver resize" if resized else "--max-np"
            return f"has {count_text(count, 'slot')} idle: the run may use {count_text(most, 'worker')} ({limit})"
        case CauseKind.SLOTS_UNFIT, why.UnfitSlots(count, width, missing, slots):
            idle = f"has {count_text(count, 'slot')} idle"
            if missing:
                more = f"{missing} more {'host' if missing == 1 else 'hosts'} of {count_text(slots, 'slot')}"
                return f"{idle}: a replica of {count_text(width, 'worker')} needs {more}"
            return f"{idle}: not enough for a replica of {count_text(width, 'worker')} (--replica-size)"
        case CauseKind.HOST_QUARANTINED, None:
            return "is quarantined"
        case CauseKind.HOST_QUARANTINED, why.HostQuarantine(
            seconds, failures, slots, window, elsewhere, slots_elsewhere
        ):
            here = f"{failures} failures in its {count_text(slots, 'slot')} within {window:g} s"
            others = f"and {elsewhere} in the {slots_elsewhere} of other hosts"
            return f"is quarantined for {seconds:.1f} s: {here}, {others}"
        case CauseKind.SLOT_QUARANTINED, why.SlotQuarantine(_, seconds, failures):
            return f"is quarantined for {seconds:.1f} s: {count_text(failures, 'failure')}"
        case CauseKind.COOLDOWN_OVER, why.SlotTarget():
            return "may be used again: its cooldown is over"
        case CauseKind.QUARANTINE_WAIVED, why.Count(count):
            return f"is used in spite of its quarantine: --min-np {count} cannot be reached without it"
        case CauseKind.HOST_UNSTEADY, why.Count(count):
            return f"comes and goes: it has changed {count} times in discovery's latest answers"
        case CauseKind.OUTPUT_OMITTED, why.Count(count):
            return f"has workers that print faster than their output can be read: {count_text(count, 'line')} left out"
        case CauseKind.OUTPUT_UNWRITTEN, why.ReportedText(text):
            return f"no longer writes all of its workers' output to files: {text}"
        case CauseKind.CHECKPOINT_UNCOPIED, why.ReportedText(text):
            return f"cannot fetch a copy of another host's checkpoint: {text}"
        case CauseKind.CHECKPOINT_UNWRITTEN, why.ReportedText(text):
            return f"cannot write a checkpoint from memory to disk: {text}"
        case CauseKind.SAVE_MISSED, why.ReportedText(text):
            return (
                f"has a rank that does not save the same steps as the others, so no checkpoint in memory completes: "
                f"{text}; have all ranks call save() with the same steps"
            )
    return ""


def agent_fault_text(fault: why.AgentFault) -> str:
    """What is wrong with a host's agent, as a clause."""
    match fault.kind:
        case AgentFaultKind.ENDED:
            return fault.reason
        case AgentFaultKind.NEVER_ANSWERED:
            return f"its agent has not answered within {fault.seconds:g} s of its start"
        case AgentFaultKind.SILENT:
            return f"its agent has not answered for {fault.seconds:g} s"
        case AgentFaultKind.OTHER_RELEASE:
            release = f"edriver {fault.reason}" if fault.reason else "an older edriver"
            return f"its agent runs {release}, whose protocol this driver does not speak: install {VERSION} there"
        case AgentFaultKind.OVERLOADED:
            return f"its agent does not accept orders: {fault.reason}"


def _end_of_round(cause: Cause) -> str:
    match cause.kind, cause.detail, cause.worker:
        case CauseKind.RUN_BEGAN, None, None:
            return "the run began"
        case CauseKind.COLLECTIVE_FAILED, None, WorkerName() as worker:
            return f"a collective of {worker_text(worker)} failed"
        case CauseKind.PEER_UNPROVEN, why.ReportedText(text), WorkerName() as worker:
            return f"{worker_text(worker)}: {text}"
        case CauseKind.NO_ANSWER, why.Unanswered(seconds, workers), None:
            return f"no answer to a notice within {seconds:g} s from {_names(workers)}"
        case CauseKind.BOUNDARY_MISSED, why.BoundaryMissed(boundary, workers), None:
            return f"boundary {boundary} was not reached in time by {_names(workers)}"
        case CauseKind.BOUNDARIES_DIFFER, None, None:
            return "some ranks passed more boundaries than others (uneven data loaders?)"
        case CauseKind.UNEVEN_STEPS, why.UnevenSteps() as steps, None:
            return _uneven_text(steps)
        case CauseKind.MEMBERS_CHANGE, why.Change() as change, None:
            return _change_text(change)
        case CauseKind.RESIZE_FAILED, why.FailedResize(size, before, failure), WorkerName():
            return (
                f"the first round of {count_text(size, 'worker')} failed, where {before} have trained: "
                f"{cause_text(failure)}"
            )
        case CauseKind.ALL_DONE, why.Done(fewest, most), None:
            text = "all workers are done; their processes end, or enter the script's next run"
            return (
                text if fewest == most else f"{text} (ranks passed unequal numbers of boundaries, {fewest} to {most})"
            )
    return ""


def _end_of_run(cause: Cause) -> str:
    match cause.kind, cause.detail:
        case CauseKind.SUCCESS, None:
            return "all workers are done and exited with code 0"
        case CauseKind.STOPPED, why.ReportedText(reason):
            return _request_text(cause, reason)
        case CauseKind.SOURCE_UNUSABLE, why.ReportedText(text):
            return text
        case CauseKind.FAILED_LATE, why.CausedBy(late):
            return f"a worker failed after training was done: {cause_text(late)}"
        case CauseKind.STATE_LOST, None:
            return "all workers that held the state of the run are lost"
        case CauseKind.STATE_LOST, why.RaisedByAll(error, workers):
            who = "its only worker" if workers == 1 else f"each of its {workers} workers"
            return f"all workers that held the state of the run are lost: {who} raised {error}"
        case CauseKind.STATE_LOST, why.ReportedText(positions):
            return f"all workers that held the newest state of these positions in a replica are lost: {positions}"
        case CauseKind.STATES_DIFFER, why.Digests() as digests:
            return f"{_disagreement_text(digests)}. {_EQUAL_ADVICE}"
        case CauseKind.COLLECTIVES_BROKEN, why.Tracebacks(version, raised):
            tracebacks = "\n".join(f"{worker_text(worker)}:\n{text}" for worker, text in raised)
            where = "without progress between them" if version == NO_VERSION else f"at version {version}"
            return (
                f"collectives failed in two rounds in a row {where}, with no worker lost (unequal shapes or a bad "
                f"link?):\n{tracebacks}"
            )
        case CauseKind.SAME_ERROR, why.RepeatedError(error, rounds, places):
            where = some_of([f"{host}:{slot}" for host, slot in places])
            return (
                f"the script raised {error} in {rounds} rounds (in {where}) without progress between them: "
                "another round would meet the same error"
            )
        case CauseKind.RESIZE_FAILED, why.FailedResize(size, before, failure):
            return f"{_resize_text(size, before)}: {cause_text(failure)}"
        case CauseKind.SAME_STALL, why.RepeatedStall(place, times, longest):
            return (
                f"workers have made no progress for the {_ordinal(times)} time at {place}, the last one for "
                f"{longest:.0f} s, without a step between: another round would end there, too. {_ANNOUNCE_ADVICE}"
            )
        case CauseKind.BUDGET_SPENT, why.LimitExceeded() as spent:
            return _overspent_text(spent)
        case CauseKind.TOO_FEW_SLOTS, why.Shortage(found, needed, seconds, _, troubles):
            return (
                f"found {count_text(found, 'usable slot')} within --start-timeout {seconds:g} s; the run needs "
                f"{needed} (--min-np, by default -np){_in_brackets(troubles)}"
            )
        case CauseKind.START_FAILED, None:
            return "every worker failed before training began"
        case CauseKind.UNPROVEN_CONNECTIONS, why.TimedOut(seconds, Cause() as last):
            limit = f"--elastic-timeout {seconds:g} s"
            return f"unproven connections have ended every round for {limit}; the last: {cause_text(last)}"
        case CauseKind.TIMED_OUT, why.TimedOut(seconds, over):
            limit = f"gave up after --elastic-timeout {seconds:g} s"
            if over is None:
                return limit
            return f"{limit} of {cause_text(over)}" if _waits_for(over) else f"{limit}: {cause_text(over)}"
    return ""


def _doing(cause: Cause) -> str:
    match cause.kind, cause.detail:
        case CauseKind.ROUND_RUNS, why.Members(round_id, size, hosts, lost, torn, checkpoint, in_memory, width):
            workers = workers_text(size, width, replicas_are_hosts=width == WHOLE_HOSTS)
            text = f"round {round_id}: {workers}{',' if width != 1 else ''} on {some_of(hosts)}"
            if in_memory:  # which the script loads, or does not
                text += f", to load the checkpoint in memory of step {checkpoint:,}"
            elif checkpoint:
                text += f", from the checkpoint of step {checkpoint:,}"
            return text + (f"; {count_text(lost, 'step')} lost" if lost else "") + (f": {torn}" if torn else "")
        case CauseKind.LEFT_ALONE, why.CauseList(causes, more):
            texts = [*map(cause_text, causes), *([f"and {more} more"] if more else [])]
            return f"left alone, because no other worker is known to hold the state: {'; '.join(texts)}"
        case CauseKind.LONG_WORK, why.RepeatedStall(place, times, seconds):
            longer = f"may take {seconds:.0f} s" if math.isfinite(seconds) else "has no limit"
            return (
                f"workers have made no progress for the {_ordinal(times)} time at {place}: what they do there {longer} "
                f"from now on. {_ANNOUNCE_ADVICE}"
            )
        case CauseKind.SIZE_REFUSED, why.RefusedSize(size, back, error):
            what = f"raised {error}" if error is not None else "failed"
            return (
                f"the script {what} with {count_text(size, 'worker')}, where {back} have trained: the run goes back to "
                f"{back}, and does not try {size} again. To leave further slots idle from the start, use --max-np "
                f"{back}; to have the run try again, use `edriver resize`"
            )
        case CauseKind.ATTRIBUTES_DIFFER, why.Digests() as digests:
            if _differing([digest for _, digest in digests.digests]) == [_MODES]:
                return _modes_text(digests)
            return f"{_disagreement_text(digests)}. The next change of members would end the run. {_EQUAL_ADVICE}"
        case CauseKind.DISCOVERY_FAILED, why.ReportedText(text):
            return f"discovery failed: {text}"
        case CauseKind.RESIZED, why.Count(count):
            return f"at most {count_text(count, 'worker')} from now on: {_request_text(cause)}"
        case CauseKind.DRIVER_RESUMED, why.Count(incarnation):
            return f"another driver has taken over, number {incarnation} of this run"
        case CauseKind.SAVE_UNMET, None:
            who = cause.requester or "an operator"
            return f"the run ends before the checkpoint that {who} has asked for is on disk"
        case CauseKind.UNWRITTEN, why.ReportedText(text):
            return text
        case CauseKind.DRIVER_PAUSED, why.Duration(seconds):
            return f"the driver stood still for {seconds:.1f} s: its process, or its machine, was stopped or overloaded"
        case CauseKind.CLOCK_SET, why.Duration(seconds):
            where = "forward" if seconds > 0 else "back"
            text = f"the clock of the driver's machine was set {where} by {abs(seconds):.0f} s"
            return f"{text}: this run's times are not affected"
    return ""


def _waits_for(cause: Cause) -> str:
    match cause.kind, cause.detail:
        case CauseKind.WORKERS_AWAITED, why.Shortage(found, needed, _, state_keeper, troubles):
            kept = "; a worker without a slot keeps the state for them" if state_keeper else ""
            return f"{_ready_text(found, needed)}{kept}{_in_brackets(troubles)}"
        case CauseKind.HOLDER_AWAITED, Version() as version:
            return f"for a worker that holds version {version}, or what is left of it"
        case CauseKind.BOOT_AWAITED, None:
            return "for workers that are booting"
        case CauseKind.SUSPECTS_AWAITED, None:
            return "for workers that are suspected"
        case CauseKind.SURVIVORS_AWAITED, None:
            return "no survivor of the last round is ready yet"
        case CauseKind.RUN_CALL_AWAITED, why.Duration(seconds):
            return (
                f"for a worker to call edriver.run: none has within --start-timeout {seconds:g} s. A script that never "
                "does trains separate copies, which --elastic-timeout will end"
            )
        case CauseKind.PAUSE_AWAITED, None:
            return "after unproven connections, to try again"
    return ""


def _disagreement_text(found: why.Digests) -> str:
    differing = _differing([digest for _, digest in found.digests])
    values = "; ".join(
        f"{worker_text(worker)} has {' '.join(_values(digest, differing)) or 'none'}"
        for worker, digest in found.digests
    )
    what = ", ".join(map(repr, differing)) or "attributes"
    return f"workers that hold the same version {found.version} disagree about the state's {what}: {values}"


def _modes_text(found: why.Digests) -> str:
    modes = "; ".join(
        f"{worker_text(worker)}: {_parts(digest).get(_MODES, 'unknown')}" for worker, digest in found.digests
    )
    return (
        f"workers compute in different modes at version {found.version}: {modes}. They train differently: set the same "
        "modes on all workers. A worker that joins takes rank 0's"
    )


def _values(digest: str, names: Sequence[str]) -> list[str]:
    """What a digest says of these attributes; all of it if there are no names, as of digests that were too long."""
    parts = _parts(digest)
    return [f"{name}={parts[name]}" for name in names if name in parts] if names else [digest]


def _parts(digest: str) -> dict[str, str]:
    """A digest has each attribute as name=value."""
    return dict(re.findall(r"(\w+)=(.*?)(?= \w+=|$)", digest))


def _differing(digests: Sequence[str]) -> list[str]:
    """The attributes in which digests differ."""
    parts = list(map(_parts, digests))
    return sorted(name for name in set().union(*parts) if len({part.get(name) for part in parts}) > 1)


def _place_of(cause: Cause) -> str:
    """The cause's host, or the slot of it that is concerned."""
    match cause.detail:
        case why.SlotTarget(int() as slot) | why.DrainTarget(int() as slot) | why.SlotQuarantine(slot):
            return f"slot {slot} of host {cause.host}"
    return f"host {cause.host}"


def _request_text(cause: Cause, reason: str = "") -> str:
    """The reason for a request, and the operator who made it, as far as they are known."""
    requested = f"requested by {cause.requester or 'an operator'}"
    if not reason:
        return requested
    return f"{reason} ({requested})" if cause.requester else reason


def _ready_text(found: int, needed: int) -> str:
    return "no worker is ready yet" if (found, needed) == (0, 1) else f"{found} of {needed} workers are ready"


def _in_brackets(troubles: Sequence[Cause]) -> str:
    return f" ({'; '.join(map(cause_text, troubles))})" if troubles else ""


def _change_text(change: why.Change) -> str:
    hosts = [*change.hosts, *([f"{change.more_hosts} more"] if change.more_hosts else [])]
    where = f" on {' and '.join(filter(None, [', '.join(hosts[:-1]), hosts[-1]]))}" if hosts else ""
    text = f"{count_text(change.joined, 'worker')} joined{where}, {change.left} left"
    reasons = [*map(_reason_text, change.reasons)]
    if change.more_reasons:
        reasons.append(f"and {change.more_reasons} more")
    return f"{text}: {'; '.join(reasons)}" if reasons else text


def _reason_text(cause: Cause) -> str:
    """Why members of a round change: `host b drained by me@laptop: maintenance`."""
    by = f" by {cause.requester}" if cause.requester else ""
    match cause.kind, cause.detail:
        case CauseKind.DRAINED, why.DrainTarget(_, reason):
            return f"{_place_of(cause)} drained{by}{f': {reason}' if reason else ''}"
        case CauseKind.RESIZED, why.Count(count):
            return f"resized to {count}{by or ' by an operator'}"
        case CauseKind.HOST_REMOVED, None:
            return f"host {cause.host} no longer named by discovery"
    return cause_text(cause)


def _names(workers: Iterable[WorkerName]) -> str:
    return some_of([*map(worker_text, workers)])


def _overspent_text(spent: why.LimitExceeded) -> str:
    rounds = f"{count_text(spent.total, 'round')} ended by a {spent.end.value}"
    if spent.recent < spent.total:
        rounds = f"{count_text(spent.recent, 'round')} ended by a {spent.end.value} within {spent.window:g} s"
    return f"{rounds}, more than {_LIMIT_NAMES[spent.end]} {spent.limit}; the last: {cause_text(spent.last)}"


def _ordinal(number: int) -> str:
    return {1: "first", 2: "second", 3: "third"}.get(number, f"{number}th")


def _resize_text(size: int, before: int) -> str:
    """That the size of the run has changed, which the script does not bear, and what to do about it."""
    changed = f"the run was resized from {before} to {count_text(size, 'worker')}, and the script has failed since"
    if size > before:
        return f"{changed} (--max-np {before} keeps it from growing)"
    return f"{changed} (--min-np {before} has it wait for hosts instead; --max-np sets the most workers)"


def _uneven_text(steps: why.UnevenSteps) -> str:
    over = " and ".join(filter(None, [_listed(steps.done, "done"), _listed(steps.stopped, "stopped as agreed")]))
    left = [_listed(steps.waiting, "waiting in a collective")]
    left.append(_listed(steps.idle, "idle, without output or use of a processor"))
    text = f"{'a script hangs' if steps.idle else 'uneven steps'}: {over}; {' and '.join(filter(None, left))}"
    if steps.busy:
        text += f"; {count_text(steps.busy, 'other')} still training"
    if not steps.again:
        return text
    advice = "does the script end on all ranks?" if steps.idle else "do all ranks make the same number of steps?"
    return f"{text}; the same happened in the round before ({advice})"


def _listed(groups: Iterable[why.StepGroup], doing: str) -> str:
    """Workers by the boundaries they have passed: `worker 1 (...) is done after 3 steps`; without the number if they
    pass no boundaries, as in restart mode.
    """
    texts = []
    for group in groups:
        names = [worker_text(worker) for worker in group.workers]
        if group.more:
            names.append(count_text(group.more, "other"))
        verb = "is" if len(names) == 1 else "are"
        after = f" after {count_text(group.boundaries, 'step')}" if group.boundaries else ""
        texts.append(f"{' and '.join(names)} {verb} {doing}{after}")
    return ", ".join(texts)
