"""The loop of a worker's rounds: what it asks for, in which order, after which answers."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import pytest

from edriver.model.ids import NO_VERSION, RoundId, Version
from edriver.model.store_address import StoreAddress
from edriver.v1 import cause_pb2, rounds_pb2
from edriver.v1 import notification_pb2 as pb
from edriver.wire.conversion import round_id_message, version_message, version_of
from edriver.worker.rounds import effects
from edriver.worker.rounds.effects import Complaint, Effect, Raised
from edriver.worker.rounds.participant import BoundaryVerdict, End, Participant, RoundLoop, SealVerdict

STORE = StoreAddress("a", 7007)


class Worker:
    """A loop, with the test in the place of everything around it.

    Args:
        clean: whether its state can return to its last boundary.
    """

    def __init__(self, clean: bool = True) -> None:
        self.participant = Participant()
        self.loop = RoundLoop(self.participant, STORE)
        self.clean = clean
        self.settled: Raised | None = None
        self.looks: list[bool] = []
        self.newest: int | None = None
        self.uncounted = 0
        self.log: list[str] = []
        self.message: list[pb.Report] = []
        self._n = 0

    def enter(self) -> None:
        """Enter the script's next `run` call, up to the first wait."""
        entry = self.loop.enter()
        self._go_on(entry, None)
        self.steps = self.loop.run()
        self.step(None)

    def step(self, answer: Any) -> Effect | End:
        """Answer the last effect; returns the next that the test has to answer, or the end."""
        found = self._go_on(self.steps, answer)
        assert isinstance(found, End | effects.Attempt | effects.WaitForChange | effects.Complain), found
        return found

    def take(self, **notice: Any) -> None:
        self.participant.take(pb.Notice(**notice))

    def place(
        self,
        fallback_size: int = 0,
        size: int = 1,
        version: Version = NO_VERSION,
        norm: float | None = None,
        replica_size: int = 1,
    ) -> None:
        """It is assigned to the next round, which continues from this version."""
        self._n += 1
        seat = rounds_pb2.Seat(worker_id=7, rank=0, local_rank=0, local_size=1, cross_rank=0, cross_size=1)
        store = rounds_pb2.StoreAddress(host="a", port=7001)
        shared = rounds_pb2.RoundAssignment(round_id=self.round_id, size=size, store=store, fallback_size=fallback_size)
        shared.version.CopyFrom(version_message(version))
        if norm is not None:
            shared.gradient_norm = norm
        shared.replica_size = replica_size
        self.take(assignment=pb.Assignment(round=shared, seat=seat))

    @property
    def round_id(self) -> rounds_pb2.RoundId:
        return round_id_message(RoundId(1, self._n))

    def abort(self) -> None:
        self.take(abort=pb.Abort(round_id=self.round_id, cause=cause_pb2.Cause(text="worker 2 died")))

    def train(self, commits: int = 0, boundaries: int = 0, size: int = 1) -> None:
        """Go into the next round, and through so many boundaries, the first of them with a commit."""
        self.place(size=size)
        step: Any = self.step(None)
        while not isinstance(step, effects.Train):
            step = self.step(False if isinstance(step, effects.Sync) else None)
        for i in range(commits + boundaries):
            self.participant.passed(committed=i < commits)
        self.log.clear()
        self.message.clear()

    def stop_here(self) -> None:
        """The driver agrees on the boundary that the next call reaches."""
        self.take(hosts_updated=pb.HostsUpdated(round_id=self.round_id, number=1))
        at = self.participant.boundaries + 1
        self.take(stop_at=pb.StopAt(round_id=self.round_id, number=1, boundary=at))

    def boundary(self) -> BoundaryVerdict | Effect:
        """Reach a boundary; returns its verdict, or the effect that it waits for."""
        if not self.participant.passed(committed=False):
            return BoundaryVerdict.PASS
        found = self._go_on(self.loop.boundary(), None)
        assert isinstance(found, BoundaryVerdict | effects.WaitForChange | effects.Complain), found
        return found

    def break_seal(self) -> SealVerdict | Effect:
        """The seal of the step that the script is about to make breaks."""
        self.sealing = self.loop.seal_broken()
        return self.settle_seal()

    def settle_seal(self) -> SealVerdict | Effect:
        """Go on in a seal that has broken; returns what becomes of the step, or the effect that it waits for."""
        found = self._go_on(self.sealing, None)
        assert isinstance(found, SealVerdict | effects.WaitForChange), found
        return found

    @property
    def offered(self) -> tuple[Version, str]:
        waiting = self.message[-1].worker_waiting
        return version_of(waiting.version), waiting.digest

    def _go_on(self, steps: Generator[Effect, Any, Any], answer: Any) -> Any:
        """Answer what needs no decision of the test."""
        while True:
            try:
                step = steps.send(answer)
            except StopIteration as end:
                return end.value
            answer = None
            match step:
                case effects.Say(report):
                    self.message.append(report)
                    self.log.append(f"say {report.WhichOneof('kind')}")
                    continue
                case effects.Settle():
                    answer = self.settled
                case effects.IsClean():
                    answer = self.clean
                case effects.UncountedSteps():
                    answer = self.uncounted
                    continue
                case effects.Digest(committed):
                    answer = "of the commit" if committed else "of the boundary"
                case effects.NewestCheckpoint(look):
                    self.looks.append(look)
                    answer = self.newest if look or self.newest is None else 0
                case effects.Describe():
                    answer = "the traceback"
                case effects.WaitForChange() | effects.Complain():
                    return step
                case _ if isinstance(step, effects.Attempt):
                    self.log.append(type(step).__name__)
                    return step
            self.log.append(type(step).__name__)


def entered(clean: bool = True) -> Worker:
    worker = Worker(clean)
    worker.enter()
    return worker


def test_from_entry_to_the_end_of_the_last_round() -> None:
    worker = entered()
    assert worker.log == ["Digest", "NewestCheckpoint", "say worker_waiting"]
    assert worker.offered == (NO_VERSION, "of the commit")
    worker.place()
    assert worker.step(None) == effects.Build()
    assert worker.step(None) == effects.Sync()
    assert worker.step(True) == effects.Train()
    assert worker.participant.committed == Version(RoundId(1, 1), 0)
    assert worker.step(None) == effects.WaitForChange()
    assert worker.log[-1] == "say worker_done"
    worker.take(finish=pb.Finish(round_id=worker.round_id))
    assert worker.step(None) is End.FINISHED


def test_a_wait_is_asked_for_until_something_has_changed() -> None:
    worker = entered()
    assert [worker.step(None) for _ in range(3)] == [effects.WaitForChange()] * 3


@pytest.mark.parametrize(
    ("notice", "end"), [({"leave": pb.Leave()}, End.LEFT), ({"skip": pb.Skip(ordinal=1)}, End.SKIPPED)], ids=str
)
def test_a_worker_that_waits_may_be_sent_away(notice: dict[str, Any], end: End) -> None:
    worker = entered()
    worker.take(**notice)
    assert worker.step(None) is end


def driver_gone(checkpoint: bool = True) -> dict[str, Any]:
    return {"driver_gone": pb.DriverGone(checkpoint=checkpoint)}


def test_without_state_a_worker_whose_run_has_no_driver_writes_none() -> None:
    worker = entered()
    worker.take(**driver_gone())
    assert worker.step(None) is End.LEFT
    assert "LastCheckpoint" not in worker.log


@pytest.mark.parametrize("checkpoint", [True, False])
def test_a_worker_whose_run_has_no_driver_leaves_at_its_next_boundary(checkpoint: bool) -> None:
    worker = entered()
    worker.train(boundaries=2)
    worker.take(**driver_gone(checkpoint))
    assert worker.boundary() is BoundaryVerdict.STOP
    assert worker.step(Raised.HOSTS_UPDATED) is End.LEFT
    assert worker.offered == (Version(RoundId(1, 1), 3), "of the boundary")
    assert worker.log[worker.log.index("Forget") + 1 :] == ["LastCheckpoint"] * checkpoint


def test_a_boundary_that_waits_for_a_verdict_waits_no_longer() -> None:
    worker = entered()
    worker.train(boundaries=2)
    worker.take(hosts_updated=pb.HostsUpdated(round_id=worker.round_id, number=1))
    assert worker.boundary() == effects.WaitForChange(for_verdict=True)
    worker.take(**driver_gone())
    assert worker.boundary() is BoundaryVerdict.STOP


@pytest.mark.parametrize(("clean", "back"), [(True, "ReturnToBoundary"), (False, "Restore")])
def test_members_that_wait_write_what_they_have_gone_back_to(clean: bool, back: str) -> None:
    worker = entered(clean)
    worker.train(commits=1, boundaries=1)
    worker.abort()
    worker.take(**driver_gone())
    assert worker.step(Raised.PEER_LOST) is End.LEFT
    assert worker.log[-3:] == [back, "Forget", "LastCheckpoint"]


def test_a_member_that_is_done_writes_it_too() -> None:
    worker = entered()
    worker.train(boundaries=1)
    assert worker.step(None) == effects.WaitForChange()
    worker.take(**driver_gone())
    assert worker.step(None) is End.LEFT
    assert worker.log[-3:] == ["ReturnToBoundary", "Forget", "LastCheckpoint"]


def test_later_rounds_adapt_the_state_before_its_sync() -> None:
    worker = entered()
    worker.train()
    assert worker.step(Raised.HOSTS_UPDATED) == effects.WaitForChange()
    worker.place()
    worker.log.clear()
    worker.step(None)
    worker.step(None)
    worker.step(None)
    assert worker.log == ["Build", "Adapt", "Sync"]


def test_a_first_round_that_was_not_built_has_adapted_nothing() -> None:
    worker = entered()
    worker.place()
    worker.step(None)
    worker.step(Raised.PEER_LOST)
    worker.place()
    worker.log.clear()
    worker.step(None)
    worker.step(None)
    assert worker.log == ["Build", "Sync"]


def test_a_holder_keeps_its_own_commit() -> None:
    worker = entered()
    worker.train(commits=1)
    worker.step(Raised.PEER_LOST)
    worker.train()  # whose sync commits nothing
    assert worker.participant.committed == Version(RoundId(1, 1), 1)


# ---- what leads out of a round ----------------------------------------------------------------------------------


@pytest.mark.parametrize("raised", [Raised.PEER_LOST, Raised.UNPROVEN])
def test_the_loss_of_a_peer_is_reported_before_the_worker_waits(raised: Raised) -> None:
    worker = entered()
    worker.train(commits=1)
    assert worker.step(raised) == effects.WaitForChange()
    kind = "collective_raised" if raised is Raised.PEER_LOST else "peer_unproven"
    after = ["Digest", "NewestCheckpoint", "say worker_waiting", "ReturnToBoundary", "Forget"]
    assert worker.log == ["Stopped", "Describe", f"say {kind}", "IsClean", *after]
    message = worker.message[0]
    assert "the traceback" in (message.collective_raised.traceback, message.peer_unproven.reason)


@pytest.mark.parametrize("raised", [Raised.PEER_LOST, Raised.UNPROVEN, Raised.RUNTIME_ERROR])
def test_of_a_round_that_was_aborted_nothing_is_reported(raised: Raised) -> None:
    worker = entered()
    worker.train(commits=1)
    worker.abort()
    assert worker.step(raised) == effects.WaitForChange()
    assert worker.log == [
        "Stopped",
        "IsClean",
        "Digest",
        "NewestCheckpoint",
        "say worker_waiting",
        "ReturnToBoundary",
        "Forget",
    ]


@pytest.mark.parametrize("clean", [True, False])
def test_steps_without_a_boundary_are_lost_with_the_round(clean: bool) -> None:
    worker = entered(clean)
    worker.train()
    worker.uncounted = 37
    worker.abort()
    worker.step(Raised.PEER_LOST)
    assert worker.message[-1].worker_waiting.steps_lost == 37
    assert "WhyTorn" in worker.log


def test_where_boundaries_are_passed_no_other_step_is_lost() -> None:
    worker = entered()
    worker.train(commits=1)
    worker.uncounted = 37
    worker.abort()
    worker.step(Raised.PEER_LOST)
    assert worker.message[-1].worker_waiting.steps_lost == 0


@pytest.mark.parametrize(
    ("raised", "aborted"), [(Raised.OWN, False), (Raised.OWN, True), (Raised.RUNTIME_ERROR, False)], ids=str
)
def test_the_scripts_own_error_ends_the_worker_at_once(raised: Raised, aborted: bool) -> None:
    worker = entered()
    worker.train()
    if aborted:
        worker.abort()
    assert worker.step(raised) is End.FAILED
    assert worker.log == []


@pytest.mark.parametrize("aborted", [False, True])
def test_where_fewer_have_trained_the_scripts_own_error_leads_back_to_the_last_boundary(aborted: bool) -> None:
    worker = entered()
    worker.train(commits=1, boundaries=2)
    worker.step(Raised.PEER_LOST)
    worker.log.clear()
    worker.message.clear()
    worker.place(fallback_size=2)
    step: Any = worker.step(None)
    while not isinstance(step, effects.Train):
        step = worker.step(False if isinstance(step, effects.Sync) else None)
    if aborted:
        worker.abort()
    assert worker.step(Raised.OWN) == effects.WaitForChange()
    failed, _ = worker.message
    assert failed.worker_failed.rejoins
    assert worker.offered == (Version(RoundId(1, 2), 0), "of the boundary")
    assert worker.log[-2:] == ["ReturnToBoundary", "Forget"]


def test_after_a_boundary_with_more_workers_the_scripts_own_error_ends_the_worker() -> None:
    worker = entered()
    worker.place(fallback_size=2)
    step: Any = worker.step(None)
    while not isinstance(step, effects.Train):
        step = worker.step(False if isinstance(step, effects.Sync) else None)
    worker.participant.passed(committed=False)
    assert worker.step(Raised.OWN) is End.FAILED


@pytest.mark.parametrize("place", [effects.Build, effects.Adapt, effects.Sync])
def test_a_peer_may_be_lost_on_the_way_into_a_round(place: type[Effect]) -> None:
    worker = entered()
    worker.train(commits=1, boundaries=2)
    worker.step(Raised.PEER_LOST)
    offered = worker.offered
    worker.place()
    step = worker.step(None)
    while not isinstance(step, place):
        step = worker.step(None)
    assert worker.step(Raised.PEER_LOST) == effects.WaitForChange()
    assert worker.offered == offered  # the new round's boundaries do not count before its sync


@pytest.mark.parametrize(
    ("clean", "boundaries", "digest", "way"),
    [
        pytest.param(True, 3, "of the boundary", "ReturnToBoundary", id="clean"),
        pytest.param(False, 1, "of the commit", "Restore", id="torn"),
    ],
)
def test_what_is_offered_is_what_it_goes_back_to(clean: bool, boundaries: int, digest: str, way: str) -> None:
    worker = entered(clean)
    worker.train(commits=1, boundaries=2)
    worker.step(Raised.PEER_LOST)
    assert worker.offered == (Version(RoundId(1, 1), boundaries), digest)
    assert worker.log[-3:] == ["say worker_waiting", way, "Forget"]


@pytest.mark.parametrize(
    ("clean", "boundaries", "saves"),
    [
        pytest.param(True, 2, False, id="clean"),
        pytest.param(False, 2, True, id="a-state-that-no-boundary-keeps"),
        pytest.param(False, 0, False, id="that-was-committed-there"),
    ],
)
def test_at_an_agreed_boundary_the_state_is_offered_as_it_is(clean: bool, boundaries: int, saves: bool) -> None:
    worker = entered(clean)
    worker.train(commits=1, boundaries=boundaries)
    offer = worker.participant.live
    assert worker.step(Raised.HOSTS_UPDATED) == effects.WaitForChange()
    assert worker.offered == (offer, "of the boundary")
    assert worker.log == [
        "Settle",
        "Stopped",
        "Digest",
        "NewestCheckpoint",
        "say worker_waiting",
        "IsClean",
        *["Save"] * saves,
        "Forget",
    ]
    assert worker.participant.committed == (Version(RoundId(1, 1), 1) if clean else offer)


def test_a_peer_may_be_lost_while_a_device_finishes_an_agreed_round() -> None:
    worker = entered()
    worker.train(commits=1, boundaries=2)
    worker.settled = Raised.PEER_LOST
    assert worker.step(Raised.HOSTS_UPDATED) == effects.WaitForChange()
    assert worker.log[:3] == ["Settle", "Stopped", "Describe"]
    assert worker.log[-2:] == ["ReturnToBoundary", "Forget"]
    assert worker.offered == (Version(RoundId(1, 1), 3), "of the boundary")


def test_a_worker_is_done_once_its_device_is() -> None:
    worker = entered()
    worker.train(commits=1)
    worker.step(None)
    assert worker.log == ["Settle", "say worker_done"]


def test_a_peer_may_be_lost_while_a_device_finishes_the_last_step() -> None:
    worker = entered()
    worker.train(commits=1)
    worker.settled = Raised.PEER_LOST
    assert worker.step(None) == effects.WaitForChange()
    assert "say worker_done" not in worker.log
    assert worker.log[-2:] == ["ReturnToBoundary", "Forget"]


def test_what_was_saved_at_an_agreed_boundary_is_offered_after_a_loss() -> None:
    worker = entered(clean=False)
    worker.train(commits=1, boundaries=2)
    worker.step(Raised.HOSTS_UPDATED)
    worker.place()
    worker.step(None)
    worker.step(Raised.PEER_LOST)
    assert worker.offered == (Version(RoundId(1, 1), 3), "of the commit")


def test_an_abort_reaches_a_worker_that_is_done() -> None:
    worker = entered()
    worker.train(commits=1)
    worker.step(None)
    worker.abort()
    assert worker.step(None) == effects.WaitForChange()
    assert worker.log[-6:] == [
        "IsClean",
        "Digest",
        "NewestCheckpoint",
        "say worker_waiting",
        "ReturnToBoundary",
        "Forget",
    ]
    assert "Describe" not in worker.log


@pytest.mark.parametrize("synced", [False, True])
def test_up_to_its_first_boundary_a_round_keeps_the_name_of_the_version_that_it_continues_from(synced: bool) -> None:
    """Members are synced one after the other. After a loss, what one of them has must not look newer than the same."""
    worker = entered()
    worker.train(commits=1, boundaries=2)
    worker.step(Raised.PEER_LOST)
    before, _ = worker.offered
    worker.place(version=before)
    step: Any = worker.step(None)
    while not isinstance(step, effects.Train if synced else effects.Sync):
        step = worker.step(True if isinstance(step, effects.Sync) else None)
    worker.step(Raised.PEER_LOST)
    assert worker.offered == (before, "of the boundary")
    assert worker.participant.committed == (before if synced else Version(RoundId(1, 1), 1))


# ---- the seal ---------------------------------------------------------------------------------------------------

LAST = Version(RoundId(1, 1), 2)
"""The last boundary before a seal breaks,"""
NEXT = Version(RoundId(1, 1), 3)
"""and that of the step that the seal is part of."""


def sealed(clean: bool = True) -> Worker:
    """A worker in whose third step the seal has broken."""
    worker = entered(clean)
    worker.train(commits=1, boundaries=1)
    assert worker.break_seal() == effects.WaitForChange()
    return worker


def test_a_sealed_worker_offers_its_last_boundary_and_the_step_that_it_can_make() -> None:
    worker = sealed()
    assert worker.log[:3] == ["IsClean", "Stopped", "Describe"]
    assert worker.log[3:] == ["say collective_raised", "Digest", "NewestCheckpoint", "say worker_waiting"]
    assert worker.offered == (LAST, "of the boundary")
    assert version_of(worker.message[-1].worker_waiting.sealed) == NEXT


def test_it_makes_the_step_if_the_next_round_continues_from_it() -> None:
    worker = sealed()
    worker.place(version=NEXT)
    assert worker.settle_seal() is SealVerdict.APPLY
    assert worker.boundary() is BoundaryVerdict.STOP
    worker.log.clear()
    assert worker.step(Raised.HOSTS_UPDATED) == effects.Build()
    assert worker.log == ["Forget", "Build"]  # what it has is on offer already
    assert worker.participant.live == NEXT
    assert worker.step(None) == effects.Adapt()
    assert worker.step(None) == effects.Sync()
    assert worker.step(False) == effects.Train()
    assert worker.boundary() is BoundaryVerdict.PASS
    assert worker.participant.live == Version(RoundId(1, 2), 1)
    assert worker.participant.uncommitted == 3  # in three rounds' names


@pytest.mark.parametrize("committed", [False, True])
def test_the_step_that_it_makes_counts_as_one_that_is_not_committed(committed: bool) -> None:
    worker = sealed()
    worker.place(version=NEXT)
    worker.settle_seal()
    worker.participant.passed(committed)
    worker.participant.verdict()
    assert worker.participant.uncommitted == (0 if committed else 2)
    assert worker.participant.committed == (NEXT if committed else Version(RoundId(1, 1), 1))


@pytest.mark.parametrize("version", [LAST, Version(RoundId(1, 1), 7)], ids=["held", "received"])
def test_it_goes_back_if_the_next_round_does_not_continue_from_its_step(version: Version) -> None:
    worker = sealed()
    worker.place(version=version)
    assert worker.settle_seal() is SealVerdict.LEAVE
    worker.log.clear()
    assert worker.step(Raised.PEER_LOST) == effects.Build()
    assert worker.log == ["ReturnToBoundary", "Forget", "Build"]
    assert worker.participant.live == LAST


@pytest.mark.parametrize(
    ("notice", "end"), [({"leave": pb.Leave()}, End.LEFT), ({"skip": pb.Skip(ordinal=1)}, End.SKIPPED)], ids=str
)
def test_a_worker_may_be_sent_away_from_its_seal(notice: dict[str, Any], end: End) -> None:
    worker = sealed()
    worker.take(**notice)
    assert worker.settle_seal() is SealVerdict.LEAVE
    assert worker.step(Raised.PEER_LOST) is end


def test_a_script_that_fails_once_its_step_is_made_has_failed() -> None:
    """It may have caught what led it out of the old round, and gone on: what it counts is not of the next one."""
    worker = sealed()
    worker.place(version=NEXT)
    assert worker.settle_seal() is SealVerdict.APPLY
    assert worker.boundary() is BoundaryVerdict.STOP
    assert worker.boundary() == effects.Complain(Complaint.CALLED_AGAIN)
    assert worker.step(Raised.OWN) is End.FAILED


def test_a_round_with_guests_ends_once_state_is_handed_over() -> None:
    worker = entered()
    worker.train(commits=1, boundaries=1)
    worker.abort()
    assert worker.step(Raised.PEER_LOST) == effects.WaitForChange()
    worker.place(size=3, replica_size=2, version=LAST)
    assert worker.step(None) == effects.Build()
    assert worker.step(None) == effects.Adapt()
    assert worker.step(None) == effects.Sync()
    worker.log.clear()
    assert worker.step(False) == effects.WaitForChange(), "it has not called the training function"
    assert "say worker_waiting" in worker.log
    assert worker.offered[0] == LAST


def test_a_state_that_cannot_return_to_its_last_boundary_offers_no_step() -> None:
    worker = entered(clean=False)
    worker.train(commits=1, boundaries=1)
    assert worker.break_seal() is SealVerdict.LEAVE
    assert worker.step(Raised.PEER_LOST) == effects.WaitForChange()
    assert worker.offered == (Version(RoundId(1, 1), 1), "of the commit")
    assert not worker.message[-1].worker_waiting.HasField("sealed")


def norm_of(worker: Worker) -> float | None:
    """What the worker offers with its version."""
    waiting = worker.message[-1].worker_waiting
    return waiting.gradient_norm if waiting.HasField("gradient_norm") else None


def test_the_norm_of_a_step_is_offered_with_the_version_to_which_the_step_leads() -> None:
    for boundaries, norm in ((2, None), (3, 2.5), (4, None)):
        worker = entered()
        worker.train(boundaries=2)
        worker.participant.clipped(2.5)
        for _ in range(boundaries - 2):
            worker.participant.passed(committed=False)
        worker.step(Raised.PEER_LOST)
        assert worker.offered[0] == Version(RoundId(1, 1), boundaries)
        assert norm_of(worker) == norm


def test_who_makes_a_step_late_or_receives_what_it_led_to_offers_its_norm_as_well() -> None:
    late = sealed()
    late.place(version=NEXT, norm=2.5)
    late.settle_seal()
    late.clean = True
    late.boundary()
    late.step(Raised.HOSTS_UPDATED)
    newcomer = entered()
    newcomer.place(version=NEXT, norm=2.5)
    newcomer.step(None)
    newcomer.step(None)
    for worker, answers in ((late, [None, None, True]), (newcomer, [True])):
        for answer in answers:
            worker.step(answer)
        worker.step(Raised.PEER_LOST)
        assert worker.offered[0] == NEXT
        assert norm_of(worker) == 2.5


@pytest.mark.parametrize("raised", [Raised.RUNTIME_ERROR, Raised.PEER_LOST, None], ids=str)
def test_a_step_whose_boundary_is_not_reached_leads_back_to_the_last_commit(raised: Raised | None) -> None:
    """Between the optimizer's step and the boundary something needs the others, or the function returns."""
    worker = sealed()
    worker.place(version=NEXT)
    worker.settle_seal()
    worker.clean = False
    worker.log.clear()
    assert worker.step(raised) == effects.WaitForChange()
    assert worker.offered == (Version(RoundId(1, 1), 1), "of the commit")
    assert ("say collective_raised" in worker.log) == (raised is not None)
    assert worker.log[-2:] == ["Restore", "Forget"]
    worker.place()
    assert worker.step(None) == effects.Build()


def test_the_scripts_own_error_in_that_step_ends_the_worker() -> None:
    worker = sealed()
    worker.place(version=NEXT)
    worker.settle_seal()
    assert worker.step(Raised.OWN) is End.FAILED


def test_after_the_boundary_of_that_step_no_other_is_passed_in_the_old_round() -> None:
    worker = sealed()
    worker.place(version=NEXT)
    worker.settle_seal()
    assert worker.boundary() is BoundaryVerdict.STOP
    assert worker.boundary() == effects.Complain(Complaint.CALLED_AGAIN)


def test_the_next_round_may_break_before_that_step_is_made() -> None:
    worker = sealed()
    worker.place(version=NEXT)
    worker.settle_seal()
    worker.abort()
    assert worker.boundary() is BoundaryVerdict.STOP
    assert worker.step(Raised.HOSTS_UPDATED) == effects.Build()
    assert worker.step(Raised.PEER_LOST) == effects.WaitForChange()
    assert worker.offered == (NEXT, "of the boundary")


# ---- boundaries -------------------------------------------------------------------------------------------------


def test_the_first_boundary_of_a_round_is_reported() -> None:
    worker = entered()
    worker.train()
    assert [worker.boundary() for _ in range(3)] == [BoundaryVerdict.PASS] * 3
    assert worker.log == ["FirstBoundary"]


def test_the_state_is_compared_at_ever_fewer_boundaries() -> None:
    worker = entered()
    worker.train(size=2)
    compared = []
    for boundary in range(1, 40):
        worker.log.clear()
        assert worker.boundary() is BoundaryVerdict.PASS
        if "CompareState" in worker.log:
            compared.append(boundary)
    assert compared == [2, 4, 8, 16, 32]


def test_a_boundary_waits_for_the_others_and_reports_it() -> None:
    worker = entered()
    worker.train()
    worker.take(hosts_updated=pb.HostsUpdated(round_id=worker.round_id, number=1))
    assert worker.boundary() == effects.WaitForChange(for_verdict=True)


def test_a_boundary_that_stops_and_one_after_it() -> None:
    worker = entered()
    worker.train()
    worker.stop_here()
    assert worker.boundary() is BoundaryVerdict.STOP
    assert [worker.boundary() for _ in range(2)] == [effects.Complain(Complaint.CALLED_AGAIN)] * 2


def test_a_boundary_of_a_broken_round_and_one_after_it() -> None:
    worker = entered()
    worker.train()
    worker.abort()
    assert worker.boundary() is BoundaryVerdict.ABORT
    assert worker.boundary() == effects.Complain(Complaint.CALLED_AGAIN)


def test_a_function_that_swallows_the_interrupt_and_returns() -> None:
    worker = entered()
    worker.train()
    worker.stop_here()
    worker.boundary()
    worker.log.clear()
    assert worker.step(None) == effects.Complain(Complaint.RETURNED)
    assert worker.log == []  # it is not done


def test_a_function_that_swallows_an_abort_and_returns_goes_back() -> None:
    worker = entered()
    worker.train(commits=1)
    worker.abort()
    worker.boundary()
    assert worker.step(None) == effects.WaitForChange()
    assert worker.log[-2:] == ["ReturnToBoundary", "Forget"]


# ---- between two runs -------------------------------------------------------------------------------------------


def test_what_the_script_changes_between_two_runs_is_offered() -> None:
    worker = entered()
    worker.train(commits=1, boundaries=2)
    worker.step(None)
    worker.take(finish=pb.Finish(round_id=worker.round_id))
    assert worker.step(None) is End.FINISHED
    worker.log.clear()
    worker.enter()
    assert worker.log == ["Save", "Keep", "Digest", "NewestCheckpoint", "say worker_waiting"]
    assert worker.offered == (Version(RoundId(1, 1), 3), "of the commit")
    assert worker.message[-1].worker_waiting.ordinal == 2


def test_a_worker_that_has_trained_in_no_round_has_nothing_to_mark() -> None:
    worker = entered()
    worker.take(skip=pb.Skip(ordinal=1))
    assert worker.step(None) is End.SKIPPED
    worker.log.clear()
    worker.enter()
    assert worker.log == ["Digest", "NewestCheckpoint", "say worker_waiting"]
    assert worker.offered[0] == NO_VERSION


# ---- checkpoints ------------------------------------------------------------------------------------------------


def looked(worker: Worker, checkpoint: int) -> None:
    """What the next look for a checkpoint finds."""
    worker.newest = checkpoint


def test_a_worker_that_was_never_synced_looks_for_a_checkpoint_and_a_survivor_does_not() -> None:
    worker = Worker(clean=True)
    looked(worker, 40)
    worker.enter()
    assert worker.message[-1].worker_waiting.checkpoint_steps == 40
    worker.train(boundaries=1)
    worker.abort()
    worker.boundary()
    worker.step(Raised.PEER_LOST)
    assert worker.looks == [True, False]
    assert worker.message[-1].worker_waiting.HasField("checkpoint_steps")


def test_a_state_without_checkpoints_offers_none() -> None:
    assert not entered().message[-1].worker_waiting.HasField("checkpoint_steps")


def test_a_worker_that_waits_looks_again_when_it_is_asked() -> None:
    worker = Worker(clean=True)
    looked(worker, 40)
    worker.enter()
    before = worker.message[-1].worker_waiting
    looked(worker, 70)
    worker.take(find_newest_checkpoint=pb.FindNewestCheckpoint())
    assert worker.step(None) == effects.WaitForChange()
    after = worker.message[-1].worker_waiting
    assert (before.checkpoint_steps, after.checkpoint_steps) == (40, 70)
    assert (after.ordinal, after.version, after.store) == (before.ordinal, before.version, before.store)
    assert worker.step(None) == effects.WaitForChange()
    assert worker.looks == [True, True]


def test_a_member_of_a_round_does_not_look_again() -> None:
    worker = entered()
    worker.train()
    worker.take(find_newest_checkpoint=pb.FindNewestCheckpoint())
    worker.step(Raised.PEER_LOST)
    assert worker.looks == [True, False]
