"""A real agent with real workers against a scripted driver: what it reports, and that nothing is left of them."""

from __future__ import annotations

import asyncio
import os
import shlex
import signal
import time
from pathlib import Path

import grpc
import pytest

from edriver.agent.agent import COPY_WINDOW
from edriver.agent.workers.processes import children_of
from edriver.common.checkpoint_server import SERVER_SOCKET
from edriver.system.proc_stat import own_processors
from edriver.v1 import agent_pb2, cause_pb2, checkpoints_pb2, checkpoints_pb2_grpc, notification_pb2, rounds_pb2
from edriver.wire.conversion import duration
from tests.checkpoint_servers import checkpoint, shard, write
from tests.process.fake_driver import (
    AGENT_ID,
    AMPLE,
    FAKE_WORKER,
    FORKS_A_SLEEPER,
    RUN_ID,
    FakeDriver,
    end_of,
    finish,
    host,
    in_loop,
    pidfd_of,
    round_of,
    script,
)

IGNORES_SIGTERM = """
import os, signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print(os.getpid(), flush=True)
time.sleep(600)
"""

LEAVES_A_DAEMON = """
import os
said, say = os.pipe()
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        print(os.getpid(), flush=True)
        os.execve("/bin/sleep", ["sleep", "600"], {})
    os._exit(0)
os.close(say)
os.read(said, 1)  # until the grandchild has another program, and none of this one's environment
os.wait()
"""


HAS_A_DAEMON = """
import os, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        print(os.getpid(), flush=True)
        time.sleep(600)
    os._exit(0)
time.sleep(600)
"""


@in_loop
async def test_an_agent_says_hello_and_reports_an_exit_code_with_the_last_lines() -> None:
    command = script("import sys; [print(f'line {n}') for n in range(100)]; print('boom', end=''); sys.exit(3)")
    async with host(command) as on:
        on.driver.start_worker(1)
        exited = await on.driver.exit_of(1)
        (hello,) = on.driver.hellos
        assert (hello.run_id, hello.host, hello.agent_id, hello.pid) == (RUN_ID, "a", AGENT_ID, on.agent.pid)
        assert hello.processors == own_processors()
        assert exited.code == 3
        assert exited.tail.split("\n") == [*(f"line {n}" for n in range(41, 100)), "boom"]
        await finish(on)


@in_loop
async def test_a_signal_is_a_negative_code() -> None:
    async with host(script("import os; os.kill(os.getpid(), 11)")) as on:
        on.driver.start_worker(1)
        assert (await on.driver.exit_of(1)).code == -signal.SIGSEGV
        await finish(on)


@pytest.mark.parametrize(("mode", "code", "reason"), [(None, 127, "no such file"), (0o600, 126, "not executable")])
def test_a_command_that_cannot_be_started(tmp_path: Path, mode: int | None, code: int, reason: str) -> None:
    program = tmp_path / "program"
    if mode is not None:
        program.touch(mode)

    @in_loop
    async def scenario() -> None:
        async with host([str(program)]) as on:
            on.driver.start_worker(1)
            exited = await on.driver.exit_of(1)
            assert exited.code == code
            assert exited.cause.kind == cause_pb2.CAUSE_KIND_NOT_STARTED
            assert str(program) in exited.cause.detail
            assert reason in exited.cause.detail
            await finish(on)

    scenario()


@in_loop
async def test_the_rest_of_a_killed_workers_group_is_killed() -> None:
    async with host(script(FORKS_A_SLEEPER)) as on:
        on.driver.start_worker(1)
        worker, child = await on.driver.numbers(2)
        end_of_child = pidfd_of(child)
        os.kill(worker, signal.SIGKILL)
        await end_of(end_of_child)
        assert (await on.driver.exit_of(1)).code == -signal.SIGKILL
        await finish(on)


@in_loop
async def test_a_worker_finds_its_way_in_its_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    names = ["RUN_ID", "WORKER_ID", "HOST", "SLOT"]
    source = f"import os; print([os.environ['EDRIVER_' + n] for n in {names}], os.environ['OMP_NUM_THREADS'])"
    async with host(script(source)) as on:
        on.driver.start_worker(5, slot=2)
        await on.driver.until(lambda: bool(on.driver.lines))
        assert on.driver.texts() == [b"['run-1', '5', 'a', '2'] 3"]
        await finish(on)


@in_loop
async def test_output_goes_to_the_driver_by_line_and_to_files_whole(tmp_path: Path) -> None:
    source = "import os; os.write(1, b'one\\ntwo\\r\\n\\n'); os.write(2, b'\\xff err\\n'); os.write(1, b'end')"
    async with host(script(source), output_folder=str(tmp_path / "out")) as on:
        on.driver.start_worker(4, slot=1)
        await on.driver.exit_of(4)
        await finish(on)
        assert on.driver.texts() == [b"one", b"two", b"", b"end"]
        assert on.driver.texts(stderr=True) == [b"\xff err"]
        assert {(line.worker_id, line.slot, line.HasField("rank")) for line in on.driver.lines} == {(4, 1, False)}
        folder = tmp_path / "out" / "a.1"
        assert (folder / "worker.4.stdout").read_bytes() == b"one\ntwo\r\n\nend"
        assert (folder / "worker.4.stderr").read_bytes() == b"\xff err\n"


@in_loop
async def test_output_that_cannot_be_written_to_files_is_still_forwarded(tmp_path: Path) -> None:
    (tmp_path / "out").touch()
    async with host(script("print('hello')"), output_folder=str(tmp_path / "out")) as on:
        on.driver.start_worker(1)
        assert (await on.driver.exit_of(1)).code == 0
        await finish(on)
        assert on.driver.texts() == [b"hello"]


@in_loop
async def test_lines_carry_the_rank_of_the_round() -> None:
    async with host(FAKE_WORKER) as on:
        on.driver.start_worker(1)
        await on.driver.waiting()
        on.driver.send(assign_round=round_of(rounds_pb2.Seat(worker_id=1, rank=6)))
        await on.driver.until(lambda: b"placed" in on.driver.texts())
        first, placed = on.driver.lines
        assert not first.HasField("rank")
        assert placed.rank == 6
        await finish(on)


@in_loop
async def test_ten_megabytes_without_a_newline(tmp_path: Path) -> None:
    size = 10_000_000
    async with host(script(f"import sys; sys.stdout.write('x' * {size})"), output_folder=str(tmp_path)) as on:
        on.driver.start_worker(1)
        assert len((await on.driver.exit_of(1)).tail) == 8192
        await finish(on)
        lengths = [len(text) for text in on.driver.texts()]
        assert max(lengths) <= 65536
        assert sum(lengths) + 65536 * on.driver.dropped >= size
        assert (tmp_path / "a.0" / "worker.1.stdout").stat().st_size == size


@in_loop
async def test_a_slow_driver_costs_lines_that_are_counted_and_files_have_them(tmp_path: Path) -> None:
    count = 50_000
    async with host(script(f"print('\\n'.join(map(str, range({count}))))"), output_folder=str(tmp_path)) as on:
        on.driver.reads_output.clear()
        on.driver.start_worker(1)
        assert (await on.driver.exit_of(1)).code == 0
        on.driver.reads_output.set()
        await finish(on)
        assert on.driver.dropped > 0
        assert len(on.driver.lines) + on.driver.dropped == count
        assert (tmp_path / "a.0" / "worker.1.stdout").read_bytes().count(b"\n") == count


@in_loop
async def test_notices_wait_for_the_worker_and_keep_their_order() -> None:
    async with host(FAKE_WORKER) as on:
        on.driver.start_worker(1)
        for number in range(1, 6):
            on.driver.notify(1, notification_pb2.Notice(stop_at=notification_pb2.StopAt(number=number)))
        await on.driver.until(lambda: len(on.driver.reports("boundary_reached")) == 5)
        kinds = [message.worker_report.report.WhichOneof("kind") for message in on.driver.messages]
        assert kinds == ["worker_waiting", *["boundary_reached"] * 5]
        on.driver.notify(1, notification_pb2.Notice(finish=notification_pb2.Finish()))
        assert (await on.driver.exit_of(1)).code == 0
        await finish(on)


@in_loop
async def test_in_a_large_run_one_of_a_hosts_workers_says_how_far_its_round_has_come() -> None:
    async with host(FAKE_WORKER) as on:
        for worker_id in (1, 2, 3):
            on.driver.start_worker(worker_id, slot=worker_id)
        await on.driver.waiting(3)

        async def said(n: int, count: int) -> list[int]:
            """The boundaries of those that say so as they come back from a round."""
            left = notification_pb2.HostsUpdated(round_id=rounds_pb2.RoundId(incarnation=1, n=n))
            for worker_id in (1, 2, 3):
                on.driver.notify(worker_id, notification_pb2.Notice(hosts_updated=left))
            await on.driver.waiting(count)
            latest = on.driver.reports("worker_waiting")[-3:]
            return [report.progress.boundaries for report in latest if report.HasField("progress")]

        assert await said(1, 6) == [7, 7, 7]
        on.driver.heartbeat = agent_pb2.Heartbeat(heartbeat_period=duration(1.0), progress_period=duration(60.0))
        before = on.driver.heartbeats
        await on.driver.until(lambda: on.driver.heartbeats >= before + 3)
        assert await said(2, 9) == [7]
        for worker_id in (1, 2, 3):
            on.driver.notify(worker_id, notification_pb2.Notice(finish=notification_pb2.Finish()))
        await finish(on)


@in_loop
async def test_nothing_outlives_a_killed_agent() -> None:
    async with host(script(FORKS_A_SLEEPER)) as on:
        on.driver.start_worker(1)
        await on.driver.numbers(2)
        on.driver.start_worker(2)
        everything = {*await on.driver.numbers(4), *children_of(on.agent.pid)}
        ends = [pidfd_of(pid) for pid in everything]
        assert len(ends) == 5  # two workers, each with a child; and the guard
        on.agent.signal(signal.SIGKILL)
        for end in ends:
            await end_of(end)


@in_loop
async def test_a_killed_guard_is_replaced_and_knows_the_workers() -> None:
    async with host(script(FORKS_A_SLEEPER)) as on:
        on.driver.start_worker(1)
        worker, _ = await on.driver.numbers(2)
        (guard,) = set(children_of(on.agent.pid)) - {worker}
        end_of_guard = pidfd_of(guard)
        os.kill(guard, signal.SIGKILL)
        # What the driver orders next comes after the agent has seen the exit, or the agent sees it when it spawns.
        await end_of(end_of_guard)
        on.driver.start_worker(2)
        second = await on.driver.numbers(4)
        ends = [pidfd_of(pid) for pid in second]
        on.agent.signal(signal.SIGKILL)
        for end in ends:
            await end_of(end)


def leaving(driver: FakeDriver) -> list[str]:
    """The reason with which the agent has reported that its host is leaving."""
    return [m.drain_requested.reason for m in driver.messages if m.WhichOneof("kind") == "drain_requested"]


@in_loop
async def test_a_signal_before_the_machine_is_preempted_is_reported_to_the_driver_alone() -> None:
    async with host(script(FORKS_A_SLEEPER)) as on:
        on.driver.start_worker(1)
        await on.driver.numbers(2)
        on.agent.signal(signal.SIGUSR1)
        await on.driver.until(lambda: leaving(on.driver) == ["its agent received SIGUSR1"])
        on.driver.stop_worker(1, grace=AMPLE)
        assert (await on.driver.exit_of(1)).code == -signal.SIGTERM
        on.driver.shut_down(grace=0)
        assert await on.agent.exit_code() == 0


@in_loop
async def test_sigterm_is_reported_to_the_driver_and_a_later_one_ends_the_workers_in_order() -> None:
    async with host(script(FORKS_A_SLEEPER)) as on:
        on.driver.start_worker(1)
        ends = [pidfd_of(pid) for pid in await on.driver.numbers(2)]
        on.agent.signal(signal.SIGINT)  # the driver's business
        began = time.monotonic()
        exit_of_worker = asyncio.create_task(on.driver.exit_of(1))
        while not exit_of_worker.done():  # srun sends copies
            on.agent.signal(signal.SIGTERM)
            await asyncio.wait({exit_of_worker}, timeout=0.2)
        assert time.monotonic() - began >= COPY_WINDOW
        assert leaving(on.driver) == ["its agent received SIGTERM"]
        assert (await exit_of_worker).code == -signal.SIGTERM
        assert await on.agent.exit_code() == 143
        for end in ends:
            await end_of(end)


def save_at(folder: Path, pid: int) -> None:
    """What a worker with this process ID does with the checkpoint server of the agent that has this folder."""
    with grpc.insecure_channel(f"unix:{folder / SERVER_SOCKET}") as channel:
        stub = checkpoints_pb2_grpc.CheckpointServiceStub(channel)
        answer = stub.Reserve(
            checkpoints_pb2.ReserveRequest(checkpoint=checkpoint(10), bytes=100, pid=pid), wait_for_ready=True
        )
        write(answer.path, bytes(100))
        stub.Commit(checkpoints_pb2.CommitRequest(shard=shard(10, 0, 100)))


@in_loop
async def test_sigterm_ends_workers_that_the_driver_has_not_drained_in_time() -> None:
    async with host(script(FORKS_A_SLEEPER), grace=0.2) as on:
        on.driver.start_worker(1)
        await on.driver.numbers(2)
        on.agent.signal(signal.SIGTERM)
        assert (await on.driver.exit_of(1)).code == -signal.SIGTERM
        assert await on.agent.exit_code() == 143


@in_loop
async def test_an_agent_that_holds_checkpoints_alone_stays_for_what_its_driver_still_wants_of_it() -> None:
    """Its checkpoint server may be writing them to disk."""
    async with host(FAKE_WORKER, grace=0.2) as on:
        on.driver.start_worker(1)
        await on.driver.waiting()
        (pid,) = await on.driver.numbers()
        on.driver.notify(1, notification_pb2.Notice(save_checkpoint=notification_pb2.SaveCheckpoint()))
        await asyncio.to_thread(save_at, on.folder, pid)
        await on.driver.until(lambda: any(m.host_checkpoints.shards for m in on.driver.messages))
        on.driver.notify(1, notification_pb2.Notice(finish=notification_pb2.Finish()))
        await on.driver.exit_of(1)
        on.agent.signal(signal.SIGTERM)
        await on.driver.until(lambda: bool(leaving(on.driver)))
        seen = on.driver.heartbeats
        await on.driver.until(lambda: on.driver.heartbeats > seen + 1)  # one a second
        on.driver.shut_down(grace=0)
        assert await on.agent.exit_code() == 0


@in_loop
async def test_an_agent_that_holds_nothing_ends_in_time() -> None:
    async with host([], grace=0.2) as on:
        await on.driver.until(lambda: on.driver.heartbeats > 0)
        on.agent.signal(signal.SIGTERM)
        assert await on.agent.exit_code() == 143


@in_loop
async def test_a_worker_that_ignores_sigterm_is_killed_after_the_grace() -> None:
    async with host(script(IGNORES_SIGTERM)) as on:
        on.driver.start_worker(1)
        await on.driver.numbers(1)
        on.driver.stop_worker(1, grace=2 * AMPLE)
        on.driver.stop_worker(1, grace=0.2)
        assert (await on.driver.exit_of(1)).code == -signal.SIGKILL
        await finish(on)


async def one_that_has_failed(driver: FakeDriver) -> None:
    """Worker 1 is there, and has reported that its script raised an exception."""
    driver.start_worker(1)
    await driver.waiting()
    driver.notify(1, notification_pb2.Notice(skip=notification_pb2.Skip()))
    await driver.until(lambda: bool(driver.reports("worker_failed")))


@in_loop
async def test_a_worker_that_has_failed_may_say_its_last_words() -> None:
    async with host(FAKE_WORKER) as on:
        await one_that_has_failed(on.driver)
        on.driver.stop_worker(1, grace=AMPLE)
        on.driver.notify(1, notification_pb2.Notice(go_on=notification_pb2.GoOn()))  # arrives after the order to stop
        ended = await on.driver.exit_of(1)
        assert (ended.code, ended.tail.splitlines()[-1]) == (1, "last words")
        await finish(on)


@in_loop
async def test_a_worker_that_has_failed_and_stays_is_ended_within_the_grace() -> None:
    async with host(FAKE_WORKER) as on:
        await one_that_has_failed(on.driver)
        on.driver.stop_worker(1, grace=AMPLE)
        on.driver.stop_worker(1, grace=1.0)
        assert (await on.driver.exit_of(1)).code == -signal.SIGTERM
        await finish(on)


@in_loop
async def test_a_worker_is_killed_at_once_without_a_grace() -> None:
    async with host(script(FORKS_A_SLEEPER)) as on:
        on.driver.start_worker(1)
        await on.driver.numbers(2)
        on.driver.stop_worker(1, grace=0)
        assert (await on.driver.exit_of(1)).code == -signal.SIGKILL
        await finish(on)


@in_loop
async def test_a_second_shutdown_ends_the_grace_of_the_first() -> None:
    async with host(script(IGNORES_SIGTERM)) as on:
        on.driver.start_worker(1)
        await on.driver.numbers(1)
        on.driver.shut_down(2 * AMPLE)
        on.driver.shut_down(0)
        assert (await on.driver.exit_of(1)).code == -signal.SIGKILL
        assert await on.agent.exit_code() == 0


@in_loop
async def test_a_daemon_that_left_its_session_and_its_environment_ends_with_the_agent() -> None:
    async with host(script(LEAVES_A_DAEMON)) as on:
        on.driver.start_worker(1)
        (daemon,) = await on.driver.numbers(1)
        end = pidfd_of(daemon)
        # The daemon holds the worker's pipes open: nothing waits for their end.
        assert (await on.driver.exit_of(1)).code == 0
        os.kill(daemon, 0)
        await finish(on)
        await end_of(end)


@in_loop
async def test_a_daemon_that_left_its_session_ends_with_an_agent_that_is_killed() -> None:
    async with host(script(HAS_A_DAEMON)) as on:
        on.driver.start_worker(1)
        (daemon,) = await on.driver.numbers(1)
        end = pidfd_of(daemon)
        on.agent.signal(signal.SIGKILL)
        await end_of(end)


@in_loop
async def test_a_stopped_worker_loses_its_lease_once_and_one_that_answers_keeps_it() -> None:
    def signs_of_life() -> int:
        return on.driver.texts().count(b"lives")

    async with host(FAKE_WORKER, worker_lease=2) as on:
        on.driver.start_worker(1)
        await on.driver.waiting()
        (worker,) = await on.driver.numbers(1)
        on.driver.start_worker(2, slot=1)
        await on.driver.waiting(2)
        os.kill(worker, signal.SIGSTOP)
        await on.driver.until(lambda: any(m.WhichOneof("kind") == "lease_expired" for m in on.driver.messages))
        seen = signs_of_life()
        await on.driver.until(lambda: signs_of_life() > seen + 1)
        on.driver.stop_worker(1, grace=0)
        assert (await on.driver.exit_of(1)).code == -signal.SIGKILL
        assert on.driver.kinds_about(1) == ["worker_report", "worker_quiet", "lease_expired", "worker_exited"]
        assert "lease_expired" not in on.driver.kinds_about(2)
        await finish(on)


@in_loop
async def test_a_worker_that_is_quiet_and_answers_again_is_reported_as_such() -> None:
    async with host(FAKE_WORKER, worker_lease=4) as on:
        on.driver.start_worker(1)
        await on.driver.waiting()
        (worker,) = await on.driver.numbers(1)
        os.kill(worker, signal.SIGSTOP)
        await on.driver.until(lambda: "worker_quiet" in on.driver.kinds_about(1))
        os.kill(worker, signal.SIGCONT)
        await on.driver.until(lambda: "worker_answered" in on.driver.kinds_about(1))
        assert on.driver.kinds_about(1).count("worker_quiet") == 1
        await finish(on)


@in_loop
async def test_last_words_come_before_the_exit() -> None:
    async with host(FAKE_WORKER) as on:
        on.driver.start_worker(1)
        await on.driver.waiting()
        end = pidfd_of((await on.driver.numbers(1))[0])
        on.driver.notify(1, notification_pb2.Notice(abort=notification_pb2.Abort()))
        # The agent, which the worker has stopped, finds the report and the exit at the same time.
        await end_of(end)
        on.agent.signal(signal.SIGCONT)
        assert (await on.driver.exit_of(1)).code == 1
        kinds = [message.WhichOneof("kind") for message in on.driver.messages]
        assert kinds == ["worker_report", "worker_report", "worker_exited"]
        await finish(on)


def open_for_writing(fifo: Path) -> int:
    return os.open(fifo, os.O_WRONLY)


@in_loop
async def test_output_in_the_pipe_at_the_exit_is_not_lost(tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    source = f"""
import fcntl, os
fcntl.fcntl(1, fcntl.F_SETPIPE_SZ, 1 << 20)
print(os.getpid(), flush=True)
open({str(fifo)!r}).read()
os.write(1, (b"x" * 99 + b"\\n") * 5000)
"""
    async with host(script(source)) as on:
        on.driver.start_worker(1)
        end = pidfd_of((await on.driver.numbers(1))[0])
        writing = await asyncio.to_thread(open_for_writing, fifo)
        on.agent.signal(signal.SIGSTOP)
        os.close(writing)
        await end_of(end)
        on.agent.signal(signal.SIGCONT)
        await on.driver.exit_of(1)
        await finish(on)
        assert len(on.driver.lines) == 5001


@in_loop
async def test_many_workers_leave_no_descriptor_open() -> None:
    command = ["/bin/sh", "-c", f"case $EDRIVER_WORKER_ID in 5|25|45) exec {shlex.join(FAKE_WORKER)};; esac"]

    async def start(worker_ids: range) -> int:
        for worker_id in worker_ids:
            on.driver.start_worker(worker_id)
            if worker_id % 20 == 5:
                on.driver.notify(worker_id, notification_pb2.Notice(finish=notification_pb2.Finish()))
        for worker_id in worker_ids:
            assert (await on.driver.exit_of(worker_id)).code == 0
        return on.agent.descriptors()

    async with host(command) as on:
        some = await start(range(1, 11))
        assert await start(range(11, 61)) <= some + 4
        await finish(on)
