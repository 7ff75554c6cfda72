"""What `edriver top` draws."""

from __future__ import annotations

import io

from rich.console import Console

from edriver.commands.top import MAX_SHOWN_WORKERS, screen
from edriver.common.wire import timestamp
from edriver.v1 import cause_pb2, rounds_pb2, status_pb2


def drawn(run: status_pb2.Run, *latest: status_pb2.Event) -> str:
    console = Console(file=io.StringIO(), width=120, height=60)
    console.print(screen(run, latest))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def worker(number: int, rank: int | None = None) -> status_pb2.WorkerStatus:
    state = status_pb2.WORKER_STATE_BOOTING if rank is None else status_pb2.WORKER_STATE_TRAINING
    version = rounds_pb2.Version(round_id=rounds_pb2.RoundId(incarnation=1, n=2), boundaries=30)
    return status_pb2.WorkerStatus(
        worker_id=number, host="a", slot=number, state=state, rank=rank, version=version, start_time=timestamp(100.0)
    )


def test_everything_is_on_the_screen() -> None:
    run = status_pb2.Run(
        run_id="abcd",
        start_time=timestamp(100.0),
        now=timestamp(300.0),
        activity=cause_pb2.Cause(text="round 1.2: 2 workers on a"),
        size=2,
        min_np=1,
        max_np=4,
        rounds=2,
        failures=1,
        progress=status_pb2.Progress(steps=30, step_rate=5.0, epoch=1, samples=100, samples_done=50),
        hosts=[
            status_pb2.HostStatus(name="a", slots=3, connected=True, discover_time=timestamp(100.0)),
            status_pb2.HostStatus(
                name="b",
                slots=1,
                obstacles=[cause_pb2.Cause(text="is quarantined"), cause_pb2.Cause(text="has 1 slot drained")],
                discover_time=timestamp(200.0),
            ),
        ],
        workers=[worker(3), worker(2, 1), worker(1, 0)],
    )
    text = drawn(run, status_pb2.Event(time=timestamp(0.0), text="round 1.1 ended: worker 4 was killed by SIGKILL"))
    lines = text.splitlines()
    assert lines[0].split() == [
        "run",
        "abcd",
        "3",
        "min",
        "20",
        "s",
        "2",
        "workers",
        "(1",
        "to",
        "4)",
        "round",
        "1.2:",
        "2",
        "workers",
        "on",
        "a",
    ]
    assert "2 rounds, 1 failure, 0 preemptions, 0 resizes, 0 steps lost" in text
    assert "step 30, 5.0 steps/s; epoch 1 50 % done" in text
    assert any(
        line.split() == ["b", "1", "1", "min", "40", "s", "is", "quarantined;", "has", "1", "slot", "drained"]
        for line in lines
    )
    ranked = [line.split()[:3] for line in lines if "a:" in line]
    assert ranked == [["0", "1", "a:1"], ["1", "2", "a:2"], ["3", "a:3", "3"]]
    assert "1.2:30" in text
    assert lines[-1].endswith("round 1.1 ended: worker 4 was killed by SIGKILL")


def test_of_thousands_the_first_ranks_are_shown() -> None:
    run = status_pb2.Run(run_id="abcd", workers=[worker(number, number) for number in range(5000)])
    assert f"and {5000 - MAX_SHOWN_WORKERS} more" in drawn(run)
