from __future__ import annotations

import textwrap
from collections import deque
from dataclasses import replace

import pytest

from edriver.driver.observe.console.failure_report import (
    MAX_TAIL_LINES,
    Tally,
    failure_report,
    success_report,
    with_last_output,
)
from edriver.driver.observe.console.hints import Hints, last_stop
from edriver.model.actions import Failure, FinishRun, RunEnd
from edriver.model.cause import Cause, CauseKind, Digests, Exit, ReportedText, Shortage, TimedOut, WorkerName
from edriver.model.events import RecordedError, WorkerExited
from edriver.model.ids import RoundId, Version
from edriver.model.script_error import script_error
from edriver.v1 import cause_pb2, rounds_pb2, status_pb2

TRACEBACK = """\
Traceback (most recent call last):
  File "train.py", line 3, in train
    raise ValueError("bad batch")
ValueError: bad batch
"""

PRINTED = TRACEBACK.replace("\n", '\n  File "train.py", line 9, in <module>\n    main()\n', 1)
"""The same exception as the interpreter prints it, with the frames further out."""

START_FAILED = Cause(CauseKind.START_FAILED)


def raised(worker: WorkerName, traceback: str, tail: str = "") -> Failure:
    return Failure(worker, Cause(CauseKind.RAISED, worker, detail=script_error(traceback)), traceback, tail)


def exited(worker: WorkerName, code: int, tail: str) -> Failure:
    kind = CauseKind.KILLED if code < 0 else CauseKind.EXITED
    return Failure(worker, Cause(kind, worker, detail=Exit(code)), tail=tail)


RAISED = raised(WorkerName(3, "a", 1, 2), TRACEBACK, f"epoch 1\n{PRINTED}")
KILLED = exited(WorkerName(4, "b", 0, None), -9, "step 7\nstep 8\n")


def text_of(*failures: Failure, end: RunEnd = RunEnd.FAILED, cause: Cause = START_FAILED) -> str:
    return failure_report(FinishRun(end, cause, failures), Hints()) + "\n"


def test_the_root_cause_comes_first_with_all_that_is_known_of_it() -> None:
    assert text_of(RAISED, KILLED) == textwrap.dedent("""\
        failed: worker 3 (rank 2, a:1) raised an exception
          Traceback (most recent call last):
            File "train.py", line 3, in train
              raise ValueError("bad batch")
          ValueError: bad batch
          its last lines of output:
            epoch 1
        so the run ended: every worker failed before training began
        also: worker 4 (b:0) was killed by SIGKILL: step 8
        """)


@pytest.mark.parametrize(
    ("last", "elastic", "hint"),
    [
        pytest.param(
            "ValueError: Error initializing torch.distributed using env:// rendezvous: environment variable RANK "
            "expected, but not set",
            True,
            "give --mode restart",
            id="init_process_group",
        ),
        pytest.param("KeyError: 'LOCAL_RANK'", True, "give --mode restart", id="variable"),
        pytest.param("KeyError: 'LOCAL_RANK'", True, "edriver.rank()", id="variable-in-elastic-mode"),
        pytest.param("KeyError: 'LOCAL_RANK'", False, None, id="variable-in-restart-mode"),
        pytest.param(
            "ValueError: Default process group has not been initialized, please make sure to call init_process_group.",
            True,
            "only inside the function that edriver.run calls",
            id="outside-of-the-training-function",
        ),
        pytest.param(
            "ValueError: Default process group has not been initialized, please make sure to call init_process_group.",
            False,
            None,
            id="no-init_process_group-in-restart-mode",
        ),
        pytest.param(
            "/usr/bin/python: Error while finding module specification for 'edriver.worker.restart' "
            "(ModuleNotFoundError: No module named 'edriver')",
            False,
            "as in `/venv/bin/python train.py`",
            id="another-python-in-restart-mode",
        ),
        pytest.param(
            "ModuleNotFoundError: No module named 'edriver'", True, "Name the Python that has it", id="another-python"
        ),
        pytest.param("ModuleNotFoundError: No module named 'edrive'", True, None, id="another-module"),
        pytest.param("KeyError: 'rank'", True, None, id="another-key"),
        pytest.param(
            "torch.AcceleratorError: CUDA error: invalid device ordinal\nGPU device may be out of range, do you have "
            "enough GPUs?",
            True,
            'torch.device("cuda")',
            id="gpu-of-the-local-rank",
        ),
        pytest.param(
            "RuntimeError: Attempting to deserialize object on CUDA device 1 but torch.cuda.device_count() is 1.",
            True,
            'map_location="cuda"',
            id="checkpoint-of-another-gpu",
        ),
        pytest.param("AcceleratorError: CUDA error: invalid device ordinal", False, None, id="gpu-in-restart-mode"),
        pytest.param(
            "RuntimeError: DataLoader worker (pid 7) is killed by signal: Bus error. It is possible that dataloader's "
            "workers are out of shared memory. Please try to raise your shared memory limit.",
            False,
            "--shm-size",
            id="bus-error-of-a-loader",
        ),
        pytest.param(
            "RuntimeError: unable to write to file </torch_77_88>: No space left on device (28)",
            True,
            "--shm-size",
            id="torchs-file",
        ),
        pytest.param("OSError: [Errno 28] No space left on device: '/dev/shm/x'", True, "--shm-size", id="shm"),
        pytest.param("OSError: [Errno 28] No space left on device: '/data/x'", True, None, id="another-disk"),
        pytest.param(
            '  File "/lib/python3.12/multiprocessing/heap.py", line 80, in __init__\n'
            "OSError: [Errno 28] No space left on device",
            True,
            "--shm-size",
            id="shared-memory",
        ),
        pytest.param(
            "RuntimeError: [enforce fail at gloo/transport/tcp/device.cc:84] ifa != nullptr. Unable to find address "
            "for: eth9",
            False,
            "GLOO_SOCKET_IFNAME",
            id="interface",
        ),
        pytest.param("bdb.BdbQuit", True, "breakpoint", id="debugger"),
        pytest.param(
            "RuntimeError: PytorchStreamReader failed reading zip archive: failed finding central directory",
            False,
            "stopped wherever it is, also",
            id="checkpoint",
        ),
        pytest.param("EOFError: Ran out of input", True, None, id="checkpoint-in-elastic-mode"),
        pytest.param(
            'Traceback (most recent call last):\n  File "/lib/torch/serialization.py", line 807, in __init__\n'
            "    super().__init__(torch._C.PyTorchFileReader(name_or_buffer))\nOSError: [Errno 22] Invalid argument",
            False,
            "os.replace",
            id="checkpoint-without-its-end",
        ),
        pytest.param(
            'Traceback (most recent call last):\n  File "/lib/torch/serialization.py", line 797, in __init__\n'
            "    super().__init__(open(name, mode))\nFileNotFoundError: [Errno 2] No such file or directory: 'x.pt'",
            False,
            None,
            id="no-checkpoint",
        ),
    ],
)
def test_what_many_scripts_meet_is_explained(last: str, elastic: bool, hint: str | None) -> None:
    context = Hints(elastic, python="/venv/bin/python")
    for failure in (exited(KILLED.worker, 1, f"step 1\n{last}\n"), raised(KILLED.worker, f"{TRACEBACK}\n{last}")):
        report = failure_report(FinishRun(RunEnd.FAILED, START_FAILED, (failure,)), context)
        hints = [line for line in report.splitlines() if line.startswith("hint: ")]
        assert len(hints) == (0 if hint is None else 1)
        assert hint is None or hint in hints[0]


def round_of(number: int, kind: status_pb2.RoundKind.ValueType, cause: cause_pb2.Cause) -> status_pb2.Round:
    return status_pb2.Round(round_id=rounds_pb2.RoundId(incarnation=1, n=number), kind=kind, cause=cause)


def test_a_checkpoint_that_cannot_be_read_is_connected_with_the_round_that_was_cut_short() -> None:
    began = round_of(1, status_pb2.ROUND_KIND_START, cause_pb2.Cause(text="the run began"))
    resized = round_of(2, status_pb2.ROUND_KIND_RESIZE, cause_pb2.Cause(text="1 worker joined, 0 left"))
    own = cause_pb2.Cause(kind=cause_pb2.CAUSE_KIND_RAISED, text="worker 1 raised an exception")
    again = round_of(3, status_pb2.ROUND_KIND_FAILURE, own)
    assert last_stop(deque([began, resized, again])) == "round 1.1 ended: 1 worker joined, 0 left"
    assert last_stop([began]) == last_stop([]) == ""
    truncated = raised(KILLED.worker, f"{TRACEBACK}\n_pickle.UnpicklingError: pickle data was truncated")
    finish = FinishRun(RunEnd.FAILED, START_FAILED, (truncated,))
    hints = Hints(elastic=False, last_stop=last_stop([began, resized, again]))
    assert "stopped wherever it is (round 1.1 ended: 1 worker joined, 0 left), also" in failure_report(finish, hints)


def test_a_bus_error_of_a_worker_itself_is_explained() -> None:
    assert "shared memory (/dev/shm)" in text_of(exited(KILLED.worker, -7, "step 8"))


def test_many_alike_take_one_line() -> None:
    others = [exited(WorkerName(w, "a", w, None), 1, "no module") for w in (1, 2, 3)]
    assert text_of(*others, KILLED) == textwrap.dedent("""\
        failed: worker 1 (a:1) exited with code 1
          its last lines of output:
            no module
        so the run ended: every worker failed before training began
        in the same way: worker 2 (a:2), worker 3 (a:3)
        also: worker 4 (b:0) was killed by SIGKILL: step 8
        """)


def test_without_a_failed_worker_the_reason_is_the_cause() -> None:
    waits = Cause(CauseKind.WORKERS_AWAITED, detail=Shortage(1, 2))
    assert text_of(cause=Cause(CauseKind.TIMED_OUT, detail=TimedOut(600.0, waits))) == (
        "failed: gave up after --elastic-timeout 600 s of waiting: 1 of 2 workers are ready\n"
    )


def test_a_reason_that_is_the_cause_itself_comes_before_what_happened_earlier() -> None:
    differ = Cause(CauseKind.STATES_DIFFER, detail=Digests(Version(RoundId(1, 1), 2), ()))
    report = text_of(KILLED, cause=differ).splitlines()
    assert report[0].startswith("failed: workers that hold the same version 1.1:2 disagree")
    assert report[1:] == ["before that: worker 4 (b:0) was killed by SIGKILL: step 8"]


def test_one_error_at_one_place_is_one_kind_whatever_its_message() -> None:
    other = raised(WorkerName(4, "b", 0, 3), TRACEBACK.replace("bad batch", "bad batch 17"))
    elsewhere = raised(WorkerName(5, "b", 1, 4), TRACEBACK.replace("line 3", "line 30"))
    report = text_of(RAISED, other, elsewhere).splitlines()
    assert report[-2:] == [
        "in the same way: worker 4 (rank 3, b:0)",
        "also: worker 5 (rank 4, b:1) raised an exception: ValueError: bad batch",
    ]


def test_a_run_that_was_stopped_did_not_fail_of_what_happened_before() -> None:
    assert text_of(
        KILLED, end=RunEnd.STOPPED, cause=Cause(CauseKind.STOPPED, detail=ReportedText("the driver received SIGINT"))
    ) == textwrap.dedent("""\
        stopped: the driver received SIGINT
        before that: worker 4 (b:0) was killed by SIGKILL: step 8
        """)


def test_long_output_is_cut_to_its_end() -> None:
    tail = "\n".join(f"step {n}" for n in range(100))
    report = text_of(exited(WorkerName(1, "a", 0, 0), 1, tail)).splitlines()
    assert report[2] == f"    step {100 - MAX_TAIL_LINES}"
    assert report[-2] == "    step 99"


def test_a_long_traceback_keeps_the_exception() -> None:
    traceback = "\n".join(f"line {n}" for n in range(100)) + "\nRecursionError: too deep"
    report = text_of(raised(WorkerName(1, "a", 0, 0), traceback)).splitlines()
    assert "  ... (41 lines left out)" in report
    assert report[-2] == "  RecursionError: too deep"


def test_last_words_complete_the_failure_they_belong_to() -> None:
    early = raised(WorkerName(3, "a", 1, 2), TRACEBACK)
    completed = with_last_output((early, KILLED), early.worker, WorkerExited(3, 1, "epoch 1\n"))
    assert completed[0].tail == "epoch 1\n"
    assert completed[1] is KILLED
    assert with_last_output((KILLED,), KILLED.worker, WorkerExited(4, -9, "other")) == (KILLED,)


def test_a_process_that_died_without_a_word_is_shown_with_its_error_file() -> None:
    aborted = exited(WorkerName(3, "a", 1, 2), -6, "")
    end = WorkerExited(3, -6, "Fatal Python error: Aborted\n", recorded=RecordedError(TRACEBACK, 50.0))
    assert text_of(*with_last_output((aborted,), aborted.worker, end)) == textwrap.dedent("""\
        failed: worker 3 (rank 2, a:1) was killed by SIGABRT
          Traceback (most recent call last):
            File "train.py", line 3, in train
              raise ValueError("bad batch")
          ValueError: bad batch
          its last lines of output:
            Fatal Python error: Aborted
        so the run ended: every worker failed before training began
        """)


def test_the_oldest_error_file_names_the_root_cause_whatever_was_noticed_first() -> None:
    first, second = exited(WorkerName(3, "a", 1, 2), 1, ""), exited(WorkerName(4, "b", 0, 3), 1, "")
    of_first = WorkerExited(3, 1, recorded=RecordedError("RuntimeError: connection closed", 51.0))
    of_second = WorkerExited(4, 1, recorded=RecordedError(TRACEBACK, 50.0))
    noticed = with_last_output((KILLED, first, second), first.worker, of_first)
    assert [failure.worker for failure in noticed] == [KILLED.worker, first.worker, second.worker]
    known = with_last_output(noticed, second.worker, of_second)
    assert [failure.worker for failure in known] == [KILLED.worker, second.worker, first.worker]


@pytest.mark.parametrize(
    ("recorded", "stopped", "failures"),
    [
        pytest.param(RecordedError(TRACEBACK, 49.9), True, [2, 3], id="before"),
        pytest.param(RecordedError(TRACEBACK, 50.1), True, [3], id="after"),
        pytest.param(RecordedError(TRACEBACK, 0.0), True, [3], id="unknown-when"),
        pytest.param(RecordedError(TRACEBACK, 49.9), False, [3], id="not-stopped"),
        pytest.param(None, True, [3], id="no-file"),
    ],
)
def test_a_worker_that_was_stopped_had_failed_if_its_file_is_older(
    recorded: RecordedError | None, stopped: bool, failures: list[int]
) -> None:
    known = (replace(RAISED, recorded_time=50.0),)
    end = WorkerExited(2, -15, recorded=recorded)
    completed = with_last_output(known, WorkerName(2, "a", 0, 1), end, stopped=stopped)
    assert [failure.worker.worker_id for failure in completed] == failures
    assert text_of(*completed).startswith(f"failed: worker {failures[0]}")


def test_a_failure_without_a_time_is_not_overruled_by_a_file() -> None:
    end = WorkerExited(2, -15, recorded=RecordedError(TRACEBACK, 1.0))
    assert with_last_output((KILLED,), WorkerName(2, "a", 0, 1), end, stopped=True) == (KILLED,)


@pytest.mark.parametrize(
    ("tally", "text"),
    [
        pytest.param(Tally(1, 0, 0, 0, 0, 0, 4.26), "done: 1 round, 4.3 s", id="quiet"),
        pytest.param(Tally(5, 1, 0, 0, 0, 9, 6.0), "done: 5 rounds, 1 failure survived, 9 steps lost, 6.0 s", id="a"),
        pytest.param(
            Tally(12, 2, 1, 5, 3, 0, 60.0),
            "done: 12 rounds, 2 failures survived, 1 preemption, 5 resizes, 3 unproven connections, 1 min 0 s",
            id="some-of-each",
        ),
        pytest.param(Tally(1, 0, 0, 0, 0, 0, 4.26, 0.5, True), "done: 1 round, 4.3 s, goodput 50.0 %", id="steps"),
        pytest.param(
            Tally(1, 0, 0, 0, 0, 0, 4.26, None, True),
            "done: 1 round, 4.3 s, but no step was recorded: nothing called state.commit() or "
            "state.check_host_updates() in a round",
            id="no-step",
        ),
    ],
)
def test_success(tally: Tally, text: str) -> None:
    assert success_report(tally) == text
