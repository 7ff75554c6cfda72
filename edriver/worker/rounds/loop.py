"""The rounds of a worker: what `edriver.run` does between its entry and its return.

One lock, `_changed`, stands around the Participant, which decides; this file waits, builds process groups, and turns
verdicts into exceptions. The notification thread enters in `_take` alone.
"""

from __future__ import annotations

import atexit
import functools
import logging
import math
import os
import signal
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Concatenate, NoReturn, ParamSpec, Protocol, TypeVar, cast

from edriver.common.ids import RoundId, Version
from edriver.common.lease import Lease
from edriver.common.stall_limits import Phase, collective_timeout, limits_of
from edriver.common.store_address import StoreAddress
from edriver.common.wire import round_id_message
from edriver.system import stack_dump
from edriver.system.life_lock import LifeLock
from edriver.v1 import notification_pb2 as pb
from edriver.worker import phases, topology
from edriver.worker.assignment import Assignment
from edriver.worker.errors import HostsUpdatedInterrupt, PeerLostError, SwallowedInterruptError, UnprovenPeerError
from edriver.worker.reports import commits
from edriver.worker.rounds.notification import NotificationManager, NotificationServer
from edriver.worker.rounds.participant import Participant, Stage, Verdict
from edriver.worker.rounds.round_times import RoundTimes
from edriver.worker.state.state import State
from edriver.worker.watch.blocked import BlockedWatch
from edriver.worker.watch.forked import Owner
from edriver.worker.watch.lingering import EndWatch
from edriver.worker.watch.script_place import calling_place, nested_run
from edriver.worker.watch.stall import StallWatch, stacks
from edriver.worker.watch.stuck import StuckWatch
from edriver.worker.watch.traceback_text import traceback_text

logger = logging.getLogger("edriver.worker")

SEVER_INTERVAL = 0.03
"""Seconds between attempts to free a training thread that is still somewhere in the aborted round."""

STUCK_BOUND = 1.0
"""Seconds after which a training thread that still sits in a collective of an aborted round is beyond help."""

SWALLOWED_AFTER = 5.0
"""Seconds after which a training thread that is still in an aborted round, but not stuck, is shown."""

SILENCE_BOUND = 30.0
"""Seconds without a word from the agent (it speaks every 4 s at least) after which a waiting worker gives up."""

P = ParamSpec("P")
R = TypeVar("R")
S = TypeVar("S", bound=State)


class Group(Protocol):
    """The process group of one round after the other: see group.RoundGroup."""

    @property
    def store(self) -> StoreAddress:
        """Where this worker's store listens."""

    @property
    def gloo_only(self) -> bool:
        """Whether no collective can wait for a GPU."""

    def build(self, place: Assignment, timeout: float) -> None:
        """Join the round's group; raises PeerLostError if the others do not come."""

    def sever(self, round_id: RoundId) -> int:
        """Break the round's connections, from any thread; returns how many there were."""

    def teardown(self) -> None:
        """Forget the group."""


def end_process_group() -> None:
    """End this worker, and what it has started and what has not taken leave of its process group."""
    logger.error("the agent of this host is gone: this worker ends")
    os.killpg(os.getpgrp(), signal.SIGKILL)
    os._exit(1)  # it is the first process of its namespace, which no signal of its own ends


class WorkerRounds:
    """A worker's rounds, from its first `run` to its end.

    Args:
        environ: what the agent told the worker: EDRIVER_RUN_ID, EDRIVER_WORKER_ID, EDRIVER_SOCKET, EDRIVER_READY,
            EDRIVER_LIFE, EDRIVER_STALL_LIMITS.
        group: the process group.
        looks_like_peer_loss: tells a broken collective from an exception of the script's own.
        orphaned: called on the notification thread when the agent is gone for good: ends the process.
    """

    def __init__(
        self,
        environ: Mapping[str, str],
        group: Group,
        looks_like_peer_loss: Callable[[BaseException], bool],
        orphaned: Callable[[], None],
    ) -> None:
        self.notifications = NotificationManager()
        self._group = group
        self._looks_like_peer_loss = looks_like_peer_loss
        self._owner = Owner()
        self._participant = Participant()
        self._changed = threading.Condition(threading.Lock())
        self._times = RoundTimes()
        self._entered = 0
        self._state: State | None = None
        self._server = NotificationServer(
            environ["EDRIVER_SOCKET"],
            environ["EDRIVER_RUN_ID"],
            int(environ["EDRIVER_WORKER_ID"]),
            self._take,
            orphaned,
        )
        stack_dump.enable()
        limits = limits_of(environ.get("EDRIVER_STALL_LIMITS", "").split(), base={})
        self._stall = StallWatch(threading.main_thread(), limits)
        self._blocked = BlockedWatch(threading.main_thread())
        self._end = EndWatch(threading.main_thread())
        self._collective_timeout = collective_timeout(limits)
        self._checks = 0
        self._worker_id = environ["EDRIVER_WORKER_ID"]
        self._told_at = "?"
        self._waits_for_verdict = False
        self._agent_silence = Lease(SILENCE_BOUND, time.monotonic)
        self._last_word = self._server.last_word
        self._life = LifeLock(Path(environ["EDRIVER_LIFE"]))
        phases.current.show = self._life.show_phase
        if threading.current_thread() is threading.main_thread():  # another thread may end before the process does
            self._life.hold()
        self._server.start(environ["EDRIVER_READY"])
        atexit.register(self._server.stop)

    # ---- the training thread ----------------------------------------------------------------------------------

    def run(self, function: Callable[..., R], state: State, args: Any, kwargs: Any) -> R | None:
        """Call the function in one round after the other until all members are done: see `run` below."""
        if self._state is not None:
            raise nested_run(function)
        with self._changed:
            self._participant.enter()
        if self._entered:  # what the script has done to the state since the last `run` returned is part of it
            state.save()
            state.keep()
            self._participant.committed = self._participant.live
        self.notifications.register_listener(state)
        self._state = state
        state.bind(self)
        try:
            self._report_waiting(state, clean=False)
            while (place := self._next_place()) is not None:
                outcome = self._one_round(place, function, state, args, kwargs)
                if outcome is not None:
                    return outcome[0]
            topology.enter(topology.NOWHERE)
            return None
        except BaseException as error:  # also Ctrl-C and sys.exit: the others need not wait until this process ends
            reported = isinstance(error, SwallowedInterruptError)  # at the boundary
            if self._participant.stage is not Stage.LEAVING and not reported:
                self._report_failure(error)
            raise
        finally:
            state.bind(None)
            self._state = None
            self.notifications.remove_listener(state)

    def boundary(self, committed: bool) -> None:
        """Count a boundary: see `state.Rounds`. Without news it is one comparison of a local integer."""
        participant = self._participant
        if not participant.passed(committed):
            return
        if participant.boundaries == 1:
            phases.current.change(Phase.STEP)
            assert self._state is not None, "a boundary of a state that is bound"
            self._server.report(self._times.first_boundary(participant.round_id, self._state.copied))
        with self._changed:
            while (verdict := participant.verdict()) is Verdict.WAIT:
                self._waits_for_verdict = True  # for others, who may evaluate for an hour: that is no stall of its own
                self._wait_for_change()
        self._waits_for_verdict = False
        if verdict is Verdict.SWALLOWED:
            self._complain(f"called again at {calling_place()}")
        if verdict is not Verdict.PASS:
            stop, self._told_at = verdict is Verdict.STOP, calling_place()
            raise HostsUpdatedInterrupt if stop else PeerLostError(participant.abort_cause)

    def _complain(self, what: str) -> NoReturn:
        """The script has caught what a boundary raised, and went on: say so at once, for it may catch this, too."""
        participant = self._participant
        rank = participant.place.rank if participant.place else "?"
        kind = "HostsUpdatedInterrupt" if participant.abort_cause is None else "PeerLostError"
        error = SwallowedInterruptError(
            f"worker {self._worker_id} (rank {rank}) went on in a round that is over: the script caught {kind}, raised "
            f"by the boundary at {self._told_at}, and {what}. Let it pass, for it leads to the next round; around a "
            "boundary, catch neither Exception nor RuntimeError"
        )
        try:
            raise error
        except SwallowedInterruptError:
            self._report_failure(error)
            raise

    def _report_failure(self, error: BaseException) -> None:
        self._server.report(pb.Report(failed=pb.Failed(traceback=traceback_text(error))))

    def check(self) -> None:
        """Look for bad news without counting a boundary: see `state.Rounds`."""
        self._checks += 1
        if self._participant.abort_cause is not None:
            raise PeerLostError(self._participant.abort_cause)

    def _one_round(
        self, place: Assignment, function: Callable[..., R], state: State, args: Any, kwargs: Any
    ) -> tuple[R] | None:
        """One round; returns the function's result in a tuple when all members are done, None for another round."""
        try:
            self._begin(place, state)
            result = function(state, *args, **kwargs)
            if self._participant.told_to_leave and self._participant.abort_cause is None:
                self._complain("returned from its function")
            with self._changed:
                self._server.report(self._participant.done())
                while self._participant.stage is Stage.DONE and self._participant.abort_cause is None:
                    self._wait_for_change()
                if self._participant.stage is Stage.FINISHED:
                    phases.current.show(None)
                    return (result,)
            raise PeerLostError(self._participant.abort_cause)
        except HostsUpdatedInterrupt:
            self._times.mark("stopped")
            offer = self._report_waiting(state, clean=True)
            if not state.clean and self._participant.committed != offer:
                state.save()  # it was offered, so it must be possible to go back to it
                self._participant.committed = offer
        except Exception as error:
            self._times.mark("stopped")
            if not self._is_peer_loss(error):
                raise
            logger.info("a peer is lost: %s", error)
            if self._participant.abort_cause is None:
                unproven = isinstance(error, UnprovenPeerError)
                text = str(error) if unproven else traceback_text(error)
                told = self._participant.unproven(text) if unproven else self._participant.raised(text)
                self._server.report(told)
            clean = state.clean
            self._report_waiting(state, clean)
            if clean:
                state.return_to_boundary()
            else:
                state.restore()
            state.clear_gradients()
        # The exception is forgotten with this frame: its traceback would keep the old model's group alive.
        return None

    def _begin(self, place: Assignment, state: State) -> None:
        phases.current.change(Phase.INIT)
        self._group.teardown()
        self._group.build(place, self._collective_timeout)
        self._times.mark("built")
        topology.enter(place)
        if self._entered:
            state.on_reset()
        self._entered += 1
        committed = state.sync() is not False
        self._times.mark("synced")
        with self._changed:
            self._participant.synced(committed)

    def _next_place(self) -> Assignment | None:
        """Wait for a place in a round; None: this `run` is to be skipped.

        Raises:
            SystemExit: this worker is to leave.
        """
        with self._changed:
            while self._participant.stage is Stage.WAITING:
                self._wait_for_change()
            match self._participant.stage:
                case Stage.LEAVING:
                    raise SystemExit(0)
                case Stage.SKIPPING:
                    return None
            return self._participant.place

    def _report_waiting(self, state: State, clean: bool) -> Version:
        """Leave the round; ready for the next, which may be assigned from now on.

        Comes before any copying, which can go on while the others come back.

        Args:
            state: the state on offer,
            clean: as it was at the last boundary; else as it was committed last.

        Returns:
            the version on offer.
        """
        phases.current.show(None)
        digest = state.digest(committed=not clean)
        with self._changed:
            participant = self._participant
            offer = participant.live if clean else participant.committed
            self._times.mark("waiting")
            self._server.report(participant.wait(offer, self._group.store, digest))
            return offer

    def _is_peer_loss(self, error: Exception) -> bool:
        if isinstance(error, SwallowedInterruptError):
            return False  # though it may well be the consequence of one
        if not self._owner.is_here:
            return False  # a forked child takes no part in rounds: whatever it raises ends it
        if isinstance(error, PeerLostError) or self._looks_like_peer_loss(error):
            return True
        # Severed connections surface in many words; all of them are RuntimeErrors.
        return self._participant.abort_cause is not None and isinstance(error, RuntimeError)

    def _wait_for_change(self) -> None:
        """Wait until the notification thread has taken something (the lock is held).

        Raises:
            SystemExit: the agent has been silent for too long; nobody would ever answer.
        """
        self._changed.wait(timeout=1.0)
        if self._last_word != self._server.last_word:
            self._last_word = self._server.last_word
            self._agent_silence.renew()
        if self._agent_silence.tick():  # counted in looks: a word may lie unread, if this process itself was stopped
            logger.error("no word from the agent for %g s: this worker ends", SILENCE_BOUND)
            raise SystemExit(1)

    # ---- the notification thread ------------------------------------------------------------------------------

    def _take(self, notice: pb.Notice) -> pb.Report | None:
        match notice.WhichOneof("kind"):
            case "ping":
                self._look_for_stall()
                if self._state is None and (text := self._end.look()) is not None:
                    logger.error("%s", text)
            case "abort" | "stop_at":
                self._times.mark("notified")
            case "assign_place":
                self._times.mark("assigned")
        with self._changed:
            answer = self._participant.take(notice)
            self._changed.notify_all()
            aborted = notice.HasField("abort") and self._participant.abort_cause is not None
            round_id = self._participant.round_id
        if answer is not None and answer.HasField("pong"):
            answer.pong.standing.CopyFrom(self._standing())
        if aborted:
            if self._state is not None:
                self._state.peer_lost()
            self._group.sever(round_id)
            threading.Thread(target=self._free, args=(round_id,), name="edriver-sever", daemon=True).start()
        elif answer is not None and answer.HasField("boundary_reached"):
            updated = notice.hosts_updated
            self.notifications.handle_hosts_updated(updated.timestamp, int(updated.result))
        return answer

    def _standing(self) -> pb.Standing:
        """How far this worker has come. Read beside the training thread: each number is right, or was a moment ago."""
        participant, state = self._participant, self._state
        told = pb.Standing(round_id=round_id_message(participant.round_id), boundaries=participant.boundaries)
        if state is not None:
            if samples := state.samples_done():
                told.epoch, told.samples_done, told.samples = samples
            told.reported.update(state.reported)
        told.commits, told.commit_seconds, told.commit_bytes = commits.count, commits.seconds, commits.nbytes
        return told

    def _look_for_stall(self) -> None:
        participant, phase = self._participant, phases.current
        if participant.stage is not Stage.ASSIGNED or self._waits_for_verdict:
            return
        progress = (participant.round_id, participant.boundaries, self._checks, phase.changes)
        if (seconds := self._blocked.look(progress)) is not None:
            self._server.report(participant.blocked(seconds))
        if stall := self._stall.look(progress, phase.phase):
            stalled = pb.Stalled(
                round_id=round_id_message(participant.round_id),
                phase=stall.phase,
                seconds=stall.seconds,
                stacks=stall.stacks,
            )
            self._server.report(pb.Report(stalled=stalled))

    def _free(self, round_id: RoundId) -> None:
        """Sever again until the training thread has left the round: it may just have opened further connections."""
        watch = StuckWatch(threading.main_thread(), STUCK_BOUND)
        told = False
        said_at = time.monotonic() + SWALLOWED_AFTER
        while True:
            with self._changed:
                left = self._changed.wait_for(
                    lambda: (
                        self._participant.stage not in (Stage.ASSIGNED, Stage.DONE)
                        or self._participant.round_id != round_id
                    ),
                    timeout=SEVER_INTERVAL,
                )
            if left:
                return
            if time.monotonic() >= said_at:
                said_at = math.inf
                text = "the script is still in round %s, which is over: does it catch RuntimeError around a step?\n%s"
                logger.error(text, round_id, stacks(threading.main_thread()))
            connections = self._group.sever(round_id)
            if not told and watch.stuck(cut_off=not connections and self._group.gloo_only):
                # The driver has this worker killed, unless it is the last one that holds the state.
                logger.error("a collective of the aborted round cannot be freed")
                self._server.report(pb.Report(stuck=pb.Stuck(round_id=round_id_message(round_id))))
                told = True


class Alone:
    """The rounds of a script that no driver has started: one, of one worker, in which nothing happens."""

    def __init__(self) -> None:
        from edriver.worker.group.round_group import RoundGroup

        self._group = RoundGroup(None)
        self._entered = False
        self._running = False

    def run(self, function: Callable[..., R], state: State, args: Any, kwargs: Any) -> R | None:
        """Call the function once."""
        if self._running:
            raise nested_run(function)
        if not self._entered:
            self._group.build_alone()
            self._entered = True
        state.sync()
        self._running = True
        try:
            return function(state, *args, **kwargs)
        finally:
            self._running = False


@functools.cache
def rounds_of_this_process() -> WorkerRounds | Alone:
    """The rounds of this process: of a worker if a driver has started it, else of a script on its own."""
    if "EDRIVER_WORKER_ID" not in os.environ:
        return Alone()
    from edriver.worker.backend.peer_loss import looks_like_peer_loss
    from edriver.worker.group.round_group import RoundGroup
    from edriver.worker.group.store_transport import StoreWire
    from edriver.worker.group.warm_up import warm_up

    broken = warm_up()
    papers = os.environ.get("EDRIVER_PAPERS")
    group = RoundGroup(os.environ["EDRIVER_STORE"], wire=StoreWire(Path(papers) if papers else None), broken=broken)
    return WorkerRounds(os.environ, group, looks_like_peer_loss, end_process_group)


def run(function: Callable[Concatenate[S, P], R]) -> Callable[Concatenate[S, P], R | None]:
    """Make a training function elastic: it is called again, in the same process, in every round.

    In each round the default process group of torch.distributed is there (Gloo), `rank()` and `size()` are the
    round's, and the state is the same on all members; so build DistributedDataParallel and data loaders inside the
    function. When members are lost, or hosts come and go, the call is left by an exception from a boundary
    (`state.commit()`, `state.check_host_updates()`) or from a collective, and made again in the next round, from the
    state's last commit or boundary. The first parameter is the State.

    The wrapped function returns what the function returned, once all members are done; None where the driver lets a
    late worker skip a `run` that is over. The process group stays for collectives after it, which are not elastic.

    Raises:
        TypeError: the first argument is not a State.
        SystemExit: with code 0, when this worker's host is leaving.
        Exception: whatever the function raised that is not the loss of a peer; the process is expected to end of it.
    """

    @functools.wraps(function)
    def wrapper(state: S, *args: P.args, **kwargs: P.kwargs) -> R | None:
        if not isinstance(state, State):
            raise TypeError(
                f"the first argument of {function.__name__} must be an edriver.State (such as TorchState), "
                f"not {type(state).__name__}"
            )
        return rounds_of_this_process().run(function, state, args, kwargs)

    return cast(Callable[Concatenate[S, P], R | None], wrapper)
