"""What observers receive of a run, event by event."""

from __future__ import annotations

import pytest

from edriver.driver.observe.event_buffer import ForgottenError
from edriver.model import events
from edriver.model.cause import AgentFault, AgentFaultKind
from edriver.model.hosts import Host, HostSet
from edriver.model.ids import NO_VERSION, RoundId, Version
from edriver.model.mode import Mode
from edriver.model.store_address import StoreAddress
from edriver.text.cause_names import INTERRUPTION_NAMES
from edriver.text.time_spent import seconds_by_kind
from edriver.v1 import agent_pb2, cause_pb2, notification_pb2, pace_pb2, status_pb2
from edriver.wire.conversion import epoch_seconds, round_id_message, round_id_of, span_seconds
from tests.unit.event_story import Story


def words(reported: list[status_pb2.Event]) -> list[str]:
    """Each event in short."""
    return [_words(event) for event in reported]


def _words(event: status_pb2.Event) -> str:
    match event.WhichOneof("kind"):
        case "host":
            return f"host {event.host.name}: {event.host.slots}{', connected' if event.host.connected else ''}"
        case "worker":
            state = status_pb2.WorkerState.Name(event.worker.state).removeprefix("WORKER_STATE_").lower()
            return f"worker {event.worker.worker_id}: {state}"
        case "round":
            reported = event.round
            how = (
                "ended"
                if reported.HasField("end_time")
                else "under way"
                if reported.HasField("first_step_time")
                else "assigned"
            )
            return f"round {reported.round_id.n}: {how}"
        case "interruption":
            return f"interruption: {INTERRUPTION_NAMES[event.interruption.kind]}"
        case "run_ended":
            return f"run: {status_pb2.RunEnd.Name(event.run_ended.end)}"
        case _:
            return event.text


def phases_of(message: status_pb2.RecoveryPhases) -> dict[str, float]:
    return {field.name: span_seconds(span) for field, span in message.ListFields()}


def host_events(reported: list[status_pb2.Event]) -> list[tuple[str, str]]:
    """Of each event of a host, where that stands and what is said."""
    return [
        (status_pb2.HostState.Name(event.host.state).removeprefix("HOST_STATE_").lower(), event.text)
        for event in reported
        if event.HasField("host")
    ]


def test_hosts_that_come_change_and_go_are_told_of() -> None:
    story = Story(np=1)
    assert host_events(story.hosts(a=1, b=1)) == [
        ("starting", "host a was added with 1 slot"),
        ("starting", "host b was added with 1 slot"),
    ]
    story.take(events.AgentConnected("a", 1))
    story.take(events.AgentConnected("b", 2))
    assert host_events(story.hosts(a=2, b=1)) == [("used", "host a has 2 slots now")]
    assert host_events(story.hosts(a=2)) == [("leaving", "host b is no longer named by discovery")]
    over = story.take(events.WorkerExited(2, 0, "", 100.0))
    assert host_events(over) == [("gone", "")]
    assert story.event_history.discovered("b") == 0.0
    assert host_events(story.hosts(a=2, b=1)) == [("starting", "host b was added with 1 slot")]


def test_a_host_that_goes_before_it_has_answered_is_gone_at_once() -> None:
    story = Story(np=1)
    story.hosts(a=1, b=1)
    assert host_events(story.hosts(a=1))[0] == ("gone", "host b is no longer named by discovery")
    assert story.event_history.discovered("b") == 0.0


def test_a_start_in_order() -> None:
    story = Story()
    assert words(story.hosts(a=2)) == ["host a: 2", "waiting: 0 of 2 workers are ready"]
    assert words(story.take(events.AgentConnected("a", 1))) == [
        "host a: 2, connected",
        "worker 1: booting",
        "worker 2: booting",
    ]
    assert words(story.waits(1))[0] == "worker 1: waiting"
    reported = story.waits(2)
    assert words(reported) == ["worker 2: training", "round 1: assigned"]
    first = reported[1].round
    assert reported[1].text == "round 1.1: 2 workers on a"
    assert (first.cause.kind, first.kind) == (cause_pb2.CAUSE_KIND_RUN_BEGAN, status_pb2.ROUND_KIND_START)
    assert [(member.worker_id, member.slot) for member in first.members] == [(1, 0), (2, 1)]
    assert epoch_seconds(first.assign_time) == 104.0
    assert not first.HasField("previous_end_time")
    assert not first.HasField("detect_time")


def test_a_round_is_under_way_when_all_have_made_a_step() -> None:
    story = Story()
    story.begun()
    assert story.steps(1, 1, waiting=102.0, built=104.5, synced=104.5, stepped=106.0) == []
    reported, boot = story.steps(2, 1, waiting=103.0, built=105.0, synced=105.5, stepped=105.9)
    assert words([reported, boot]) == ["round 1: under way", "interruption: boot"]
    assert phases_of(reported.round.phases) == {
        "unnoticed": 0.0,
        "detect": 0.0,
        "abort": 0.0,
        "wait": 4.0,
        "rendezvous": 1.0,
        "sync": 0.5,
        "first_step": 0.5,
    }
    assert [epoch_seconds(member.times.stepped) for member in reported.round.members] == [106.0, 105.9]
    assert boot.interruption.phases == reported.round.phases
    assert (epoch_seconds(boot.interruption.start_time), span_seconds(boot.interruption.duration)) == (100.0, 5.5)
    assert boot.text == ""
    assert story.steps(2, 1) == []


def trained() -> Story:
    """Workers 1 and 2 hold the state of round 1.1 at 104.6 and make steps, until 105.8 as far as they have reported."""
    story = Story()
    story.begun()
    story.steps(1, 1, built=104.2, synced=104.5, stepped=104.9)
    story.steps(2, 1, built=104.2, synced=104.6, stepped=105.0)
    story.says(1, 1, 10, 105.8)
    return story


def test_a_kill_is_an_interruption_with_its_phases() -> None:
    story = trained()
    assert story.spent() == {"booting": 4.6, "training": 1.2}
    story.take(events.WorkerEnding(2, seen=106.3))  # received at 107
    story.take(events.WorkerExited(2, -9, reaped=106.9))
    story.waits(1, Version(RoundId(1, 1), 7))  # at 109
    reported = story.steps(1, 2, stopped=107.2, waiting=108.4, built=109.2, synced=109.5, stepped=109.9)
    assert words(reported)[:2] == ["round 2: under way", "interruption: failure"]
    over = reported[1].interruption
    assert phases_of(over.phases) == {
        "unnoticed": 0.5,
        "detect": 0.7,
        "abort": 1.4,
        "wait": 0.6,
        "rendezvous": 0.2,
        "sync": 0.3,
        "first_step": 0.4,
    }
    assert (epoch_seconds(over.start_time), span_seconds(over.duration)) == (105.8, 3.7)  # all but the first step
    assert (round_id_of(over.round_id), over.size, over.steps_lost, over.failed_rounds) == ((1, 2), 1, 3, 0)
    assert over.cause.kind == cause_pb2.CAUSE_KIND_KILLED
    assert over.cause.text == "worker 2 (rank 1, a:1) was killed by SIGKILL"
    story.says(1, 2, 6, 110.0)
    story.now = 110.6
    assert story.spent() == {"booting": 4.6, "training": 1.2 + 0.25, "recovering": 3.7, "repeating": 0.25}
    assert [event.seq for event in story.event_history.since(0, 100)] == list(
        range(1, story.event_history.last_seq + 1)
    )


def test_a_recovery_of_a_round_that_failed_is_one_with_that_of_the_round_before() -> None:
    story = trained()
    story.take(events.WorkerEnding(2, seen=106.3))
    story.take(events.WorkerExited(2, -9, reaped=106.9))
    story.waits(1, Version(RoundId(1, 1), 10))
    story.take(events.CollectiveRaised(1, RoundId(1, 2), ""))  # at 110
    story.waits(1, Version(RoundId(1, 1), 10))
    reported = story.steps(1, 3, stopped=110.2, waiting=110.8, built=111.2, synced=111.5, stepped=111.9)
    assert words(reported)[:2] == ["round 3: under way", "interruption: failure"]
    over = reported[1].interruption
    assert (epoch_seconds(over.start_time), span_seconds(over.duration), over.failed_rounds) == (105.8, 5.7, 1)
    phases = phases_of(over.phases)
    assert sum(phases.values()) == pytest.approx(5.7 + phases["first_step"])


def test_time_in_which_workers_are_missing_is_waiting() -> None:
    story = Story(min_np=2)
    story.begun()
    for worker in (1, 2):
        story.steps(worker, 1, built=104.2, synced=104.6, stepped=105.0)
    story.says(1, 1, 10, 105.8)
    story.take(events.WorkerEnding(2, seen=106.3))  # at 107
    story.waits(1, Version(RoundId(1, 1), 10))  # at 108, from when on only the other one is missing
    reported = story.take(events.WorkerExited(2, -9, reaped=108.5))
    newcomer = reported[-1].worker.worker_id
    story.now = 141.0
    story.waits(newcomer)  # at 142
    assert story.event_history.rounds[-1].round_id.n == 2
    for worker in (1, newcomer):
        story.steps(worker, 2, built=142.2, synced=142.5, stepped=142.8)
    assert story.spent() == {"booting": 4.6, "training": 1.2, "recovering": 2.7, "waiting": 34.0}


def test_in_restart_mode_it_is_not_known_what_becomes_of_a_rounds_time() -> None:
    story = Story(mode=Mode.RESTART)
    story.begun()  # until 104
    story.take(events.WorkerEnding(2, seen=104.5))  # at 105
    story.take(events.WorkerExited(2, -9, reaped=104.6))
    story.take(events.WorkerExited(1, -15, reaped=106.5))
    reported = story.waits(3) + story.waits(4)  # until 109
    assert "interruption: failure" in words(reported)
    story.now = 112.0
    assert story.spent() == {"booting": 4.0, "unknown": 1.0 + 3.0, "recovering": 3.0, "waiting": 1.0}


def test_the_death_of_a_rounds_only_member_ends_it() -> None:
    story = Story(np=1, mode=Mode.RESTART)
    story.hosts(a=1)
    story.take(events.AgentConnected("a", 1))
    story.waits(1)  # at 103
    reported = story.take(events.WorkerEnding(1, seen=103.5))  # at 104
    reported += story.take(events.WorkerExited(1, -9, reaped=103.6))  # at 105
    (ended,) = [event for event in reported if event.HasField("round")]
    assert (words([ended]), ended.round.abort_kind) == (["round 1: ended"], status_pb2.ROUND_KIND_FAILURE)
    assert ended.cause.kind == cause_pb2.CAUSE_KIND_ENDED
    story.now = 109.0
    reported = story.waits(2)  # at 110
    assert "interruption: failure" in words(reported)
    story.now = 112.0
    spent = story.spent()
    assert sum(spent.values()) == 12.0
    assert spent["unknown"] <= 2.0 + 2.0


def test_how_a_worker_ended_is_known_once_it_is_reaped_which_may_be_in_the_next_round() -> None:
    story = trained()
    story.take(events.WorkerEnding(2, seen=106.3))
    (begun,) = [event.round for event in story.waits(1, Version(RoundId(1, 1), 10)) if event.HasField("round")]
    assert begun.cause.text == "worker 2 (rank 1, a:1) has ended"
    story.take(events.WorkerExited(2, -9, reaped=108.9))
    under_way, over = story.steps(1, 2, stopped=107.2, waiting=107.8, built=109.2, synced=109.5, stepped=109.9)[:2]
    assert [under_way.round.cause.text, over.interruption.cause.text] == [
        "worker 2 (rank 1, a:1) was killed by SIGKILL"
    ] * 2


@pytest.mark.parametrize("peer_first", [False, True], ids=["agent-first", "peer-first"])
def test_a_loss_is_the_next_rounds_cause(peer_first: bool) -> None:
    story = Story()
    story.begun()
    story.steps(1, 1)
    story.steps(2, 1)
    both: list[events.Event] = [events.WorkerEnding(2, seen=105.5), events.CollectiveRaised(1, RoundId(1, 1), "")]
    reported = [event for each in (both[::-1] if peer_first else both) for event in story.take(each)]
    ended = next(event for event in reported if event.WhichOneof("kind") == "round")
    assert (epoch_seconds(ended.round.end_time), len(ended.round.members)) == (107.0, 0)
    expected = cause_pb2.CAUSE_KIND_COLLECTIVE_FAILED if peer_first else cause_pb2.CAUSE_KIND_ENDED
    assert (ended.cause.kind, ended.text.startswith("round 1.1 ended: ")) == (expected, True)
    reported = story.take(events.WorkerExited(2, -9, reaped=105.9)) + story.waits(1, Version(RoundId(1, 1), 7))
    begun = next(event.round for event in reported if event.WhichOneof("kind") == "round")
    assert (begun.round_id.n, begun.kind) == (2, status_pb2.ROUND_KIND_FAILURE)
    assert (epoch_seconds(begun.detect_time), epoch_seconds(begun.previous_end_time)) == (105.5, 107.0)
    known = (
        "a collective of worker 1 (rank 0, a:0) failed"
        if peer_first
        else "worker 2 (rank 1, a:1) was killed by SIGKILL"
    )
    assert begun.cause.text == known


def test_a_death_that_is_seen_after_a_peer_has_ended_the_round_was_noticed_by_the_peer() -> None:
    story = Story()
    story.begun()
    story.steps(1, 1)
    story.steps(2, 1)
    story.take(events.CollectiveRaised(1, RoundId(1, 1), ""))  # at 107
    story.take(events.WorkerEnding(2, seen=107.6))
    story.take(events.WorkerExited(2, -9, reaped=107.9))
    begun = next(event.round for event in story.waits(1, Version(RoundId(1, 1), 7)) if event.HasField("round"))
    assert epoch_seconds(begun.detect_time) == epoch_seconds(begun.previous_end_time) == 107.0


def test_a_resize_and_the_next_call_of_run_are_causes_of_their_own() -> None:
    story = Story()
    story.begun()
    story.waits(story.take(events.HostsObserved(HostSet((Host("a", 3),))))[-1].worker.worker_id)
    reported: list[status_pb2.Event] = []
    for worker in (1, 2):
        reported += story.take(events.BoundaryReached(worker, RoundId(1, 1), 1, 4))
    (ended,) = [event for event in reported if event.WhichOneof("kind") == "round"]
    assert (ended.text, ended.HasField("cause")) == ("", False)
    reported = story.waits(1, Version(RoundId(1, 1), 5)) + story.waits(2, Version(RoundId(1, 1), 5))
    (begun,) = [event.round for event in reported if event.WhichOneof("kind") == "round"]
    assert begun.kind == status_pb2.ROUND_KIND_RESIZE
    for worker in (1, 2, 3):
        story.take(events.WorkerDone(worker, RoundId(1, 2), 9))
    for worker in (1, 2, 3):
        reported = story.take(events.WorkerWaiting(worker, 2, NO_VERSION, StoreAddress("10.0.0.1", 4000 + worker), ""))
    begun = next(event.round for event in reported if event.WhichOneof("kind") == "round")
    assert (begun.round_id.n, begun.kind) == (3, status_pb2.ROUND_KIND_START)


def test_a_loss_after_a_round_was_stopped_for_a_resize_is_told() -> None:
    story = Story()
    story.begun()
    story.waits(story.take(events.HostsObserved(HostSet((Host("a", 3),))))[-1].worker.worker_id)
    for worker in (1, 2):
        story.take(events.BoundaryReached(worker, RoundId(1, 1), 1, 4))
    assert story.event_history.rounds[-1].end_kind == status_pb2.ROUND_KIND_RESIZE
    reported = story.take(events.WorkerEnding(2, seen=109.0))
    assert [event.text for event in reported if event.text] == ["round 1.1 ended: worker 2 (rank 1, a:1) has ended"]
    (ended,) = [event for event in reported if event.HasField("round")]
    assert (ended.round.abort_kind, ended.cause.kind) == (status_pb2.ROUND_KIND_FAILURE, cause_pb2.CAUSE_KIND_ENDED)


def test_a_loss_of_the_only_member_after_its_round_was_stopped_is_told() -> None:
    story = Story(np=1)
    story.hosts(a=1)
    story.take(events.AgentConnected("a", 1))
    story.waits(1)
    story.waits(story.hosts(a=2)[-1].worker.worker_id)
    story.take(events.BoundaryReached(1, RoundId(1, 1), 1, 4))
    assert story.event_history.rounds[-1].end_kind == status_pb2.ROUND_KIND_RESIZE
    story.take(events.WorkerEnding(1, seen=109.0))
    assert story.event_history.rounds[-1].abort_kind == status_pb2.ROUND_KIND_FAILURE
    assert story.event_history.view.count("failures") == story.membership.budgets.failures.total == 1


def test_nobody_waits_for_a_member_whose_training_function_has_returned() -> None:
    story = Story()
    story.begun()
    for worker in (1, 2):
        progress = notification_pb2.WorkerProgress(round_id=round_id_message(RoundId(1, 1)))
        progress.standing.activity = pace_pb2.WORKER_ACTIVITY_COMPUTING
        story.event_history.record_progress(agent_pb2.WorkerHeartbeat(worker_id=worker, progress=progress))

    def waited_for() -> list[int]:
        hold_up = story.event_history.pace.hold_up()
        assert hold_up is not None
        return [each.worker_id for each in hold_up.waited_for]

    assert waited_for() == [1, 2]
    story.take(events.WorkerDone(2, RoundId(1, 1), 9))
    assert waited_for() == [1]


def test_a_strangers_connection_is_a_cause_of_its_own() -> None:
    story = Story()
    story.begun()
    reported = story.take(events.PeerUnproven(2, RoundId(1, 1), "connected from 127.0.0.1:4711"))
    (ended,) = [event.round for event in reported if event.WhichOneof("kind") == "round"]
    assert ended.abort_kind == status_pb2.ROUND_KIND_UNPROVEN
    story.waits(1, Version(RoundId(1, 1), 7))
    reported = story.waits(2, Version(RoundId(1, 1), 7))
    (begun,) = [event.round for event in reported if event.WhichOneof("kind") == "round"]
    assert (begun.round_id.n, begun.kind) == (2, status_pb2.ROUND_KIND_UNPROVEN)


def test_a_worker_that_has_exited() -> None:
    story = Story()
    story.begun()
    reported = story.take(events.WorkerExited(2, -9))
    assert words(reported)[0] == "worker 2: gone"
    assert reported[0].text
    cause = reported[0].cause
    assert (cause.kind, cause.worker_id, cause.rank, cause.code) == (cause_pb2.CAUSE_KIND_KILLED, 2, 1, -9)
    assert story.take(events.WorkerExited(2, -9)) == []


def test_a_host_that_goes_and_one_that_fails() -> None:
    story = Story()
    story.hosts(a=2, b=1)
    reported = story.take(events.AgentLost("b", 2, AgentFault(AgentFaultKind.ENDED, "ssh: no route")))
    assert words(reported)[0] == "host b: 1"
    (obstacle,) = reported[0].host.obstacles
    assert (obstacle.kind, obstacle.detail) == (cause_pb2.CAUSE_KIND_HOST_UNUSED, "ssh: no route")
    assert (reported[0].cause.kind, reported[0].cause.detail) == (cause_pb2.CAUSE_KIND_HOST_UNUSED, "ssh: no route")
    assert words(story.hosts(a=1))[:2] == ["host a: 1", "host b: 0"]
    assert story.hosts(a=1) == []


def test_the_end() -> None:
    story = Story()
    story.begun()
    reported = story.take(events.StopRequested("the driver received SIGINT"))
    assert words(reported) == ["round 1: ended", "interruption: boot", "run: RUN_END_STOPPED"]
    assert (reported[-1].text, reported[-1].cause.kind) == ("the driver received SIGINT", cause_pb2.CAUSE_KIND_STOPPED)
    assert (reported[0].round.HasField("end_kind"), reported[-1].run_ended.failures) == (False, 0)
    assert story.event_history.over
    ended = reported[-1].run_ended
    assert seconds_by_kind(ended.time_spent)["booting"] == 5.0
    assert (ended.time_spent.HasField("goodput"), ended.HasField("progress")) == (False, False)
    assert ended.recoveries == status_pb2.RecoverySummary()


def test_the_end_tells_of_the_whole_run() -> None:
    story = trained()
    story.take(events.WorkerExited(2, -9, reaped=106.4))  # at 107
    story.waits(1, Version(RoundId(1, 1), 10))
    story.steps(1, 2, stopped=107.2, waiting=107.8, built=108.2, synced=108.5, stepped=109.0)
    story.says(1, 2, 5, 108.9)
    (*_, last) = story.take(events.StopRequested("the driver received SIGINT"))  # at 110
    ended = last.run_ended
    assert seconds_by_kind(ended.time_spent) == {
        "training": pytest.approx(1.6),
        "repeating": 0.0,
        "recovering": pytest.approx(2.7),
        "waiting": 0.0,
        "stalled": 0.0,
        "booting": pytest.approx(4.6),
        "ending": pytest.approx(1.1),
    }
    assert ended.time_spent.goodput == pytest.approx(1.6 / 10)
    assert epoch_seconds(ended.time_spent.until) == 110.0
    assert (ended.progress.steps, ended.progress.time_spent) == (15, ended.time_spent)
    assert (ended.recoveries.count, span_seconds(ended.recoveries.median)) == (1, 2.7)
    assert (ended.failures, ended.preemptions, ended.resizes, ended.unproven) == (1, 0, 0, 0)
    story.now = 500.0
    assert story.event_history.ledger.time_spent(story.now) == ended.time_spent


def test_numbers_have_no_gaps_and_what_is_asked_for_comes() -> None:
    story = Story()
    story.begun()
    event_history = story.event_history
    assert [event.seq for event in event_history.since(0, 100)] == list(range(1, event_history.last_seq + 1))
    assert [event.seq for event in event_history.since(3, 2)] == [4, 5]
    assert event_history.since(event_history.last_seq, 10) == []
    with pytest.raises(ForgottenError, match=f"there is no event {event_history.last_seq + 1} yet"):
        event_history.since(event_history.last_seq + 1, 1)


def test_what_is_long_ago_is_forgotten() -> None:
    story = Story(limit=1000)
    story.begun()
    for n in range(50):
        story.hosts(a=2, **{f"h{n}": 1})
    event_history = story.event_history
    with pytest.raises(ForgottenError, match=r"the events before \d+ are no longer kept: call GetRun"):
        event_history.since(0, 10)
    assert event_history.since(event_history.last_seq - 1, 10)[0].seq == event_history.last_seq
