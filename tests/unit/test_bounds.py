"""The limits of what comes from outside: what is refused, what is cut, and that nothing honest meets them."""

from __future__ import annotations

import math

import pytest
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message
from google.protobuf.timestamp_pb2 import Timestamp

from edriver.agent import forward
from edriver.agent.workers import capture
from edriver.model import limits
from edriver.v1 import agent_pb2, control_pb2, notification_pb2, rounds_pb2
from edriver.wire import message_limits
from edriver.worker.reports import with_reports
from edriver.worker.watch import stall


def report(**kind: Message) -> agent_pb2.ConnectRequest:
    message = notification_pb2.Report(**kind)  # type: ignore[arg-type]  # one of its kinds
    return agent_pb2.ConnectRequest(worker_report=agent_pb2.WorkerReport(worker_id=1, report=message))


def standings(count: int) -> agent_pb2.ConnectRequest:
    beat = agent_pb2.Heartbeat(workers=[agent_pb2.WorkerHeartbeat(worker_id=number) for number in range(count)])
    return agent_pb2.ConnectRequest(heartbeat=beat)


@pytest.mark.parametrize(
    ("message", "sentence"),
    [
        pytest.param(standings(4097), "Heartbeat.workers has 4097 items: at most 4096 are allowed", id="standings"),
        pytest.param(
            report(worker_waiting=notification_pb2.WorkerWaiting(store=rounds_pb2.StoreAddress(host="x" * 1025))),
            "StoreAddress.host has 1025 characters: at most 1024 are allowed",
            id="store-host",
        ),
        pytest.param(
            report(worker_waiting=notification_pb2.WorkerWaiting(store=rounds_pb2.StoreAddress(port=70_000))),
            "StoreAddress.port is 70000",
            id="store-port",
        ),
        pytest.param(
            report(worker_stalled=notification_pb2.WorkerStalled(phase="\N{RIGHT-TO-LEFT OVERRIDE}")),
            "WorkerStalled.phase has a control character in it",
            id="phase",
        ),
        pytest.param(
            report(worker_stalled=notification_pb2.WorkerStalled(duration=Duration(seconds=2**60))),
            f"WorkerStalled.duration is out of range: {2**60} s and 0 ns",
            id="span",
        ),
        pytest.param(
            agent_pb2.ConnectRequest(worker_ending=agent_pb2.WorkerEnding(detect_time=Timestamp(seconds=1, nanos=-1))),
            "WorkerEnding.detect_time is out of range: 1 s and -1 ns",
            id="point-in-time",
        ),
        pytest.param(
            agent_pb2.ForwardOutputRequest(lines=[agent_pb2.OutputLine()] * 1001),
            "ForwardOutputRequest.lines has 1001 items: at most 1000 are allowed",
            id="lines",
        ),
        pytest.param(
            agent_pb2.ForwardOutputRequest(lines=[agent_pb2.OutputLine(text=b"x" * 65_537)]),
            "OutputLine.text has 65537 bytes: at most 65536 are allowed",
            id="line",
        ),
        pytest.param(
            agent_pb2.Hello(secret=b"x" * 65), "Hello.secret has 65 bytes: at most 64 are allowed", id="secret"
        ),
        pytest.param(
            control_pb2.StopRequest(reason="\x1b]0;pwned\a"), "StopRequest.reason has a control character", id="reason"
        ),
        pytest.param(control_pb2.ResizeRequest(size=4_000_000), "ResizeRequest.size is 4000000: at most", id="size"),
    ],
)
def test_what_is_out_of_bounds_is_refused_by_a_sentence_that_names_the_field(message: Message, sentence: str) -> None:
    with pytest.raises(limits.OutOfBoundsError) as caught:
        message_limits.check(message)
    assert sentence in str(caught.value)


def test_a_long_text_keeps_its_beginning_and_its_end() -> None:
    message = report(
        worker_failed=notification_pb2.WorkerFailed(traceback="first\n" + "x" * 10_000_000 + "\nValueError: last")
    )
    message_limits.check(message)
    kept = message.worker_report.report.worker_failed.traceback
    assert len(kept) <= limits.MAX_TEXT_LENGTH
    assert kept.startswith("first\n")
    assert kept.endswith("\nValueError: last")


def test_of_what_a_script_reports_the_rest_is_kept() -> None:
    reported = {"loss": math.inf, "x" * 101: 1.0, "\x1b[2J": 1.0}
    standing = agent_pb2.WorkerHeartbeat(worker_id=1, progress=notification_pb2.WorkerProgress(boundaries=7))
    standing.progress.reported.update(reported)
    message = agent_pb2.ConnectRequest(heartbeat=agent_pb2.Heartbeat(workers=[standing]))
    message_limits.check(message)
    [kept] = message.heartbeat.workers
    assert dict(kept.progress.reported) == {"loss": math.inf}
    assert kept.progress.boundaries == 7


def test_of_what_a_script_imports_the_rest_is_kept() -> None:
    odd = ["a..b", "", "not a name", "\x1b[2J", "\N{GREEK SMALL LETTER PI}", "x" * 201]
    names = ["torch.nn", *odd, *(f"m{n}" for n in range(limits.MAX_MODULES))]
    imported = notification_pb2.ModulesImported(names=names)
    imported.environment.update({"RANK": "3", "LONG": "x" * 1025, "LINES": "a\nb"})
    message = report(modules_imported=imported)
    message_limits.check(message)
    kept = message.worker_report.report.modules_imported
    assert list(kept.names) == ["torch.nn", *(f"m{n}" for n in range(limits.MAX_MODULES - 1))]
    assert dict(kept.environment) == {"RANK": "3"}
    kept.environment.update({f"V{n}": "" for n in range(limits.MAX_VARIABLES)})
    message_limits.check(message)
    assert len(kept.environment) == limits.MAX_VARIABLES


@pytest.mark.parametrize("name", ["x" * 101, "a\nb", "\x1b[2J"], ids=["long", "two-lines", "escape"])
def test_a_script_learns_at_once_that_a_name_will_not_do(name: str) -> None:
    with pytest.raises(ValueError, match="takes names of printable characters, 100 at most"):
        with_reports({}, {name: 1.0})


def test_what_honest_agents_send_is_within_bounds() -> None:
    assert capture.MAX_LINE_BYTES <= limits.MAX_LINE_BYTES
    assert forward.MAX_BATCH_LINES <= limits.MAX_BATCH_LINES
    assert max(capture.MAX_TAIL_BYTES, stall.MAX_STACKS_LENGTH) <= limits.MAX_TEXT_LENGTH
    version = rounds_pb2.Version(round_id=rounds_pb2.RoundId(incarnation=1, n=2**40), boundaries=2**60)
    store = rounds_pb2.StoreAddress(host="/tmp/x/w1.store")
    waiting = notification_pb2.WorkerWaiting(ordinal=1, version=version, store=store, digest="a\nb" * 300)
    for message in (report(worker_waiting=waiting), standings(4096)):
        before = message.SerializeToString(deterministic=True)
        message_limits.check(message)
        assert message.SerializeToString(deterministic=True) == before


@pytest.mark.parametrize("kind", [Timestamp, Duration])
@pytest.mark.parametrize("seconds", [-(2**60), -1, 0, 1, 253_402_300_799, 253_402_300_800, 315_576_000_001, 2**60])
@pytest.mark.parametrize("nanos", [-(10**9), -1, 0, 1, 10**9 - 1, 10**9])
def test_times_are_refused_as_protobuf_does(kind: type[Timestamp | Duration], seconds: int, nanos: int) -> None:
    time = kind(seconds=seconds, nanos=nanos)
    message: Message
    if isinstance(time, Timestamp):
        message = agent_pb2.ConnectRequest(worker_ending=agent_pb2.WorkerEnding(detect_time=time))
    else:
        message = report(worker_stalled=notification_pb2.WorkerStalled(duration=time))
    try:
        time.ToJsonString()
    except ValueError:
        with pytest.raises(limits.OutOfBoundsError, match="is out of range"):
            message_limits.check(message)
    else:
        message_limits.check(message)
