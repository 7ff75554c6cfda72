"""At the end of a run: which checkpoint in memory goes to disk, and what is said of it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest

from edriver.driver.core.memory_checkpoints import MemoryCheckpoints
from edriver.driver.feeds.inbound import Inbound
from edriver.driver.feeds.mailbox import Mailbox
from edriver.driver.observe.console.output import ROUTINE
from edriver.driver.run.last_checkpoint import SILENCE_BOUND, WRITE_TIMEOUT, write_last_checkpoint
from edriver.model.cause import AgentFault, AgentFaultKind
from edriver.model.events import AgentConnected, AgentLost, AgentSilent, CheckpointsHeld
from edriver.model.ids import RoundId
from edriver.model.memory_checkpoint import CheckpointId, DiskReport, DiskTarget, Shard
from edriver.model.records import HostRecord, Worker
from edriver.v1 import agent_pb2

TARGET = DiskTarget("/shared/checkpoints", 3, "/bin/python")


class Host:
    """One host, as its driver sees it: it writes what it is ordered to, and has a save of which it says so late.

    Attributes:
        late: the step of that save; None: there is none.
        writes: whether it does what it is ordered to.
    """

    revision = 0

    def __init__(self) -> None:
        self.hosts = {"a": HostRecord("a", slots=1, agent_id=1, connected=True)}
        self.memory = MemoryCheckpoints(0)
        self.inbox: Mailbox[Inbound] = Mailbox(10)
        self.late: int | None = None
        self.written: list[int] = []
        self.stopped: list[int] = []
        self.writes = True
        self._steps: list[int] = []

    def has_agent(self, host: str, agent_id: int) -> bool:
        return (host, agent_id) == ("a", 1)

    def live(self) -> list[Worker]:
        return [Worker(7, "a", 0)]

    def save(self, step: int) -> None:
        """While the run trains; the first one is due for disk."""
        self._steps.append(step)
        self.memory.note(self._held())
        self.memory.orders(self.hosts, 0, RoundId(1, 1))

    def stop(self, workers: Iterable[Worker]) -> None:
        assert not self.written, "they trained while a checkpoint was written"
        self.stopped += [worker.worker_id for worker in workers]

    def send(self, host: str, message: agent_pb2.ConnectResponse) -> None:
        write = message.keep_checkpoints.disk
        step = write.checkpoint.step
        if step in (0, *self.written) or not self.writes:
            return
        if self.late is not None:
            self._steps.append(self.late)
            self.late = None
        self.written.append(step)
        self.inbox.put(self._held(DiskReport(write.number, "checkpoint-000001", written=True, sealed=True)))

    def _held(self, disk: DiskReport | None = None) -> CheckpointsHeld:
        shards = [
            Shard(CheckpointId(RoundId(1, 1), step, 1), 0, b"l", 8, disk=replace(TARGET, due=step == self._steps[0]))
            for step in self._steps
        ]
        return CheckpointsHeld("a", 1, "a:1", tuple(shards), disk=disk)


def test_what_is_said_to_be_written_at_the_end_is_what_is_written(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(ROUTINE, "edriver.driver")
    host = Host()
    host.save(10)
    host.save(20)
    host.late = 30

    async def end() -> None:
        roster: Any = host
        await write_last_checkpoint(host.memory, roster, host.inbox, host.send, host.stop, asyncio.Event())

    asyncio.run(end())
    assert host.written == [10, 30], "10 was under way"
    assert host.stopped == [7]
    said = [record.getMessage() for record in caplog.records if record.levelno <= logging.INFO]
    assert said == [f"writing the checkpoint of step {step} from memory to disk" for step in host.written]


FAULT = AgentFault(AgentFaultKind.SILENT)


def end_of(host: Host, silence_bound: float = SILENCE_BOUND) -> None:
    async def end() -> None:
        roster: Any = host
        hurry = asyncio.Event()
        await write_last_checkpoint(
            host.memory, roster, host.inbox, host.send, host.stop, hurry, silence_bound=silence_bound
        )

    asyncio.run(end())


def test_the_last_host_that_held_it_is_lost_meanwhile(caplog: pytest.LogCaptureFixture) -> None:
    host = Host()
    host.save(10)
    host.writes = False
    host.inbox.put(AgentLost("a", 1, FAULT))
    end_of(host)
    lost = "the newest checkpoint, of step 10, is lost with this run: the hosts that held it are lost"
    assert caplog.messages[-1] == lost
    assert host.memory.newest is None


@pytest.mark.parametrize("before", [False, True], ids=["meanwhile", "before"])
def test_a_host_that_stays_silent_counts_as_lost(caplog: pytest.LogCaptureFixture, before: bool) -> None:
    host = Host()
    host.save(10)
    host.writes = False
    if before:
        host.hosts["a"].connected = False
    else:
        host.inbox.put(AgentSilent("a", 1, FAULT))
    end_of(host, silence_bound=0.0)
    assert caplog.messages[-1].endswith("the hosts that held it are lost")


def test_a_silence_is_counted_second_by_second() -> None:
    """So a pause of this machine is one second of it."""
    pauses: list[float] = []

    class Loop(asyncio.SelectorEventLoop):
        def call_later(self, delay: float, *args: Any, **others: Any) -> asyncio.TimerHandle:  # type: ignore[override]
            if delay < WRITE_TIMEOUT:
                pauses.append(delay)
                delay = 0.0
            return super().call_later(delay, *args, **others)

    host = Host()
    host.save(10)
    host.writes = False
    host.inbox.put(AgentSilent("a", 1, FAULT))
    with asyncio.Runner(loop_factory=Loop) as runner:
        roster: Any = host
        hurry = asyncio.Event()
        runner.run(
            write_last_checkpoint(host.memory, roster, host.inbox, host.send, host.stop, hurry, silence_bound=2.5)
        )
    assert pauses == [1.0, 1.0, 0.5]


def test_a_host_that_was_silent_for_a_while_writes_it(caplog: pytest.LogCaptureFixture) -> None:
    host = Host()
    host.save(10)
    host.save(20)
    host.inbox.put(AgentSilent("a", 1, FAULT))
    host.inbox.put(AgentConnected("a", 1))
    end_of(host, silence_bound=0.0)
    assert host.written == [10, 20]
    assert not caplog.messages
