"""Messages to events and orders to messages: nothing is lost on the way, and nothing that is valid ends the core."""

from __future__ import annotations

import math

from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from hypothesis import given
from hypothesis import strategies as st

from edriver.driver.core.membership import Membership
from edriver.driver.core.selection import plan_round
from edriver.driver.observe.cause_text import cause_text
from edriver.model import events, limits
from edriver.model.hosts import Host, HostSet
from edriver.model.ids import NO_VERSION, RoundId, Version
from edriver.model.limits import OutOfBoundsError
from edriver.model.mode import Mode
from edriver.model.plan import Candidate, RoundPlan
from edriver.model.settings import Settings
from edriver.model.store_address import StoreAddress
from edriver.v1 import agent_pb2, control_pb2, notification_pb2, rendezvous_pb2, status_pb2
from edriver.wire import message_limits
from edriver.wire.assignments import RANK_FIELDS, assignment_notices, assignments_by_host, bits_of, ranks_in
from edriver.wire.conversion import duration, epoch_seconds, span_seconds, timestamp, version_message
from edriver.wire.orders import orders_of
from edriver.wire.reports import event_of_report
from edriver.worker.rounds.participant import Participant, Stage
from tests.fuzz.strategies import NUMBERS, VERSIONS, check_sentence, messages
from tests.sim.scanning import check_indexes

FILES = (agent_pb2, control_pb2, notification_pb2, rendezvous_pb2, status_pb2)
REQUESTS = [
    GetMessageClass(method.input_type)
    for file in FILES
    for service in file.DESCRIPTOR.services_by_name.values()
    for method in service.methods
]
"""Every message that a server of ours takes."""

STORES = st.builds(StoreAddress, st.text(max_size=8), st.integers(0, 65535))


# ---- limits ---------------------------------------------------------------------------------------------------


@given(st.sampled_from(REQUESTS).flatmap(messages))
def test_a_message_is_within_its_limits_or_refused_by_one_sentence(message: Message) -> None:
    try:
        message_limits.check(message)
    except OutOfBoundsError as error:
        check_sentence(str(error), 500)
        return
    once = message.SerializeToString(deterministic=True)
    message_limits.check(message)
    assert message.SerializeToString(deterministic=True) == once, "what is within its limits is changed"
    assert type(message).FromString(once) == message or _has_nan(once)


def _has_nan(data: bytes) -> bool:
    """A script may report a loss that is no number, and no message with one is equal to itself."""
    return b"\x00\x00\x00\x00\x00\x00\xf8" in data


@given(st.text(min_size=1, max_size=50), st.integers(-100, 100) | st.integers(-limits.MAX_TEXT_LENGTH, 10**6))
def test_a_text_that_is_too_long_keeps_both_ends(part: str, over: int) -> None:
    length = limits.MAX_TEXT_LENGTH + over
    text = (part * length)[:length]
    with_text = notification_pb2.WorkerFailed(traceback=text)
    message_limits.check(with_text)
    kept = with_text.traceback
    assert len(kept) <= limits.MAX_TEXT_LENGTH
    assert kept == text or (text.startswith(kept[:100]) and text.endswith(kept[-100:]))


# ---- times ----------------------------------------------------------------------------------------------------


@given(st.floats(0, 4e9), st.floats(-1e9, 1e9))
def test_times_keep_microseconds(at: float, span: float) -> None:
    assert math.isclose(epoch_seconds(timestamp(at)), at, abs_tol=1e-6)
    assert math.isclose(span_seconds(duration(span)), span, abs_tol=1e-6)


# ---- reports --------------------------------------------------------------------------------------------------


@given(VERSIONS, STORES, st.text(max_size=8), st.text(max_size=8), st.none() | NUMBERS)
def test_an_offer_comes_to_the_core_as_it_was_made(
    offer: Version, store: StoreAddress, digest: str, torn: str, checkpoint: int | None
) -> None:
    participant = Participant()
    participant.enter()
    sent = participant.wait(offer, store, digest, torn, checkpoint).SerializeToString()
    event = event_of_report(7, notification_pb2.Report.FromString(sent))
    assert event == events.WorkerWaiting(7, 1, offer, store, digest, 0, torn, checkpoint)


class Run:
    """A core whose round of three workers on two hosts runs."""

    def __init__(self, mode: Mode) -> None:
        self.now = 0.0
        self.core = Membership(Settings(np=3, min_np=1, max_np=4, mode=mode), now=0.0)
        self.plan: RoundPlan | None = None
        self.give(events.HostsObserved(HostSet((Host("a", 2), Host("b", 2)))))
        self.give(events.AgentConnected("a", 1))
        self.give(events.AgentConnected("b", 2))
        for worker_id in (1, 2, 3):
            self.give(events.WorkerWaiting(worker_id, 1, NO_VERSION, StoreAddress("a", 1), ""))
        self.pass_time(40.0)  # in restart mode it waits for the fourth that boots
        assert self.plan is not None

    def give(self, event: events.Event) -> None:
        """The core takes an event in; all that it orders can be sent."""
        for action in self.core.step(event, self.now):
            if isinstance(action, RoundPlan):
                self.plan = action
            for _, message in orders_of(action, self.core.roster.workers, self.now, lambda: b"secret", cause_text):
                message.SerializeToString()
        check_indexes(self.core)

    def pass_time(self, seconds: float) -> None:
        end = self.now + seconds
        while (deadline := self.core.next_deadline) is not None and deadline <= end:
            self.now = deadline
            self.give(events.Ticked())
        self.now = end


def _in_the_round(report: Message, round_id: RoundId) -> None:
    """Have a report be about a round, where it is about one."""
    kind = report.WhichOneof("kind")
    about = getattr(report, kind) if kind else None
    if about is not None and "round_id" in about.DESCRIPTOR.fields_by_name:
        about.round_id.incarnation, about.round_id.n = round_id


OFFERS = st.builds(
    notification_pb2.WorkerWaiting,
    ordinal=st.just(1) | NUMBERS,
    version=VERSIONS.map(version_message),
    digest=st.sampled_from(["", "a", "b"]),
    checkpoint_steps=st.none() | NUMBERS,
).map(lambda waiting: notification_pb2.Report(worker_waiting=waiting))
FAILURES = st.builds(
    notification_pb2.WorkerFailed, traceback=st.sampled_from(["ValueError", ""]), rejoins=st.booleans()
).map(lambda failed: notification_pb2.Report(worker_failed=failed))
REPORTS = st.lists(
    st.tuples(
        messages(notification_pb2.Report) | OFFERS | FAILURES, st.integers(1, 4), st.booleans(), st.floats(0, 40)
    ),
    max_size=15,
)


@given(REPORTS, st.sampled_from(Mode))
def test_no_sequence_of_valid_reports_ends_the_core(
    reports: list[tuple[Message, int, bool, float]], mode: Mode
) -> None:
    run = Run(mode)
    for report, worker_id, current, later in reports:
        assert isinstance(report, notification_pb2.Report)
        assert run.plan is not None
        if current:
            _in_the_round(report, run.plan.round_id)
        try:
            message_limits.check(report)
        except OutOfBoundsError:
            continue
        event = event_of_report(worker_id, report)
        if event is not None:
            run.give(event)
        run.pass_time(later)


# ---- orders ---------------------------------------------------------------------------------------------------


@given(
    st.lists(st.tuples(st.sampled_from("abc"), VERSIONS | st.just(NO_VERSION), STORES), min_size=1, max_size=9),
    st.builds(RoundId, st.integers(1, 5), st.integers(1, 2**32)),
    st.booleans(),
    st.binary(max_size=32),
)
def test_each_member_learns_its_place(
    offers: list[tuple[str, Version, StoreAddress]], round_id: RoundId, first: bool, secret: bytes
) -> None:
    candidates = [Candidate(n, host, n, version, store) for n, (host, version, store) in enumerate(offers, start=1)]
    plan = plan_round(round_id, 1, candidates, first)
    seats = {seat.worker_id: seat for seat in plan.seats}
    told = set()
    for host, message in assignments_by_host(plan, secret):
        sent = agent_pb2.AssignRound.FromString(message.SerializeToString())
        for member, notice in assignment_notices(sent):
            participant = Participant()
            participant.enter()
            participant.wait(NO_VERSION, StoreAddress("", 0), "")
            assert participant.take(notice) is None
            assert participant.stage is Stage.ASSIGNED
            place, seat = participant.assignment, seats[member.worker_id]
            assert place is not None
            assert host == seat.host
            assert {name: getattr(place, name) for name in RANK_FIELDS} == {
                name: getattr(seat, name) for name in RANK_FIELDS
            }
            assert (place.round_id, place.size, place.store) == (plan.round_id, len(plan.seats), plan.store)
            assert (place.sources, place.receivers, place.secret) == (plan.sources, plan.receivers, secret)
            told.add(member.worker_id)
    assert told == seats.keys()


@given(st.sets(st.integers(0, limits.MAX_TOTAL_SLOTS - 1)))
def test_a_set_of_ranks_keeps_its_ranks(ranks: set[int]) -> None:
    bits = bits_of(sorted(ranks))
    assert ranks_in(bits) == tuple(sorted(ranks))
    assert len(bits) == (max(ranks) // 8 + 1 if ranks else 0)
    assert all(bool(bits[rank // 8] & 1 << rank % 8) for rank in ranks)  # as proto/edriver/v1/rounds.proto says
