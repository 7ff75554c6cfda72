"""What `edriver top` shows, on a screen of 80 columns and 24 lines."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import deque
from collections.abc import Awaitable, Callable

import pytest
from textual.pilot import Pilot
from textual.worker import WorkerCancelled

from edriver.client import Event, Run, RunError
from edriver.commands.top_screen import MAX_SHOWN_WORKERS, Top, Watch, head, worker_rows
from edriver.text.printable import printable
from edriver.v1 import cause_pb2, resources_pb2, rounds_pb2, status_pb2
from edriver.wire.conversion import timestamp

HOST = "gpu-node-{}.cluster.example.org"

Act = Callable[[Pilot[None]], Awaitable[None]]


class Events(Watch):
    """What has happened, without a driver."""

    def __init__(self, *texts: str) -> None:
        self.latest = deque()
        self.count = 0
        self.ended = threading.Event()
        self.add(*texts)

    def add(self, *texts: str) -> None:
        for text in texts:
            self.latest.append(status_pb2.Event(time=timestamp(200.0), text=text))
            self.count += 1


def screen_of(top: Top) -> list[str]:
    """The lines of the screen."""
    strips = top.screen._compositor.render_strips()
    return ["".join(segment.text for segment in strip).rstrip() for strip in strips]


def shown(top: Top, act: Act | None = None) -> list[str]:
    """The lines of the screen after so much time, or after what was done with it."""

    async def look() -> list[str]:
        async with top.run_test(size=(80, 24)) as pilot:
            with contextlib.suppress(WorkerCancelled):  # it has ended by it
                await top.workers.wait_for_complete()
            await pilot.pause()
            if act is not None:
                await act(pilot)
                await pilot.pause()
            return screen_of(top)

    return asyncio.run(look())


def worker(number: int, rank: int | None = None) -> status_pb2.WorkerStatus:
    state = status_pb2.WORKER_STATE_BOOTING if rank is None else status_pb2.WORKER_STATE_TRAINING
    version = rounds_pb2.Version(round_id=rounds_pb2.RoundId(incarnation=1, n=2), boundaries=30)
    return status_pb2.WorkerStatus(
        worker_id=number,
        host=HOST.format(number),
        slot=number,
        state=state,
        rank=rank,
        version=version,
        start_time=timestamp(100.0),
    )


def run_of(*workers: status_pb2.WorkerStatus) -> Run:
    return status_pb2.Run(
        run_id="abcd",
        start_time=timestamp(100.0),
        now=timestamp(300.0),
        activity=cause_pb2.Cause(text="round 1.2: 2 workers on a"),
        size=2,
        min_np=1,
        max_np=4,
        size_limit=3,
        rounds=2,
        failures=1,
        progress=status_pb2.Progress(steps=30, step_rate=5.0, epoch=1, samples=100, samples_done=50),
        time_spent=status_pb2.TimeSpent(goodput=0.875),
        hosts=[
            status_pb2.HostStatus(
                name=HOST.format(1),
                slots=3,
                workers=3,
                connected=True,
                state=status_pb2.HOST_STATE_USED,
                discover_time=timestamp(100.0),
            ),
            status_pb2.HostStatus(
                name="b",
                slots=1,
                state=status_pb2.HOST_STATE_IDLE,
                obstacles=[cause_pb2.Cause(text="has 1 slot idle"), cause_pb2.Cause(text="has 1 slot drained")],
                discover_time=timestamp(200.0),
            ),
        ],
        workers=workers,
    )


def test_restart_mode_is_named() -> None:
    run = run_of()
    run.mode = status_pb2.RUN_MODE_RESTART
    assert head(run).plain.startswith("run abcd  3 min 20 s  restart mode  2 workers (1 to 4")


def test_everything_is_on_the_screen() -> None:
    run = run_of(worker(4), worker(3, 2), worker(2, 1), worker(1, 0))
    happened = Events("round 1.1 began", "round 1.1 ended: worker 9 was killed by SIGKILL")
    lines = shown(Top(lambda: run, happened))
    text = "\n".join(lines)
    assert len(lines) == 24
    assert lines[0] == "run abcd  3 min 20 s  2 workers (1 to 4, resized to 3)  round 1.2: 2 workers on"
    assert "2 rounds, 1 failure, 0 preemptions, 0 resizes, 0 steps lost; goodput 87.5 %" in text
    assert "step 30, 5.0 steps/s; epoch 1 50 % done" in text
    assert any(line.split()[:9] == [HOST.format(1), "3", "3", "3", "min", "20", "s", "is", "used"] for line in lines)
    assert any(line.startswith(" b ") and "has 1 slot idle; has 1 slot drained"[:18] in line for line in lines)
    ranked = [line.split()[:2] for line in lines if ".org:" in line]
    whole = [HOST.format(number) + f":{number}" for number in range(5)]
    assert ranked == [["0", whole[1]], ["1", whole[2]], ["2", whole[3]], [whole[4], "booting"]]
    assert any(line.endswith("round 1.1 ended: worker 9 was killed by SIGKILL") for line in lines)
    assert "q Quit" in lines[-1]


def test_what_is_used_is_on_the_screen() -> None:
    run = run_of(worker(1, 0))
    run.workers[0].host = "b"
    run.workers[0].usage.MergeFrom(
        resources_pb2.WorkerUsage(cpu_cores=1.25, resident_bytes=3 << 30, gpu_utilization=0.5, gpu_memory_bytes=1 << 30)
    )
    del run.hosts[0], run.hosts[0].obstacles[1]
    run.hosts[0].usage.MergeFrom(resources_pb2.HostUsage(cpu_cores=7.5, memory_bytes=9 << 30))
    lines = shown(Top(lambda: run, Events()))
    assert any(line.split()[-3:] == ["7.5", "9.0", "GiB"] for line in lines if line.startswith(" b ")), lines
    used = ["1.2", "3.0", "GiB", "50", "%,", "1.0", "GiB"]
    assert any(line.split()[3:10] == used for line in lines if "b:1" in line), lines


def test_80_columns_show_where_a_worker_spends_its_steps_and_its_process() -> None:
    run = run_of(*(worker(number, number) for number in range(1, 30)))  # with a scrollbar
    for each in run.workers:
        each.host, each.step_rate, each.pid = "localhost", 12.5, 4194304
        each.usage.MergeFrom(resources_pb2.WorkerUsage(cpu_cores=1.25, resident_bytes=300 << 20))
        each.step_times.step.FromMilliseconds(120)
        each.step_times.waiting.FromMilliseconds(10)
        each.step_times.loading.FromMilliseconds(20)
    lines = shown(Top(lambda: run, Events()))
    words = ["rank", "place", "state", "steps/s", "own", "loading", "cpu", "memory", "process"]
    assert any(line.split()[:9] == words for line in lines), lines
    row = ["1", "localhost:1", "training", "12.5", "110", "ms", "20", "ms", "1.2", "300", "MiB", "4194304"]
    assert any(line.split()[:12] == row for line in lines), lines


def test_a_column_appears_with_its_first_value() -> None:
    run = run_of(worker(1, 0))
    run.workers[0].host = "b"
    top = Top(lambda: run, Events())

    async def on_a_gpu(pilot: Pilot[None]) -> None:
        assert not any(" gpu " in line for line in screen_of(top))
        run.workers[0].usage.MergeFrom(resources_pb2.WorkerUsage(gpu_utilization=0.5, gpu_memory_bytes=1 << 30))
        top.show(run)
        await pilot.pause()

    lines = shown(top, on_a_gpu)
    assert any(" gpu " in line for line in lines)
    assert any("50 %, 1.0 GiB" in line for line in lines)


def test_an_interruption_stands_at_the_top() -> None:
    run = run_of(worker(1, 0))
    run.interruption.kind = status_pb2.INTERRUPTION_KIND_FAILURE
    run.interruption.start_time.CopyFrom(timestamp(277.0))
    run.interruption.cause.text = "worker 2 was killed by SIGKILL"
    assert "no step for 23.0 s: failure, worker 2 was killed by SIGKILL" in shown(Top(lambda: run, Events()))


def test_the_newest_events_are_in_sight_and_the_older_ones_are_scrolled_to() -> None:
    happened = Events(*(f"event {number}" for number in range(100)))
    top = Top(lambda: run_of(worker(1, 0)), happened)

    async def more_then_back(pilot: Pilot[None]) -> None:
        assert any(line.endswith("event 99") for line in screen_of(top))
        happened.add("event 100")
        top.show(run_of(worker(1, 0)))
        await pilot.pause()
        assert any(line.endswith("event 100") for line in screen_of(top))
        await pilot.press("tab", "home")

    assert any(line.endswith("event 0") for line in shown(top, more_then_back))


def test_workers_are_scrolled_to_and_a_new_look_stays_there() -> None:
    run = run_of(*(worker(number, number) for number in range(200)))
    top = Top(lambda: run, Events())

    async def to_the_end(pilot: Pilot[None]) -> None:
        await pilot.press("end")
        run.workers[199].step_rate = 7.0
        top.show(run)
        await pilot.pause()

    text = "\n".join(shown(top, to_the_end))
    assert f"{HOST.format(199)}:199" in text
    assert f"{HOST.format(0)}:0 " not in text


def test_of_thousands_the_first_ranks_are_shown() -> None:
    rows = list(worker_rows(run_of(*(worker(number, number) for number in range(5000)))))
    assert len(rows) == MAX_SHOWN_WORKERS + 1
    assert rows[-1][1] == f"and {5000 - MAX_SHOWN_WORKERS:,} more"


def test_q_ends_it() -> None:
    async def press(pilot: Pilot[None]) -> None:
        await pilot.press("q")

    top = Top(lambda: run_of(), Events())
    shown(top, press)
    assert top.lost is None
    assert not top.is_running


def test_an_answer_that_comes_after_q_is_dropped() -> None:
    asked: list[int] = []

    class Asked(Events):
        def newer(self, count: int) -> list[Event]:
            asked.append(count)
            return super().newer(count)

    top = Top(run_of, Asked())

    async def leave() -> None:
        async with top.run_test() as pilot:
            top.show(run_of())
            await pilot.press("q")
        assert asked
        asked.clear()
        top.show(run_of())

    asyncio.run(leave())
    assert asked == []


def test_it_ends_with_the_run() -> None:
    happened = Events("the run is done")
    happened.ended.set()
    top = Top(lambda: run_of(), happened)
    shown(top)
    assert top.return_code == 0
    assert top.lost is None


@pytest.mark.parametrize("ended", [False, True])
def test_a_driver_that_does_not_answer_is_an_error_unless_the_run_has_ended(
    monkeypatch: pytest.MonkeyPatch, ended: bool
) -> None:
    monkeypatch.setattr("edriver.commands.top_screen.REFRESH_INTERVAL", 0.01)
    happened = Events()
    if ended:
        happened.ended.set()

    def ask() -> Run:
        raise RunError("the driver does not answer")

    top = Top(ask, happened)
    shown(top)
    assert (top.lost is None) == ended


EVIL = "a\x1b[2J\x1b]0;title\a\r\x9b\u202eb"


def test_names_are_neither_markup_nor_commands_for_the_terminal() -> None:
    run = Run(
        run_id="r",
        activity=cause_pb2.Cause(text=EVIL),
        hosts=[status_pb2.HostStatus(name=f"[red]{EVIL}", obstacles=[cause_pb2.Cause(text=EVIL)])],
    )
    run.workers.add(host=EVIL)
    run.progress.reported[EVIL] = 1.0
    text = "\n".join(shown(Top(lambda: run, Events(EVIL))))
    assert "[red]a" in text
    assert printable(text) == text
