"""A worker's rounds over a real notification service, with a test in the agent's place and no process group."""

from __future__ import annotations

import gc
import multiprocessing
import os
import queue
import select
import signal
import tempfile
import threading
import weakref
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from edriver.common.release import PROTOCOL, VERSION
from edriver.model.ids import RoundId, Version
from edriver.model.plan import Assignment
from edriver.v1 import cause_pb2, rounds_pb2
from edriver.v1 import notification_pb2 as pb
from edriver.wire.conversion import timestamp, version_of
from edriver.worker import context
from edriver.worker.errors import HostsUpdatedInterrupt, PeerLostError, SwallowedInterruptError
from edriver.worker.rounds import notification
from edriver.worker.state.object_state import ObjectState
from tests.rpc.hand_made_agent import BOUND, Agent, Group, in_thread, round_id, rounds_of
from tests.waiting import until


class SlowState(ObjectState):
    """Its way back waits for the test."""

    may_restore = threading.Event()

    def return_to_boundary(self) -> None:
        assert self.may_restore.wait(BOUND)
        super().return_to_boundary()


@pytest.fixture
def folder() -> Iterator[Path]:
    """For sockets, which want short paths."""
    with tempfile.TemporaryDirectory(prefix="ed-") as name:
        yield Path(name)


@pytest.fixture
def agent(folder: Path) -> Iterator[Agent]:
    agent = Agent(folder)
    yield agent
    agent.close()


def test_from_the_first_word_to_the_last(agent: Agent) -> None:
    rounds = rounds_of(agent, Group())
    state = ObjectState(step=0)

    def train(state: ObjectState) -> str:
        while state.step < 3:
            state.step += 1
            state.commit()
        return "trained"

    outcome = in_thread(rounds, train, state)
    assert agent.announced() == 7
    agent.attach()
    waiting = agent.hear("worker_waiting").worker_waiting
    assert (waiting.ordinal, version_of(waiting.version), waiting.store.port) == (1, Version(RoundId(0, 0), 0), 1)
    agent.say(pb.Notice(ping=pb.Ping(number=5)))
    assert agent.hear("pong").pong.number == 5
    agent.assign(1)
    assert agent.hear("worker_done").worker_done.boundaries == 3
    agent.say(pb.Notice(hosts_updated=pb.HostsUpdated(round_id=round_id(1), number=1)))
    assert agent.hear("boundary_reached").boundary_reached.boundaries == 3
    agent.say(pb.Notice(finish=pb.Finish(round_id=round_id(1))))
    assert outcome.get(timeout=BOUND) == "trained"
    assert context.rank() == 0


def test_the_next_place_may_come_while_the_state_is_restored(agent: Agent) -> None:
    """The worker said WAITING a second time, out of the new round, which the driver took for leaving it."""
    group = Group()
    rounds = rounds_of(agent, group)
    state = SlowState(step=0)
    entered: queue.Queue[int] = queue.Queue()

    def train(state: ObjectState) -> str:
        before = state.step
        state.step += 1
        state.commit()
        entered.put(before)  # not sooner: the abort is to come after this boundary
        state.step += 1
        if len(group_calls) == 0:
            group_calls.append(1)
            assert group.severed.wait(BOUND)
            raise PeerLostError("lost")
        return "trained"

    group_calls: list[int] = []
    outcome = in_thread(rounds, train, state)
    agent.announced()
    agent.attach()
    agent.hear("worker_waiting")
    agent.assign(1)
    assert entered.get(timeout=BOUND) == 0
    agent.say(pb.Notice(abort=pb.Abort(round_id=round_id(1), cause=cause_pb2.Cause(text="a worker died"))))
    assert version_of(agent.hear("worker_waiting").worker_waiting.version) == Version(RoundId(1, 1), 1)
    agent.assign(2)
    agent.say(pb.Notice(ping=pb.Ping(number=1)))
    agent.hear("pong")  # the place has been taken in
    state.may_restore.set()
    assert entered.get(timeout=BOUND) == 1
    assert agent.hear("worker_done").worker_done.round_id.n == 2
    agent.say(pb.Notice(finish=pb.Finish(round_id=round_id(2))))
    assert outcome.get(timeout=BOUND) == "trained"


@pytest.mark.parametrize(
    ("kind", "is_lost"), [(cause_pb2.CAUSE_KIND_ENDED, True), (cause_pb2.CAUSE_KIND_STALLED, False)]
)
def test_a_member_is_lost_if_its_process_has_ended(
    agent: Agent, monkeypatch: pytest.MonkeyPatch, kind: cause_pb2.CauseKind.ValueType, is_lost: bool
) -> None:
    monkeypatch.setattr(context, "current", context.WorkerContext())
    group, left = Group(), threading.Event()
    rounds = rounds_of(agent, group)

    def train(state: ObjectState) -> None:
        assert left.is_set() or group.severed.wait(BOUND)
        if not left.is_set():
            left.set()
            raise PeerLostError("lost")

    outcome = in_thread(rounds, train, ObjectState(step=0))
    agent.announced()
    agent.attach()
    agent.hear("worker_waiting")
    agent.assign(1)
    cause = cause_pb2.Cause(kind=kind, worker_id=8, rank=3, text="a worker died")
    agent.say(pb.Notice(abort=pb.Abort(round_id=round_id(1), cause=cause)))
    agent.hear("worker_waiting")
    lost = context.current.lost_members
    assert lost.has(RoundId(1, 1), 3) is is_lost
    assert not lost.has(RoundId(1, 1), 0)
    assert not lost.has(RoundId(1, 2), 3)
    agent.assign(2)
    agent.hear("worker_done")
    agent.say(pb.Notice(finish=pb.Finish(round_id=round_id(2))))
    assert outcome.get(timeout=BOUND) is None


def test_an_interrupt_keeps_what_was_not_committed(agent: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    rounds = rounds_of(agent, Group())
    state = ObjectState(step=0)
    go = threading.Semaphore(0)
    entered: queue.Queue[int] = queue.Queue()

    def train(state: ObjectState) -> str:
        entered.put(state.step)
        while state.step < 4:
            assert go.acquire(timeout=BOUND)
            state.step += 1
            state.check_host_updates()
        return "trained"

    received: queue.Queue[tuple[float, int]] = queue.Queue()
    outcome = in_thread(rounds, train, state)
    agent.announced()
    agent.attach()
    agent.hear("worker_waiting")
    agent.assign(1)
    assert entered.get(timeout=BOUND) == 0
    monkeypatch.setattr(state, "on_hosts_updated", lambda timestamp, update_res: received.put((timestamp, update_res)))
    updated = pb.HostsUpdated(
        round_id=round_id(1), number=1, result=rounds_pb2.HOST_UPDATE_RESULT_ADDED, timestamp=timestamp(9.5)
    )
    agent.say(pb.Notice(hosts_updated=updated))
    assert agent.hear("boundary_reached").boundary_reached.boundaries == 0
    assert received.get(timeout=BOUND) == (9.5, 2)
    agent.say(pb.Notice(stop_at=pb.StopAt(round_id=round_id(1), number=1, boundary=2)))
    go.release(4)
    waiting = agent.hear("worker_waiting").worker_waiting
    assert version_of(waiting.version) == Version(RoundId(1, 1), 2)
    assert waiting.digest == "step=2"
    agent.assign(2)
    assert entered.get(timeout=BOUND) == 2
    assert agent.hear("worker_done").worker_done.boundaries == 2
    agent.say(pb.Notice(finish=pb.Finish(round_id=round_id(2))))
    assert outcome.get(timeout=BOUND) == "trained"


def test_a_newcomer_that_has_no_place_leaves_with_0(agent: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EDRIVER_WORKER_ID", "1")  # under a driver, so that it has no rank before its first round
    outcome = in_thread(rounds_of(agent, Group()), lambda state: 1, ObjectState(step=0))
    agent.announced()
    agent.attach()
    agent.hear("worker_waiting")
    agent.say(pb.Notice(leave=pb.Leave()))
    left = outcome.get(timeout=BOUND)
    assert isinstance(left, SystemExit)
    assert left.code == 0


def test_skip_leave_and_an_exception_of_its_own(agent: Agent) -> None:
    rounds = rounds_of(agent, Group())
    state = ObjectState(step=0)
    outcome = in_thread(rounds, lambda state: 1 / 0, state)
    agent.announced()
    agent.attach()
    agent.hear("worker_waiting")
    agent.say(pb.Notice(skip=pb.Skip(ordinal=1)))
    assert outcome.get(timeout=BOUND) is None
    assert context.rank() == -1
    outcome = in_thread(rounds, lambda state: 1 / 0, state)
    assert agent.hear("worker_waiting").worker_waiting.ordinal == 2
    agent.assign(1)
    assert "ZeroDivisionError" in agent.hear("worker_failed").worker_failed.traceback
    assert isinstance(outcome.get(timeout=BOUND), ZeroDivisionError)
    outcome = in_thread(rounds, lambda state: 1, state)
    agent.hear("worker_waiting")
    agent.say(pb.Notice(leave=pb.Leave()))
    left = outcome.get(timeout=BOUND)
    assert isinstance(left, SystemExit)
    assert left.code == 0


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(3), SystemExit(0)], ids=repr)
def test_whatever_leaves_the_function_is_reported_before_the_process_ends(agent: Agent, error: BaseException) -> None:
    rounds = rounds_of(agent, Group())

    def train(state: ObjectState) -> None:
        raise error

    outcome = in_thread(rounds, train, ObjectState(step=0))
    agent.announced()
    agent.attach()
    agent.hear("worker_waiting")
    agent.assign(1)
    assert "in train" in agent.hear("worker_failed").worker_failed.traceback
    assert outcome.get(timeout=BOUND) is error


def test_a_worker_whose_agent_is_gone_does_not_stay(agent: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notification, "ORPHAN_TIMEOUT", 0.0)
    orphaned = threading.Event()
    rounds = rounds_of(agent, Group(), orphaned.set)
    in_thread(rounds, lambda state: orphaned.wait(BOUND), ObjectState(step=0))
    agent.announced()
    agent.attach()
    agent.hear("worker_waiting")
    agent.assign(1)
    agent.channel.close()
    assert orphaned.wait(BOUND)


@pytest.mark.parametrize(("run_id", "worker_id"), [("another", 7), ("run", 8)])
def test_a_stream_for_another_worker_is_refused(agent: Agent, run_id: str, worker_id: int) -> None:
    rounds_of(agent, Group())
    agent.attach(run_id, worker_id)
    with pytest.raises(grpc.RpcError) as refused:
        next(agent.answers)
    assert refused.value.code() is grpc.StatusCode.FAILED_PRECONDITION


def test_an_agent_of_another_protocol_is_refused_with_a_sentence(
    agent: Agent, caplog: pytest.LogCaptureFixture
) -> None:
    """Which the worker prints, too: its agent sees only that the stream has ended."""
    rounds_of(agent, Group())
    agent.attach(protocol=PROTOCOL + 1)
    with pytest.raises(grpc.RpcError) as refused:
        next(agent.answers)
    assert refused.value.code() is grpc.StatusCode.FAILED_PRECONDITION
    sentence = f"this worker runs edriver {VERSION}, whose protocol {PROTOCOL} its agent does not speak (it speaks 2)"
    assert (refused.value.details() or "").startswith(sentence)
    assert sentence in caplog.text


def test_a_worker_that_waits_for_a_verdict_is_not_checked_for_a_stall(
    agent: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The verdict may take as long as another member's evaluation."""
    rounds = rounds_of(agent, Group())
    looks: queue.Queue[None] = queue.Queue()
    monkeypatch.setattr(rounds._watch._stall, "look", lambda progress, phase: looks.put(None))
    go, trains = threading.Event(), threading.Event()

    def train(state: ObjectState) -> None:
        trains.set()
        assert go.wait(BOUND)
        state.check_host_updates()

    outcome = in_thread(rounds, train, ObjectState(step=0))
    agent.announced()
    agent.attach()
    agent.hear("worker_waiting")
    agent.assign(1)
    assert trains.wait(BOUND)
    agent.say(pb.Notice(ping=pb.Ping(number=1)))
    agent.hear("pong")
    assert looks.qsize() == 1, "one that trains is looked at"
    agent.say(pb.Notice(hosts_updated=pb.HostsUpdated(round_id=round_id(1), number=1)))
    agent.hear("boundary_reached")
    go.set()
    agent.hear("first_boundary_passed")
    until(lambda: rounds._watch.waits_for_verdict)  # set by the training thread, right after what was heard
    agent.say(pb.Notice(ping=pb.Ping(number=2)))
    agent.hear("pong")
    assert looks.qsize() == 1
    agent.say(pb.Notice(go_on=pb.GoOn(round_id=round_id(1), number=1)))
    agent.hear("worker_done")
    agent.say(pb.Notice(finish=pb.Finish(round_id=round_id(1))))
    assert outcome.get(timeout=BOUND) is None


@pytest.mark.parametrize("end", ["goes on", "returns"])
def test_a_script_that_catches_the_interrupt_gets_an_error(agent: Agent, end: str) -> None:
    rounds = rounds_of(agent, Group())
    go = threading.Event()

    def train(state: ObjectState) -> str:
        assert go.wait(BOUND)
        while state.step < 100:
            state.step += 1
            try:
                state.commit()
            except HostsUpdatedInterrupt:
                if end == "returns":
                    break
        return "trained"

    outcome = in_thread(rounds, train, ObjectState(step=0))
    agent.announced()
    agent.attach()
    agent.hear("worker_waiting")
    agent.assign(1)
    agent.say(pb.Notice(hosts_updated=pb.HostsUpdated(round_id=round_id(1), number=1)))
    agent.hear("boundary_reached")
    agent.say(pb.Notice(stop_at=pb.StopAt(round_id=round_id(1), number=1, boundary=3)))
    go.set()
    text = agent.hear("worker_failed").worker_failed.traceback
    assert (
        "SwallowedInterruptError: worker 7 (rank 0) continued in a round that is over: the script caught Hosts" in text
    )
    assert f"raised by the boundary at {__file__}:" in text
    assert (f"called again at {__file__}:" if end == "goes on" else "and returned from its function") in text
    assert isinstance(outcome.get(timeout=BOUND), SwallowedInterruptError)


def test_a_run_inside_a_run_is_refused_at_once(agent: Agent) -> None:
    rounds = rounds_of(agent, Group())
    state = ObjectState(step=0)
    outcome = in_thread(rounds, lambda state: rounds.run(lambda state: 1, state, (), {}), state)
    agent.announced()
    agent.attach()
    agent.hear("worker_waiting")
    agent.assign(1)
    assert "inside a function that it runs" in agent.hear("worker_failed").worker_failed.traceback
    assert isinstance(outcome.get(timeout=BOUND), RuntimeError)


class Model:
    """An object that a training function holds, such as a model with the round's process group."""


class WatchfulGroup(Group):
    """Sees whether the last round's model is still alive when the next group is built."""

    def __init__(self) -> None:
        super().__init__()
        self.models: list[weakref.ref[Model]] = []
        self.alive_at_build: list[int] = []

    def build(self, place: Assignment, timeout: float) -> None:
        super().build(place, timeout)
        self.alive_at_build.append(sum(model() is not None for model in self.models))


@pytest.mark.parametrize("raised", [PeerLostError, HostsUpdatedInterrupt, None])
def test_nothing_of_a_round_is_alive_when_the_next_group_is_built(agent: Agent, raised: type[Exception] | None) -> None:
    """Whether it was left by an exception, or its function had returned a model before the others were lost."""
    group = WatchfulGroup()
    rounds = rounds_of(agent, group)

    def train(state: ObjectState) -> Model:
        model = Model()
        group.models.append(weakref.ref(model))
        if len(group.models) == 1 and raised is not None:
            raise raised("lost")
        return model

    outcome = in_thread(rounds, train, ObjectState(step=0))
    agent.announced()
    agent.attach()
    agent.hear("worker_waiting")
    gc.disable()
    try:
        agent.assign(1)
        if raised is PeerLostError:
            agent.hear("collective_raised")
        elif raised is None:
            agent.hear("worker_done")
            agent.say(pb.Notice(abort=pb.Abort(round_id=round_id(1), cause=cause_pb2.Cause(text="a worker died"))))
        agent.hear("worker_waiting")
        agent.assign(2)
        agent.hear("worker_done")
    finally:
        gc.enable()
    agent.say(pb.Notice(finish=pb.Finish(round_id=round_id(2))))
    assert isinstance(outcome.get(timeout=BOUND), Model)
    assert group.alive_at_build == [0, 0]


def fork_a_child_that_raises(folder: Path) -> None:
    """A worker, whose function forks while the notification thread holds the lock; exits with 0 if its child ends."""
    agent = Agent(folder)
    rounds = rounds_of(agent, Group())
    parent, children = os.getpid(), queue.Queue[int]()

    def train(state: ObjectState) -> None:
        rounds._changed.acquire()
        child = os.fork()
        if child == 0:
            raise ValueError("the child's own")
        rounds._changed.release()
        children.put(child)

    def call() -> None:
        try:
            rounds.run(train, ObjectState(step=0), (), {})
        finally:
            if os.getpid() != parent:
                os._exit(7)

    training = threading.Thread(target=call, daemon=True)
    training.start()
    agent.announced()
    agent.attach()
    agent.hear("worker_waiting")
    agent.assign(1)
    child = children.get(timeout=BOUND)
    ended, _, _ = select.select([os.pidfd_open(child)], [], [], 10.0)
    if not ended:
        os.kill(child, signal.SIGKILL)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    agent.hear("worker_done")
    agent.say(pb.Notice(finish=pb.Finish(round_id=round_id(1))))
    training.join(timeout=BOUND)
    assert not training.is_alive()
    agent.close()


def test_an_exception_of_a_forked_child_waits_for_no_thread_of_its_parent(folder: Path) -> None:
    """The notification thread may hold the lock when a data loader forks; in the child it is never released.

    In a process of its own, as a worker's is: what the threads of other tests hold at the fork is not what is tested.
    """
    worker = multiprocessing.get_context("spawn").Process(target=fork_a_child_that_raises, args=(folder,))
    worker.start()
    worker.join(BOUND)
    if worker.exitcode is None:
        worker.kill()
        worker.join()
    assert worker.exitcode == 0
