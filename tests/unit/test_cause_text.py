"""Each cause in words: the one test that knows the sentences."""
# ruff: noqa: E501  a sentence is found here as it is printed

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from edriver.common.release import VERSION as VERSION_HERE
from edriver.driver.observe.cause_text import Line, agent_fault_text, cause_text, doing_text, obstacle_messages
from edriver.model import cause as why
from edriver.model.cause import AgentFaultKind, Cause, CauseKind, Detail, Halt, RoundEnd, WorkerName
from edriver.model.ids import NO_VERSION, RoundId, Version
from edriver.model.script_error import ScriptError
from edriver.model.settings import WHOLE_HOSTS
from edriver.wire.causes import cause_message

FIRST, SECOND, NEW = WorkerName(1, "a", 0, 0), WorkerName(2, "b", 1, 1), WorkerName(3, "b", 0, None)
ONE, TWO = "worker 1 (rank 0, a:0)", "worker 2 (rank 1, b:1)"
PLACE = ScriptError("", "train.py", 31, "evaluate")
ANNOUNCE = (
    'Announce an evaluation, a download or the like by `with edriver.phase("eval"):`; --stall-timeout sets how long each '
    "phase may last"
)
ERROR = ScriptError("ValueError", "train.py", 17, "train")
VERSION = Version(RoundId(1, 2), 30)
GONE = "all workers that held the state of the run are lost"
SILENT = why.AgentFault(AgentFaultKind.SILENT, seconds=5.0)
ENDED = why.AgentFault(AgentFaultKind.ENDED, "its agent exited")
KILLED = Cause(CauseKind.KILLED, FIRST, detail=why.Exit(-9))
SHORT = Cause(CauseKind.WORKERS_AWAITED, detail=why.Shortage(1, 2))
DRAINED = Cause(CauseKind.DRAINED, host="b", detail=why.DrainTarget(None, "it runs hot"))
DRAINED_BY = Cause(CauseKind.DRAINED, host="b", detail=why.DrainTarget(None, "maintenance"), requester="me@laptop")
SLOT_DRAINED = Cause(CauseKind.DRAINED, host="b", detail=why.DrainTarget(1, "SIGTERM"))
FEWER_SLOTS = Cause(CauseKind.HOST_RESIZED, host="d", detail=why.Count(1))
NO_ANSWER = Cause(CauseKind.DISCOVERY_FAILED, detail=why.ReportedText("exit code 1"))


def step(boundaries: int, *workers: WorkerName, more: int = 0) -> tuple[why.StepGroup, ...]:
    return (why.StepGroup(boundaries, workers, more),)


UNEVEN = why.UnevenSteps(step(3, FIRST), (), step(4, SECOND), busy=0)

OF_A_WORKER: list[tuple[CauseKind, Detail | None, str]] = [
    (CauseKind.EXITED, why.Exit(1), "exited with code 1"),
    (
        CauseKind.EXITED,
        why.Exit(1, recorded=ScriptError("ValueError", "train.py", 3, "train")),
        "exited with code 1 after it had recorded ValueError at train.py:3, in train",
    ),
    (
        CauseKind.EXITED,
        why.Exit(0),
        "exited with code 0 before its edriver.run was done (does the script call edriver.run, and not exit inside it?)",
    ),
    (
        CauseKind.SOURCE_DIFFERS,
        why.ReportedText("loss.py (changed at 2026-11-26 14:05:31)"),
        "runs a script that differs from the one that the run began with: loss.py (changed at 2026-11-26 14:05:31)",
    ),
    (
        CauseKind.NO_BOUNDARY,
        why.NoBoundary(10, "train.py:31 (train)"),
        "has made 10 steps without a boundary (train.py:31 (train)): until it passes one, no step counts, a failure loses all of them, and workers that join wait. Call state.check_host_updates() or state.commit() after each step",
    ),
    (
        CauseKind.NO_BOUNDARY,
        why.NoBoundary(30, "", returned=True),
        "has returned from its training function after 30 steps without a boundary: nothing of it was counted. Call state.check_host_updates() or state.commit() after each step",
    ),
    *(
        (
            CauseKind.SAME_SAMPLES,
            why.SameSamples(source, "train.py:20 (train)", SECOND),
            f"trains on the same samples as {TWO}: the data loader at train.py:20 (train) hands out the same batches on both, so a step learns no more than one worker would. {advice}",
        )
        for source, advice in (
            (
                "RandomSampler",
                "Give it a sampler that splits them: DataLoader(dataset, sampler=edriver.ElasticSampler(dataset), ...)",
            ),
            (
                "WeightedRandomSampler",
                "Give its WeightedRandomSampler another generator on each worker: generator=torch.Generator().manual_seed(edriver.worker_seed())",
            ),
            ("IterableDataset", "Have each rank read other samples, as edriver.ElasticStream does"),
        )
    ),
    (
        CauseKind.NOT_FINITE,
        why.NotFinite("loss", "nan", "train.py:40 (train)", 120),
        "reported loss = nan (step 120, train.py:40 (train))",
    ),
    (CauseKind.NOT_FINITE, why.NotFinite("loss", "-inf", ""), "reported loss = -inf"),
    (CauseKind.NOT_STARTED, why.Exit(127, "no such file"), "could not be started: no such file"),
    (CauseKind.KILLED, why.Exit(-9), "was killed by SIGKILL"),
    (
        CauseKind.KILLED,
        why.Exit(-11, place=PLACE),
        "was killed by SIGSEGV, at train.py:31, in evaluate",
    ),
    (
        CauseKind.COLLECTIVES_DIFFER,
        why.Exit(-6),
        "was killed by SIGABRT: ranks called different collectives. It called one, and received data of another",
    ),
    (
        CauseKind.COLLECTIVES_DIFFER,
        why.Mismatch(-6, PLACE, ((SECOND, PLACE._replace(line=40)), (FIRST, PLACE._replace(line=41)))),
        f"was killed by SIGABRT: ranks called different collectives. It called one at train.py:31, in evaluate, and received data of another; {TWO} was at train.py:40, in evaluate, {ONE} was at train.py:41, in evaluate. All ranks have to call the same collectives in the same order (is one inside `if edriver.rank() == 0:`?)",
    ),
    (CauseKind.OUT_OF_MEMORY, why.Exit(-9), "was killed by the kernel: out of memory"),
    (
        CauseKind.CHILD_OUT_OF_MEMORY,
        why.MemoryKill(812, memory_limit=512 << 20),
        "lost process 812, which it had started: out of memory, so the kernel killed it (its cgroup's limit is 512 MiB)",
    ),
    (
        CauseKind.CHILD_OUT_OF_MEMORY,
        why.MemoryKill(0),
        "may have lost a process that it had started: out of memory, so the kernel killed one",
    ),
    (
        CauseKind.CHILD_OUT_OF_MEMORY,
        why.MemoryKill(812, uncertain=True),
        "lost process 812, which it had started, while the kernel killed a process on its host because memory ran out",
    ),
    (
        CauseKind.OUT_OF_MEMORY,
        why.Exit(137, memory_limit=512 << 20),
        "was killed by the kernel: out of memory (its cgroup's limit is 512 MiB)",
    ),
    (
        CauseKind.MAYBE_OUT_OF_MEMORY,
        why.Exit(-9),
        "was killed by SIGKILL while the kernel killed a process on its host because memory ran out",
    ),
    (CauseKind.ENDED, None, "has ended"),
    (CauseKind.RAISED, ERROR, "raised an exception"),
    (CauseKind.RAISED, ScriptError("SystemExit", "", 0, ""), "called sys.exit before training was done"),
    (
        CauseKind.SILENT,
        why.Silence(10.0, Halt.STOPPED),
        "did not answer for 10 s: its process is stopped by a signal (SIGSTOP or Ctrl-Z)",
    ),
    (CauseKind.SILENT, why.Silence(10.0, Halt.TRACED), "did not answer for 10 s: its process is stopped by a debugger"),
    (
        CauseKind.SILENT,
        why.Silence(10.0, Halt.FROZEN),
        "did not answer for 10 s: its process is frozen with its cgroup (is its container paused?)",
    ),
    (
        CauseKind.STALLED,
        why.Stall("step", 31.0, PLACE),
        "has made no progress for 31 s (step), at train.py:31, in evaluate",
    ),
    (
        CauseKind.EXIT_OVERDUE,
        why.Silence(30.0, Halt.STOPPED),
        "did not exit after its script had ended: no sign of life for 30 s (--exit-timeout): its process is stopped by a signal (SIGSTOP or Ctrl-Z)",
    ),
    (CauseKind.SILENT, why.Duration(5.0), "did not answer for 5 s"),
    (CauseKind.STALLED, why.Stall("step", 600.0), "has made no progress for 600 s (step)"),
    (CauseKind.STUCK, None, "hangs in a collective of the aborted round and cannot be freed"),
    (
        CauseKind.EXIT_OVERDUE,
        why.Duration(600.0),
        "did not exit after its script had ended: no sign of life for 600 s (--exit-timeout)",
    ),
    (
        CauseKind.NEVER_TRAINED,
        None,
        (
            "has not completed a step, and collectives fail in each round with it "
            "(a bad link to its host, or another version of the script?)"
        ),
    ),
    (CauseKind.UNREACHABLE, SILENT, "cannot be reached: its agent has not answered for 5 s"),
    (CauseKind.LOST_WITH_HOST, ENDED, "was lost: its agent exited"),
    (CauseKind.LEFT_ROUND, None, "left the round on its own"),
]

OF_A_HOST: list[tuple[CauseKind, Detail | None, str]] = [
    (CauseKind.HOST_LOST, SILENT, "host b is lost: its agent has not answered for 5 s"),
    (CauseKind.HOST_UNUSED, ENDED, "host b is not used: its agent exited"),
    (CauseKind.HOST_ADDED, why.Count(2), "host b was added with 2 slots"),
    (CauseKind.HOST_REMOVED, None, "host b is no longer named by discovery"),
    (CauseKind.HOST_RESIZED, why.Count(1), "host b has 1 slot now"),
    (CauseKind.HOST_UNANSWERED, None, "host b has not answered yet"),
    (
        CauseKind.HOST_UNSTEADY,
        why.Count(6),
        "host b comes and goes: it has changed 6 times in discovery's latest answers",
    ),
    (
        CauseKind.OUTPUT_OMITTED,
        why.Count(3),
        "host b has workers that print faster than their output can be read: 3 lines left out",
    ),
    (
        CauseKind.CHECKPOINT_UNCOPIED,
        why.ReportedText("host a is gone"),
        "host b cannot fetch a copy of another host's checkpoint: host a is gone",
    ),
    (
        CauseKind.CHECKPOINT_UNWRITTEN,
        why.ReportedText("/c: No space left on device"),
        "host b cannot write a checkpoint from memory to disk: /c: No space left on device",
    ),
    (
        CauseKind.SAVE_MISSED,
        why.ReportedText("rank 2 has saved step 15, but not step 10 as others have"),
        (
            "host b has a rank that does not save the same steps as the others, so no checkpoint in memory completes: "
            "rank 2 has saved step 15, but not step 10 as others have; have all ranks call save() with the same steps"
        ),
    ),
    (
        CauseKind.OUTPUT_UNWRITTEN,
        why.ReportedText("/f: No space left on device"),
        "host b no longer writes all of its workers' output to files: /f: No space left on device",
    ),
    (CauseKind.DRAINED, why.DrainTarget(None, "it runs hot"), "host b is drained: it runs hot"),
    (CauseKind.DRAINED, why.DrainTarget(None, ""), "host b is drained: requested by an operator"),
    (CauseKind.DRAINED, why.DrainTarget(1, "it runs hot"), "slot 1 of host b is drained: it runs hot"),
    (CauseKind.UNDRAINED, why.SlotTarget(None), "host b may be used again"),
    (CauseKind.UNDRAINED, why.SlotTarget(0), "slot 0 of host b may be used again"),
    (CauseKind.SLOTS_DRAINED, why.Count(1), "host b has 1 slot drained"),
    (CauseKind.SLOTS_COOLING, why.Count(2), "host b has 2 slots cooling down after a failure"),
    (
        CauseKind.SLOTS_SPARE,
        why.SpareSlots(2, 6, resized=False),
        "host b has 2 slots idle: the run may use 6 workers (--max-np)",
    ),
    (
        CauseKind.SLOTS_SPARE,
        why.SpareSlots(1, 2, resized=False, refused=3),
        (
            "host b has 1 slot idle: the script fails with 3 workers, so the run stays at 2 (--max-np; `edriver resize` has it "
            "try again)"
        ),
    ),
    (
        CauseKind.SLOTS_UNFIT,
        why.UnfitSlots(1, 2),
        "host b has 1 slot idle: not enough for a replica of 2 workers (--replica-size)",
    ),
    (
        CauseKind.SLOTS_UNFIT,
        why.UnfitSlots(2, 4, missing=1, slots=2),
        "host b has 2 slots idle: a replica of 4 workers needs 1 more host of 2 slots",
    ),
    (CauseKind.HOST_QUARANTINED, None, "host b is quarantined"),
    (
        CauseKind.HOST_QUARANTINED,
        why.HostQuarantine(10.0, 4, 2, 600.0, 1, 6),
        "host b is quarantined for 10.0 s: 4 failures in its 2 slots within 600 s, and 1 in the 6 of other hosts",
    ),
    (
        CauseKind.SLOT_QUARANTINED,
        why.SlotQuarantine(1, 2.0, 3),
        "slot 1 of host b is quarantined for 2.0 s: 3 failures",
    ),
    (CauseKind.COOLDOWN_OVER, why.SlotTarget(None), "host b may be used again: its cooldown is over"),
    (
        CauseKind.QUARANTINE_WAIVED,
        why.Count(3),
        "host b is used in spite of its quarantine: --min-np 3 cannot be reached without it",
    ),
]

OF_THE_RUN: list[tuple[CauseKind, Detail | None, str]] = [
    (CauseKind.NO_ANSWER, why.Unanswered(9.0, (FIRST, SECOND)), f"no answer to a notice within 9 s from {ONE}, {TWO}"),
    (CauseKind.BOUNDARY_MISSED, why.BoundaryMissed(7, (SECOND,)), f"boundary 7 was not reached in time by {TWO}"),
    (CauseKind.BOUNDARIES_DIFFER, None, "some ranks passed more boundaries than others (uneven data loaders?)"),
    (
        CauseKind.UNEVEN_STEPS,
        UNEVEN,
        f"uneven steps: {ONE} is done after 3 steps; {TWO} is waiting in a collective after 4 steps",
    ),
    (
        CauseKind.UNEVEN_STEPS,
        replace(UNEVEN, stopped=step(1, SECOND, NEW, more=5), busy=1, again=True),
        (
            f"uneven steps: {ONE} is done after 3 steps and {TWO} and worker 3 (b:0) and 5 others are stopped as agreed after "
            f"1 step; {TWO} is waiting in a collective after 4 steps; 1 other still training; the same happened in the round before "
            "(do all ranks make the same number of steps?)"
        ),
    ),
    (
        CauseKind.UNEVEN_STEPS,
        why.UnevenSteps(step(0, FIRST), (), (), busy=0, idle=step(0, SECOND), again=True),
        (
            f"a script hangs: {ONE} is done; {TWO} is idle, without output or use of a processor; the same happened in the "
            "round before (does the script end on all ranks?)"
        ),
    ),
    (CauseKind.MEMBERS_CHANGE, why.Change(1, 2), "1 worker joined, 2 left"),
    (CauseKind.MEMBERS_CHANGE, why.Change(1, 0, ("c",)), "1 worker joined on c, 0 left"),
    (CauseKind.MEMBERS_CHANGE, why.Change(3, 0, ("c", "d", "e")), "3 workers joined on c, d and e, 0 left"),
    (CauseKind.MEMBERS_CHANGE, why.Change(9, 0, ("c", "d"), 3), "9 workers joined on c, d and 3 more, 0 left"),
    (
        CauseKind.MEMBERS_CHANGE,
        why.Change(0, 2, reasons=(DRAINED_BY, Cause(CauseKind.HOST_REMOVED, host="c"))),
        "0 workers joined, 2 left: host b drained by me@laptop: maintenance; host c no longer named by discovery",
    ),
    (
        CauseKind.MEMBERS_CHANGE,
        why.Change(0, 3, reasons=(SLOT_DRAINED, FEWER_SLOTS), more_reasons=2),
        "0 workers joined, 3 left: slot 1 of host b drained: SIGTERM; host d has 1 slot now; and 2 more",
    ),
    (
        CauseKind.MEMBERS_CHANGE,
        why.Change(0, 1, reasons=(Cause(CauseKind.RESIZED, detail=why.Count(3), requester="me@laptop"),)),
        "0 workers joined, 1 left: resized to 3 by me@laptop",
    ),
    (
        CauseKind.MEMBERS_CHANGE,
        why.Change(1, 0, ("a",), reasons=(Cause(CauseKind.RESIZED, detail=why.Count(4)),)),
        "1 worker joined on a, 0 left: resized to 4 by an operator",
    ),
    (CauseKind.RUN_BEGAN, None, "the run began"),
    (
        CauseKind.ALL_DONE,
        why.Done(30, 30),
        "all workers are done; their processes end, or enter the script's next run",
    ),
    (
        CauseKind.ALL_DONE,
        why.Done(3, 4),
        (
            "all workers are done; their processes end, or enter the script's next run (ranks passed unequal numbers of "
            "boundaries, 3 to 4)"
        ),
    ),
    (CauseKind.SUCCESS, None, "all workers are done and exited with code 0"),
    (CauseKind.STOPPED, why.ReportedText("the driver received SIGINT"), "the driver received SIGINT"),
    (CauseKind.STOPPED, why.ReportedText(""), "requested by an operator"),
    (CauseKind.SOURCE_UNUSABLE, why.ReportedText("hosts.txt: no such file"), "hosts.txt: no such file"),
    (
        CauseKind.FAILED_LATE,
        why.CausedBy(KILLED),
        f"a worker failed after training was done: {ONE} was killed by SIGKILL",
    ),
    (CauseKind.STATE_LOST, None, GONE),
    (
        CauseKind.STATE_LOST,
        why.ReportedText("0, 3"),
        "all workers that held the newest state of these positions in a replica are lost: 0, 3",
    ),
    (
        CauseKind.STATE_LOST,
        why.RaisedByAll(ERROR, 1),
        f"{GONE}: its only worker raised ValueError at train.py:17, in train",
    ),
    (
        CauseKind.STATE_LOST,
        why.RaisedByAll(ERROR, 2),
        f"{GONE}: each of its 2 workers raised ValueError at train.py:17, in train",
    ),
    (
        CauseKind.STATES_DIFFER,
        why.Digests(VERSION, ((FIRST, "step=1 x=1"), (SECOND, "step=1 x=2"))),
        (
            f"workers that hold the same version 1.2:30 disagree about the state's 'x': {ONE} has x=1; {TWO} has "
            "x=2. Attributes of the state must be equal on all ranks: keep values that differ out of it, or "
            "have all ranks take rank 0's (from_rank_0=)"
        ),
    ),
    (
        CauseKind.COLLECTIVES_BROKEN,
        why.Tracebacks(VERSION, ((FIRST, "RuntimeError: shapes"),)),
        (
            "collectives failed in two rounds in a row at version 1.2:30, with no worker lost (unequal shapes or a bad "
            f"link?):\n{ONE}:\nRuntimeError: shapes"
        ),
    ),
    (
        CauseKind.COLLECTIVES_BROKEN,
        why.Tracebacks(NO_VERSION, ((FIRST, "RuntimeError: shapes"),)),
        (
            "collectives failed in two rounds in a row without progress between them, with no worker lost (unequal "
            f"shapes or a bad link?):\n{ONE}:\nRuntimeError: shapes"
        ),
    ),
    (
        CauseKind.SAME_ERROR,
        why.RepeatedError(ERROR, 2, (("a", 0), ("b", 1))),
        (
            "the script raised ValueError at train.py:17, in train in 2 rounds (in a:0, b:1) without progress between "
            "them: another round would meet the same error"
        ),
    ),
    (
        CauseKind.LONG_WORK,
        why.RepeatedStall(PLACE, 2, 1800.0),
        (
            "workers have made no progress for the second time at train.py:31, in evaluate: what they do there may take 1800 s "
            f"from now on. {ANNOUNCE}"
        ),
    ),
    (
        CauseKind.LONG_WORK,
        why.RepeatedStall(PLACE, 2, math.inf),
        (
            "workers have made no progress for the second time at train.py:31, in evaluate: what they do there has no limit "
            f"from now on. {ANNOUNCE}"
        ),
    ),
    (
        CauseKind.SAME_STALL,
        why.RepeatedStall(PLACE, 3, 1800.0),
        (
            "workers have made no progress for the third time at train.py:31, in evaluate, the last one for 1800 s, without a "
            f"step between: another round would end there, too. {ANNOUNCE}"
        ),
    ),
    (
        CauseKind.RESIZE_FAILED,
        why.FailedResize(3, 2, Cause(CauseKind.STATE_LOST)),
        (
            "the run was resized from 2 to 3 workers, and the script has failed since (--max-np 2 keeps it from growing): all "
            "workers that held the state of the run are lost"
        ),
    ),
    (
        CauseKind.RESIZE_FAILED,
        why.FailedResize(3, 4, Cause(CauseKind.STATE_LOST)),
        (
            "the run was resized from 4 to 3 workers, and the script has failed since (--min-np 4 has it wait for hosts instead; "
            "--max-np sets the most workers): all workers that held the state of the run are lost"
        ),
    ),
    (
        CauseKind.SIZE_REFUSED,
        why.RefusedSize(3, 2, ERROR),
        (
            "the script raised ValueError at train.py:17, in train with 3 workers, where 2 have trained: the run goes back to "
            "2, and does not try 3 again. To leave further slots idle from the start, use --max-np 2; to have the run try again, "
            "use `edriver resize`"
        ),
    ),
    (
        CauseKind.BUDGET_SPENT,
        why.LimitExceeded(RoundEnd.FAILURE, 0, 1, 1, 10.0, KILLED),
        f"1 round ended by a failure, more than --reset-limit 0; the last: {ONE} was killed by SIGKILL",
    ),
    (
        CauseKind.BUDGET_SPENT,
        why.LimitExceeded(RoundEnd.PREEMPTION, 1, 5, 2, 10.0, KILLED),
        (
            "2 rounds ended by a preemption within 10 s, more than the limit of preemptions 1; the last: "
            f"{ONE} was killed by SIGKILL"
        ),
    ),
    (
        CauseKind.BUDGET_SPENT,
        why.LimitExceeded(RoundEnd.RESIZE, 1, 2, 2, 10.0, Cause(CauseKind.MEMBERS_CHANGE, detail=why.Change(1, 0))),
        "2 rounds ended by a resize, more than the limit of resizes 1; the last: 1 worker joined, 0 left",
    ),
    (
        CauseKind.TOO_FEW_SLOTS,
        why.Shortage(1, 2, 30.0, troubles=(NO_ANSWER, DRAINED)),
        (
            "found 1 usable slot within --start-timeout 30 s; the run needs 2 (--min-np, by default -np) (discovery failed: "
            "exit code 1; host b is drained: it runs hot)"
        ),
    ),
    (CauseKind.START_FAILED, None, "every worker failed before training began"),
    (
        CauseKind.UNPROVEN_CONNECTIONS,
        why.TimedOut(600.0, Cause(CauseKind.PEER_UNPROVEN, SECOND, detail=why.ReportedText("no proof"))),
        f"unproven connections have ended every round for --elastic-timeout 600 s; the last: {TWO}: no proof",
    ),
    (
        CauseKind.TIMED_OUT,
        why.TimedOut(600.0, SHORT),
        "gave up after --elastic-timeout 600 s of waiting: 1 of 2 workers are ready",
    ),
    (
        CauseKind.TIMED_OUT,
        why.TimedOut(600.0, Cause(CauseKind.LEFT_ALONE, detail=why.CauseList((KILLED,)))),
        (
            "gave up after --elastic-timeout 600 s: left alone, because no other worker is known to hold the state: "
            f"{ONE} was killed by SIGKILL"
        ),
    ),
    (CauseKind.TIMED_OUT, why.TimedOut(600.0, None), "gave up after --elastic-timeout 600 s"),
    (CauseKind.ROUND_RUNS, why.Members(RoundId(1, 2), 3, ("a", "b")), "round 1.2: 3 workers on a, b"),
    (CauseKind.ROUND_RUNS, why.Members(RoundId(1, 2), 1, ("a",), 1), "round 1.2: 1 worker on a; 1 step lost"),
    (
        CauseKind.ROUND_RUNS,
        why.Members(RoundId(1, 2), 4, ("a", "b"), replica_size=2),
        "round 1.2: 4 workers, 2 replicas of 2, on a, b",
    ),
    (
        CauseKind.ROUND_RUNS,
        why.Members(RoundId(1, 2), 4, ("a", "b"), replica_size=WHOLE_HOSTS),
        "round 1.2: 4 workers, in a replica on each host, on a, b",
    ),
    (
        CauseKind.ROUND_RUNS,
        why.Members(RoundId(1, 2), 3, ("a",), 20, "torn: commit"),
        "round 1.2: 3 workers on a; 20 steps lost: torn: commit",
    ),
    (
        CauseKind.ROUND_RUNS,
        why.Members(RoundId(1, 4), 2, ("a",), checkpoint=41_200),
        "round 1.4: 2 workers on a, from the checkpoint of step 41,200",
    ),
    (
        CauseKind.ROUND_RUNS,
        why.Members(RoundId(1, 4), 2, ("a",), checkpoint=41_200, in_memory=True),
        "round 1.4: 2 workers on a, to load the checkpoint in memory of step 41,200",
    ),
    (CauseKind.WORKERS_AWAITED, why.Shortage(1, 2), "waiting: 1 of 2 workers are ready"),
    (
        CauseKind.WORKERS_AWAITED,
        why.Shortage(0, 1, state_keeper=True, troubles=(DRAINED,)),
        (
            "waiting: no worker is ready yet; a worker without a slot keeps the state for them (host b is drained: it runs "
            "hot)"
        ),
    ),
    (
        CauseKind.HOLDER_AWAITED,
        VERSION,
        "waiting: for a worker that holds version 1.2:30, or what is left of it",
    ),
    (CauseKind.BOOT_AWAITED, None, "waiting: for workers that are booting"),
    (CauseKind.SUSPECTS_AWAITED, None, "waiting: for workers that are suspected"),
    (CauseKind.SURVIVORS_AWAITED, None, "waiting: no survivor of the last round is ready yet"),
    (
        CauseKind.RUN_CALL_AWAITED,
        why.Duration(30),
        (
            "waiting: for a worker to call edriver.run: none has within --start-timeout 30 s. A script that never does "
            "trains separate copies, which --elastic-timeout will end"
        ),
    ),
    (
        CauseKind.ATTRIBUTES_DIFFER,
        why.Digests(VERSION, ((FIRST, "best=1.5 step=1"), (SECOND, "best=2.5 step=1"))),
        (
            f"workers that hold the same version 1.2:30 disagree about the state's 'best': {ONE} has best=1.5; "
            f"{TWO} has best=2.5. The next change of members would end the run. Attributes of the state must be "
            "equal on all ranks: keep values that differ out of it, or have all ranks take rank 0's (from_rank_0=)"
        ),
    ),
    (
        CauseKind.ATTRIBUTES_DIFFER,
        why.Digests(
            VERSION, ((FIRST, "best=1.5 _modes=gradients on"), (SECOND, "best=2.5 step=1 _modes=gradients on"))
        ),
        (
            f"workers that hold the same version 1.2:30 disagree about the state's 'best', 'step': {ONE} has best=1.5; "
            f"{TWO} has best=2.5 step=1. The next change of members would end the run. Attributes of the state must be "
            "equal on all ranks: keep values that differ out of it, or have all ranks take rank 0's (from_rank_0=)"
        ),
    ),
    (
        CauseKind.ATTRIBUTES_DIFFER,
        why.Digests(
            VERSION,
            (
                (FIRST, "step=1 _modes=gradients on"),
                (SECOND, "step=1 _modes=gradients on, default dtype float64; in eval mode: model.1"),
            ),
        ),
        (
            f"workers compute in different modes at version 1.2:30: {ONE}: gradients on; {TWO}: gradients on, default dtype "
            "float64; in eval mode: model.1. They train differently: set the same modes on all workers. A worker that joins "
            "takes rank 0's"
        ),
    ),
    (CauseKind.PAUSE_AWAITED, None, "waiting: after unproven connections, to try again"),
    (
        CauseKind.LEFT_ALONE,
        why.CauseList((KILLED,), more=3),
        f"left alone, because no other worker is known to hold the state: {ONE} was killed by SIGKILL; and 3 more",
    ),
    (CauseKind.DISCOVERY_FAILED, why.ReportedText("exit code 1"), "discovery failed: exit code 1"),
    (CauseKind.DRIVER_RESUMED, why.Count(2), "another driver has taken over, number 2 of this run"),
    (CauseKind.RESIZED, why.Count(2), "at most 2 workers from now on: requested by an operator"),
    (
        CauseKind.SAVE_UNMET,
        None,
        "the run ends before the checkpoint that an operator has asked for is on disk",
    ),
    (CauseKind.UNWRITTEN, why.ReportedText("the record /r cannot be written"), "the record /r cannot be written"),
    (
        CauseKind.DRIVER_PAUSED,
        why.Duration(8.04),
        "the driver stood still for 8.0 s: its process, or its machine, was stopped or overloaded",
    ),
    (
        CauseKind.CLOCK_SET,
        why.Duration(3600.2),
        "the clock of the driver's machine was set forward by 3600 s: this run's times are not affected",
    ),
    (
        CauseKind.CLOCK_SET,
        why.Duration(-3600.0),
        "the clock of the driver's machine was set back by 3600 s: this run's times are not affected",
    ),
]

ABOUT_A_WORKER: list[tuple[CauseKind, Detail | None, str]] = [
    (CauseKind.COLLECTIVE_FAILED, None, f"a collective of {ONE} failed"),
    (CauseKind.PEER_UNPROVEN, why.ReportedText("no proof"), f"{ONE}: no proof"),
]

ALL = [
    *((Cause(kind, FIRST, detail=detail), f"{ONE} {words}") for kind, detail, words in OF_A_WORKER),
    *((Cause(kind, FIRST, detail=detail), words) for kind, detail, words in ABOUT_A_WORKER),
    *((Cause(kind, host="b", detail=detail), words) for kind, detail, words in OF_A_HOST),
    *((Cause(kind, detail=detail), words) for kind, detail, words in OF_THE_RUN),
]


@pytest.mark.parametrize(("cause", "text"), ALL, ids=[f"{n}-{cause.kind.value}" for n, (cause, _) in enumerate(ALL)])
def test_the_words_of_a_cause(cause: Cause, text: str) -> None:
    assert cause_text(cause) == text
    assert cause_text(replace(cause, preempted=True)) == text


@pytest.mark.parametrize(
    ("cause", "text"),
    [
        (DRAINED, "host b is drained: it runs hot (requested by ada@login1)"),
        (
            Cause(CauseKind.DRAINED, host="b", detail=why.DrainTarget(1, "")),
            "slot 1 of host b is drained: requested by ada@login1",
        ),
        (
            Cause(CauseKind.UNDRAINED, host="b", detail=why.SlotTarget(None)),
            "host b may be used again: requested by ada@login1",
        ),
        (
            Cause(CauseKind.RESIZED, detail=why.Count(2)),
            "at most 2 workers from now on: requested by ada@login1",
        ),
        (
            Cause(CauseKind.STOPPED, detail=why.ReportedText("its loss is flat")),
            "its loss is flat (requested by ada@login1)",
        ),
        (Cause(CauseKind.STOPPED, detail=why.ReportedText("")), "requested by ada@login1"),
    ],
)
def test_what_an_operator_asked_for_names_the_operator(cause: Cause, text: str) -> None:
    asked = replace(cause, requester="ada@login1")
    assert cause_text(asked) == text
    assert cause_message(asked).requester == "ada@login1"


def test_every_kind_has_words() -> None:
    assert {cause.kind for cause, _ in ALL} == set(CauseKind)


def test_a_cause_that_the_core_does_not_make_has_none() -> None:
    with pytest.raises(ValueError, match="no words"):
        cause_text(Cause(CauseKind.COLLECTIVE_FAILED))


@pytest.mark.parametrize(
    ("fault", "text"),
    [
        (ENDED, "its agent exited"),
        (
            why.AgentFault(AgentFaultKind.NEVER_ANSWERED, seconds=30.0),
            "its agent has not answered within 30 s of its start",
        ),
        (SILENT, "its agent has not answered for 5 s"),
        (
            why.AgentFault(AgentFaultKind.OTHER_RELEASE, "0.1"),
            f"its agent runs edriver 0.1, whose protocol this driver does not speak: install {VERSION_HERE} there",
        ),
        (
            why.AgentFault(AgentFaultKind.OTHER_RELEASE),
            f"its agent runs an older edriver, whose protocol this driver does not speak: install {VERSION_HERE} there",
        ),
        (why.AgentFault(AgentFaultKind.OVERLOADED, "9 wait"), "its agent does not accept orders: 9 wait"),
    ],
)
def test_what_is_wrong_with_an_agent(fault: why.AgentFault, text: str) -> None:
    assert agent_fault_text(fault) == text


def test_one_that_never_was_in_a_round_has_no_rank() -> None:
    assert cause_text(Cause(CauseKind.ENDED, NEW)) == "worker 3 (b:0) has ended"


def test_what_a_line_a_status_and_a_host_say() -> None:
    assert Line(KILLED, RoundId(1, 2)).text == f"round 1.2 ended: {ONE} was killed by SIGKILL"
    assert Line(KILLED).text == f"{ONE} was killed by SIGKILL"


def test_which_lines_tell_of_a_failure() -> None:
    changed = Cause(CauseKind.MEMBERS_CHANGE)
    assert Line(KILLED, RoundId(1, 2)).is_failure
    assert Line(KILLED).is_failure
    assert not Line(replace(KILLED, preempted=True), RoundId(1, 2)).is_failure
    assert not Line(changed, RoundId(1, 2)).is_failure
    assert not Line(Cause(CauseKind.BOOT_AWAITED)).is_failure
    assert doing_text(None) == "starting"
    cooling = Cause(CauseKind.SLOTS_COOLING, host="b", detail=why.Count(1))
    obstacles = obstacle_messages([DRAINED, cooling])
    assert [each.text for each in obstacles] == ["is drained: it runs hot", "has 1 slot cooling down after a failure"]
