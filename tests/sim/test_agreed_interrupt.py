"""The agreed interrupt, searched exhaustively: every order in which notices, reports, collectives and boundaries of two
and three ranks can happen, with the real Participant and the real Interrupt.

What must hold: no rank passes the agreed boundary, no rank waits for ever, and in the end either all have stopped at
the same boundary or all are done.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from edriver.driver.core.round import Interrupt
from edriver.model.ids import RoundId
from edriver.v1 import notification_pb2 as pb
from edriver.v1 import rounds_pb2
from edriver.worker.rounds.participant import BoundaryVerdict, Participant, Stage

ROUND = rounds_pb2.RoundId(incarnation=1, n=1)

COMPUTING, IN_COLLECTIVE, COUNTED, AT_BOUNDARY, STOPPED, DONE = range(6)


@dataclass(frozen=True)
class Rank:
    """A rank's position: where its training thread is, its participant's fields, and the two streams."""

    at: int
    step: int
    fields: tuple[tuple[str, Any], ...]
    down: tuple[bytes, ...] = ()
    up: tuple[bytes, ...] = ()
    owed: bytes = b""

    def participant(self) -> Participant:
        """The real Participant, set to this position."""
        participant = Participant.__new__(Participant)
        participant.__dict__.update(self.fields)
        return participant


@dataclass(frozen=True)
class Position:
    """A position of the whole round."""

    ranks: tuple[Rank, ...]
    number: int = 0
    reports: tuple[tuple[int, int], ...] | None = None  # of the interrupt under way
    stop_at: int | None = None
    done: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True)
class Rules:
    """The protocol's rules, and wrong variants of them.

    Attributes:
        steps: boundaries that each rank passes before it is done.
        interrupts: how many interrupts the driver may start.
        report_at_boundary: the training thread reports at its next boundary, not the notification thread at once.
        agree: which boundary the reports lead to.
        wait: whether a rank that has reported waits for the verdict at its next boundary.
        done_counts: whether a done rank's count stands for its report.
    """

    steps: int
    interrupts: int
    report_at_boundary: bool = False
    agree: Callable[[Interrupt], int] = Interrupt.agree
    wait: bool = True
    done_counts: bool = True


def frozen(participant: Participant) -> tuple[tuple[str, Any], ...]:
    return tuple(sorted(participant.__dict__.items()))


def start(ranks: int) -> Position:
    participant = Participant()
    participant.stage = Stage.ASSIGNED
    participant.round_id = RoundId(1, 1)
    return Position(tuple(Rank(COMPUTING, 1, frozen(participant)) for _ in range(ranks)))


def with_rank(position: Position, index: int, rank: Rank) -> Position:
    ranks = (*position.ranks[:index], rank, *position.ranks[index + 1 :])
    return Position(ranks, position.number, position.reports, position.stop_at, position.done)


def successors(position: Position, rules: Rules) -> Iterator[Position]:
    for index, rank in enumerate(position.ranks):
        if moved := move_training(position, index, rank, rules):
            yield with_rank(position, index, moved)
        if rank.down:
            yield with_rank(position, index, take_notice(rank, rules))
        if rank.up:
            yield hear(position, index, rank, rules)
    yield from drive(position, rules)


def move_training(position: Position, index: int, rank: Rank, rules: Rules) -> Rank | None:
    """The training thread's next step, if it can take one."""
    participant = rank.participant()
    at, step, up, owed = rank.at, rank.step, rank.up, rank.owed
    if at == COMPUTING:
        at = IN_COLLECTIVE
    elif at == IN_COLLECTIVE:
        # It completes here once all ranks have entered it, wherever the others are by now.
        if not all(r.step > step or (r.step == step and r.at != COMPUTING) for r in position.ranks):
            return None
        participant.boundaries += 1  # the first half of `passed`; the second is whether there is news
        at = COUNTED
    elif at == COUNTED:
        if rules.report_at_boundary and owed:
            up, owed = (*up, with_count(owed, participant.boundaries)), b""
        at = AT_BOUNDARY if participant.news != participant.news_seen else next_place(rank, rules)
        step += at == COMPUTING
    elif at == AT_BOUNDARY:
        verdict = participant.verdict()
        assert verdict is not BoundaryVerdict.SWALLOWED, "passed an agreed boundary"
        if verdict is BoundaryVerdict.WAIT and rules.wait:
            return None
        at = STOPPED if verdict is BoundaryVerdict.STOP else next_place(rank, rules)
        step += at == COMPUTING
    else:
        return None
    if at == DONE:
        up = (*up, participant.done().SerializeToString())
    return Rank(at, step, frozen(participant), rank.down, up, owed)


def next_place(rank: Rank, rules: Rules) -> int:
    return DONE if rank.step == rules.steps else COMPUTING


def take_notice(rank: Rank, rules: Rules) -> Rank:
    """The notification thread."""
    participant = rank.participant()
    answer = participant.take(pb.Notice.FromString(rank.down[0]))
    up, owed = rank.up, rank.owed
    if answer is not None and rules.report_at_boundary and rank.at != DONE:
        owed = answer.SerializeToString()
    elif answer is not None and (rules.done_counts or rank.at != DONE):
        up = (*up, answer.SerializeToString())
    return Rank(rank.at, rank.step, frozen(participant), rank.down[1:], up, owed)


def with_count(report: bytes, boundaries: int) -> bytes:
    message = pb.Report.FromString(report)
    message.boundary_reached.boundaries = boundaries
    return message.SerializeToString()


def hear(position: Position, index: int, rank: Rank, rules: Rules) -> Position:
    """The driver receives a report."""
    report = pb.Report.FromString(rank.up[0])
    rest = with_rank(position, index, Rank(rank.at, rank.step, rank.fields, rank.down, rank.up[1:], rank.owed))
    reports, done = rest.reports, rest.done
    if report.HasField("worker_done"):
        done = (*done, (index, report.worker_done.boundaries))
        if reports is not None and rules.done_counts:
            reports = tuple(sorted({**dict(reports), index: report.worker_done.boundaries}.items()))
    elif reports is not None and report.boundary_reached.number == rest.number:
        reports = tuple(sorted({**dict(reports), index: report.boundary_reached.boundaries}.items()))
    return Position(rest.ranks, rest.number, reports, rest.stop_at, done)


def drive(position: Position, rules: Rules) -> Iterator[Position]:
    """The driver's own steps: start an interrupt, and decide one that all have answered, either way."""
    all_ranks = set(range(len(position.ranks)))
    if position.stop_at is not None or len(position.done) == len(all_ranks):
        return
    number = position.number
    if position.reports is None and number < rules.interrupts:
        notice = pb.Notice(hosts_updated=pb.HostsUpdated(round_id=ROUND, number=number + 1))
        reports = tuple(sorted(position.done)) if rules.done_counts else ()
        yield send(position, notice, number + 1, reports, None)
    elif position.reports is not None:
        interrupt = Interrupt(number, 0.0, set(all_ranks), dict(position.reports))
        if interrupt.answered(all_ranks):
            go_on = pb.Notice(go_on=pb.GoOn(round_id=ROUND, number=number))
            yield send(position, go_on, number, None, None)
            boundary = rules.agree(interrupt)
            stop = pb.Notice(stop_at=pb.StopAt(round_id=ROUND, number=number, boundary=boundary))
            yield send(position, stop, number, position.reports, boundary)


def send(
    position: Position,
    notice: pb.Notice,
    number: int,
    reports: tuple[tuple[int, int], ...] | None,
    stop_at: int | None,
) -> Position:
    data = notice.SerializeToString()
    ranks = tuple(Rank(r.at, r.step, r.fields, (*r.down, data), r.up, r.owed) for r in position.ranks)
    return Position(ranks, number, reports, stop_at, position.done)


def search(ranks: int, rules: Rules) -> tuple[int, int]:
    """Visit every position; returns how many there are, and how many of them are ends.

    Raises:
        AssertionError: a rank passes an agreed boundary, or waits for ever.
    """
    first = start(ranks)
    known, frontier, ends = {first}, [first], 0
    while frontier:
        position = frontier.pop()
        following = list(successors(position, rules))
        if not following:
            ends += 1
            where = {(r.at, r.participant().boundaries) for r in position.ranks}
            assert len(where) == 1, f"not all at the same place: {where}"
            assert where.pop()[0] in (STOPPED, DONE), "a rank waits for ever"
        for successor in following:
            if successor not in known:
                known.add(successor)
                frontier.append(successor)
    return len(known), ends


@pytest.mark.parametrize(
    ("ranks", "steps", "interrupts"),
    [
        pytest.param(2, 3, 2, id="2 ranks, 3 boundaries, 2 interrupts"),
        pytest.param(2, 4, 1, id="2 ranks, 4 boundaries, 1 interrupt"),
        pytest.param(3, 2, 1, id="3 ranks, 2 boundaries, 1 interrupt"),
    ],
)
def test_every_order_ends_well(ranks: int, steps: int, interrupts: int) -> None:
    positions, ends = search(ranks, Rules(steps, interrupts))
    assert positions > 500
    assert ends > 1


@pytest.mark.parametrize(
    "rules",
    [
        pytest.param(Rules(3, 1, report_at_boundary=True), id="the training thread reports"),
        pytest.param(Rules(3, 1, agree=lambda i: max(i.reports.values())), id="B is the highest report"),
        pytest.param(Rules(3, 1, agree=lambda i: min(i.reports.values()) + 1), id="B follows the lowest report"),
        pytest.param(Rules(3, 1, wait=False), id="ranks do not wait for the verdict"),
        pytest.param(Rules(2, 1, done_counts=False), id="done is no report"),
    ],
)
def test_wrong_rules_are_found_out(rules: Rules) -> None:
    with pytest.raises(AssertionError):
        search(2, rules)
