"""The seal of sharded training, searched exhaustively: every order in which the collectives and losses of two and three
replicas can happen, every moment for the decision of continuation.py, and the rounds that follow from it.

A member's place in a step is the last operation that it has begun. Between two collectives it is still at the first
one: nobody can tell the difference before it enters the second. A collective completes for a member once all of its
group have entered it, even if some have died since or have left the round by an error. It may also raise, for any of
the members that are in it. A loss is a connection that is cut, or a kill. After one, every member may raise at any
time: before the seal, in it and after it. One that has raised does nothing before the decision, so it looks like one
that has not moved since. Hence all raise and report at the decision, in no order, and any situation after a loss may be
the one in which they do. Of a kill the driver learns before its decision, or after it, if the member had reported.

The parameters of a position are the steps whose gradients have been applied to it, (1, 2, 3, ...) in a run without
losses; -n stands for step n with gradients that were not fully reduced. Not searched is what a script does between the
optimizer's step and its boundary: the seal does not cover it.

What must hold: no step is lost that a survivor has applied; there is a version if, and only if, every position has a
survivor; all members of the next round hold it, with the parameters of a run without losses; no member waits for ever.
With a seal, survivors never receive.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import Enum, StrEnum, auto
from typing import NamedTuple

import pytest

from edriver.driver.core.continuation import Continuation, continue_from
from edriver.model.ids import NO_VERSION, RoundId, Version

BEGINNING = Version(RoundId(1, 1), 0)

LIVING, DEAD, LOST_UNNOTICED = range(3)
"""What a member is. LOST_UNNOTICED: it is dead, and the driver has its report and does not know better."""


class Offer(NamedTuple):
    """What a survivor says of itself: see continuation.ShardOffer."""

    position: int
    version: Version
    sealed: Version | None = None


class Way(StrEnum):
    """How a member gets to the version that its round continues from."""

    HOLD = "hold"
    """It holds that version, and discards what it has computed since, kept gradients included."""

    APPLY = "apply"
    """It makes the optimizer's step with the gradients that it has kept."""

    RECEIVE = "receive"
    """It cannot get there, and receives the state like a newcomer."""


def way_to(version: Version, offer: Offer) -> Way:
    if offer.version == version:
        return Way.HOLD
    return Way.APPLY if offer.sealed == version else Way.RECEIVE


class Over(Enum):
    """The members with which a member has a collective."""

    REPLICA = auto()
    POSITION = auto()
    WORLD = auto()


@dataclass(frozen=True)
class Operation:
    """An operation of a training step.

    Attributes:
        over: the members of the collective; None: it is not a collective.
        reduces: whether gradients are incomplete without it.
        seals: whether members that have begun it are sealed.
        steps: whether it is the optimizer's step.
        waits: whether the next operation begins only when it has completed.
    """

    over: Over | None = None
    reduces: bool = False
    seals: bool = False
    steps: bool = False
    waits: bool = True


ALL_GATHER = Operation(Over.REPLICA)
REDUCE_SCATTER = Operation(Over.REPLICA, reduces=True)
ALL_REDUCE = Operation(Over.POSITION, reduces=True)
CLIP = Operation(Over.REPLICA, reduces=True)  # torch's clip_grad_norm_ reduces over the mesh's dimension of shards only
CLIP_OVER_WORLD = Operation(Over.WORLD, reduces=True)
SEAL = Operation(Over.WORLD, seals=True)
STEP = Operation(steps=True)
METRIC = Operation(Over.WORLD)

BACKWARD = (ALL_GATHER, REDUCE_SCATTER, ALL_REDUCE)
HSDP = (*BACKWARD, SEAL, STEP)
CLIPPED = (*BACKWARD, CLIP, SEAL, STEP)
SEALED_BY_CLIPPING = (*BACKWARD, replace(CLIP_OVER_WORLD, seals=True), STEP)
DDP = (ALL_REDUCE, SEAL, STEP, METRIC)
UNSEALED_DDP = (ALL_REDUCE, STEP, METRIC)


class Member(NamedTuple):
    """A member of a round.

    Attributes:
        status: LIVING, DEAD or LOST_UNNOTICED.
        way: how it gets to the round's version (a Way); empty once it has got there.
        boundaries: the number of boundaries passed in this round.
        place: the number of operations begun since.
        version: the version that it holds; NO_VERSION: it is a newcomer that has not received yet.
        kept: the version that it reaches with the gradients that it has kept; NO_VERSION: it has kept none.
        parameters: see the module's text.
    """

    status: int = LIVING
    way: str = ""
    boundaries: int = 0
    place: int = 0
    version: Version = NO_VERSION
    kept: Version = NO_VERSION
    parameters: tuple[int, ...] = ()


class Situation(NamedTuple):
    """A situation of the whole run.

    Attributes:
        members: the members of its round, by replica and position.
        losses: the number of losses that may still come.
        number: the number of the round.
        version: the version that the round continues from.
        steps: the number of steps that have led to that version.
        norm: whether the round's plan has the norm of the gradients of the last of these steps.
        broken: whether collectives of the round may raise.
    """

    members: tuple[tuple[Member, ...], ...]
    losses: int
    number: int = 1
    version: Version = BEGINNING
    steps: int = 0
    norm: bool = False
    broken: bool = False


@dataclass(frozen=True)
class Rules:
    """The protocol's rules, and wrong variants of them.

    Attributes:
        program: the operations of a step.
        steps: the number of steps after which a member is done.
        decide: what the next round continues from.
        offer: what a survivor says of itself.
        all_report: whether the driver waits for the reports of all survivors.
        keep_gradients: whether sealed members keep their gradients until the decision.
        keep_name: whether members call the version that they hold by its old name until they pass a boundary, rather
            than by a name of the new round.
        step_first: whether sealed members make their step before they send their state.
        newcomers_step: whether members that receive make the step as well.
        norm_in_plan: whether the plan tells sealed members the norm of the gradients, if clipping was the seal.
    """

    program: tuple[Operation, ...] = HSDP
    steps: int = 1
    decide: Callable[[Collection[Offer], int], Continuation] = continue_from
    offer: Callable[[Offer, Member], Offer] = lambda offer, member: offer
    all_report: bool = True
    keep_gradients: bool = True
    keep_name: bool = True
    step_first: bool = True
    newcomers_step: bool = False
    norm_in_plan: bool = True


def start(replicas: int, positions: int, losses: int) -> Situation:
    return Situation(((Member(version=BEGINNING),) * positions,) * replicas, losses)


def with_member(situation: Situation, replica: int, position: int, member: Member) -> Situation:
    rows = situation.members
    row = (*rows[replica][:position], member, *rows[replica][position + 1 :])
    return situation._replace(members=(*rows[:replica], row, *rows[replica + 1 :]))


def in_order(situation: Situation) -> Situation:
    """The one that stands for all situations that differ only in the order of replicas and positions."""
    orders = itertools.permutations(zip(*situation.members, strict=True))
    return situation._replace(members=min(tuple(sorted(zip(*columns, strict=True))) for columns in orders))


def group(situation: Situation, replica: int, position: int, over: Over) -> Sequence[Member]:
    if over is Over.REPLICA:
        return situation.members[replica]
    if over is Over.POSITION:
        return [row[position] for row in situation.members]
    return [member for row in situation.members for member in row]


def successors(situation: Situation, rules: Rules) -> Iterator[Situation]:
    after_loss = situation._replace(losses=situation.losses - 1, broken=True)
    for replica, row in enumerate(situation.members):
        for position, member in enumerate(row):
            if member.status != LIVING:
                continue
            if moved := move_training(situation, replica, position, rules):
                yield with_member(situation, replica, position, moved)
            if situation.losses:
                yield with_member(after_loss, replica, position, member._replace(status=DEAD))
                if situation.broken:  # so it may have reported
                    yield with_member(after_loss, replica, position, member._replace(status=LOST_UNNOTICED))
    if situation.broken:
        for seats in reports(situation, rules):
            yield from drive(situation, seats, rules)
    elif situation.losses:
        yield after_loss  # a connection is cut


def move_training(situation: Situation, replica: int, position: int, rules: Rules) -> Member | None:
    """The training thread's next step, if it can take one."""
    member = situation.members[replica][position]
    if member.way:
        return get_ready(situation, member, position, rules)
    if member.place == 0 and len(member.parameters) == rules.steps:
        return None
    if member.place > 0 and (operation := rules.program[member.place - 1]).over and operation.waits:
        here = (member.boundaries, member.place)
        for other in group(situation, replica, position, operation.over):
            if other.way or (other.boundaries, other.place) < here:
                return None
    if member.place == len(rules.program):
        return member._replace(boundaries=member.boundaries + 1, place=0)
    operation = rules.program[member.place]
    member = member._replace(place=member.place + 1)
    following = Version(RoundId(1, situation.number), member.boundaries + 1)
    if operation.steps:
        return make_step(member, following)
    return member._replace(kept=following) if operation.seals else member


def make_step(member: Member, version: Version, complete: bool = True) -> Member:
    """The optimizer's step, with complete gradients or others."""
    step = len(member.parameters) + 1
    parameters = (*member.parameters, step if complete else -step)
    return member._replace(version=version, kept=NO_VERSION, parameters=parameters)


def get_ready(situation: Situation, member: Member, position: int, rules: Rules) -> Member | None:
    """Get to the version that the round continues from, if that is possible yet."""
    if member.way == Way.APPLY and rules.keep_gradients:
        member = make_step(member, situation.version, can_step_alone(situation, rules))
    elif member.way == Way.RECEIVE:
        column = group(situation, 0, position, Over.POSITION)
        sources = [m for m in column if not m.way or (m.way != Way.RECEIVE and not rules.step_first)]
        if not sources:
            return None
        member = make_step(sources[0], situation.version) if rules.newcomers_step else sources[0]
    assert member.parameters == tuple(range(1, situation.steps + 1)), "not the parameters of a run without losses"
    version = situation.version if rules.keep_name else Version(RoundId(1, situation.number), 0)
    return Member(version=version, parameters=member.parameters)


def can_step_alone(situation: Situation, rules: Rules) -> bool:
    """Whether a sealed member has complete gradients: it has left whatever it has begun before the seal."""
    place = next(place for place, operation in enumerate(rules.program) if operation.seals)
    missing = [operation for operation in rules.program[place:] if operation.reduces]
    return not missing or (missing == [rules.program[place]] and situation.norm)


def reports(situation: Situation, rules: Rules) -> Iterator[list[tuple[int, Member]]]:
    """The members that have reported, with their positions, when the driver decides."""
    members = [(position, member) for row in situation.members for position, member in enumerate(row)]
    reported = [(p, m) for p, m in members if m.status != DEAD and m.version != NO_VERSION]
    yield reported
    for number in range(len(reported)) if not rules.all_report else ():
        yield from map(list, itertools.combinations(reported, number))


def drive(situation: Situation, heard: list[tuple[int, Member]], rules: Rules) -> Iterator[Situation]:
    """The driver's decision, and the rounds that may follow: filled up with newcomers, or of survivors alone."""
    positions = len(situation.members[0])
    empty = set(range(positions)) - {position for position, _ in heard}
    offers = [offer(*seat, rules) for seat in heard]
    found = rules.decide(offers, positions)
    if found.version is None:
        assert set(found.lost) == empty, "no version, though every position has a survivor"
        return
    assert not empty, "a version, though a position has no survivor"
    made = [len(m.parameters) + (m.kept == found.version) for _, m in heard if found.version in (m.version, m.kept)]
    steps = max(made, default=0)
    living = (m for m in group(situation, 0, 0, Over.WORLD) if m.status == LIVING)
    assert all(len(member.parameters) <= steps for member in living), "a step is lost"
    columns: list[list[Member]] = [[] for _ in range(positions)]
    for (position, member), offered in zip(heard, offers, strict=True):
        status, way = LIVING if member.status == LIVING else DEAD, way_to(found.version, offered)
        columns[position].append(member._replace(status=status, way=way, boundaries=0, place=0))
    for column in columns:
        column.sort(key=lambda member: member.way == Way.RECEIVE)
    norm = rules.norm_in_plan and any(member.version == found.version for _, member in heard)
    for replicas in {len(situation.members), min(map(len, columns))}:
        seats = [(column + [Member(way=Way.RECEIVE)] * replicas)[:replicas] for column in columns]
        broken = any(member.status == DEAD for column in seats for member in column)
        rows = tuple(zip(*seats, strict=True))
        yield Situation(rows, situation.losses, situation.number + 1, found.version, steps, norm, broken)


def offer(position: int, member: Member, rules: Rules) -> Offer:
    sealed = None if member.kept == NO_VERSION else member.kept
    return rules.offer(Offer(position, member.version, sealed), member)


def is_end(situation: Situation, rules: Rules) -> bool:
    """Whether all members are done, or a position has lost its last survivor."""
    everyone = group(situation, 0, 0, Over.WORLD)
    if all(m.status == LIVING and m.place == 0 and len(m.parameters) == rules.steps for m in everyone):
        return True
    columns = zip(*situation.members, strict=True)
    return any(all(m.status == DEAD or m.version == NO_VERSION for m in column) for column in columns)


class Found(NamedTuple):
    """What a search has found.

    Attributes:
        situations: the number of situations.
        ends: how many of them are ends.
        wrong: what does not hold.
        survivors_receive: whether there is a round in which a survivor receives.
    """

    situations: int
    ends: int
    wrong: set[str]
    survivors_receive: bool


def search(replicas: int, positions: int, losses: int, rules: Rules) -> Found:
    """Visit every situation; those that follow from something wrong are left out."""
    first = start(replicas, positions, losses)
    known, frontier, ends, wrong = {first}, deque([first]), 0, set[str]()
    while frontier:
        situation = frontier.popleft()
        following = set[Situation]()
        try:
            for successor in successors(situation, rules):
                following.add(in_order(successor))
            if not following:
                ends += 1
                assert is_end(situation, rules), "a member waits for ever"
        except AssertionError as error:
            wrong.add(str(error).partition("\n")[0])
        frontier.extend(following - known)
        known |= following
    receivers = (m for s in known for row in s.members for m in row if m.way == Way.RECEIVE)
    return Found(len(known), ends, wrong, any(m.version != NO_VERSION for m in receivers))


@pytest.mark.parametrize(
    ("replicas", "positions", "losses", "rules"),
    [
        pytest.param(2, 2, 2, Rules(steps=2), id="2 x 2, 2 losses in 2 steps"),
        pytest.param(2, 2, 3, Rules(), id="2 x 2, 3 losses"),
        pytest.param(3, 2, 2, Rules(), id="3 x 2, 2 losses"),
        pytest.param(2, 2, 2, Rules(CLIPPED), id="2 x 2, 2 losses, clipping"),
        pytest.param(2, 2, 2, Rules(SEALED_BY_CLIPPING), id="2 x 2, 2 losses, clipping is the seal"),
        pytest.param(2, 1, 3, Rules(DDP, steps=2), id="2 x 1, 3 losses in 2 steps, a collective after the step"),
        pytest.param(3, 1, 2, Rules(DDP, steps=2), id="3 x 1, 2 losses in 2 steps, a collective after the step"),
    ],
)
def test_every_order_ends_well(replicas: int, positions: int, losses: int, rules: Rules) -> None:
    found = search(replicas, positions, losses, rules)
    assert found.situations > 500
    assert found.ends > 1
    assert not found.wrong
    assert not found.survivors_receive


def highest_of_anyone(offers: Collection[Offer], positions: int) -> Continuation:
    best = max(version for offer in offers for version in (offer.version, offer.sealed) if version)
    return Continuation(best)


def highest_of_positions(offers: Collection[Offer], positions: int) -> Continuation:
    """The highest that every position can reach, even if nobody holds it."""
    offered = [{v for o in offers if o.position == p for v in (o.version, o.sealed) if v} for p in range(positions)]
    if not (common := set.intersection(*offered)):
        return continue_from(offers, positions)
    return Continuation(max(common))


def lowest(offers: Collection[Offer], positions: int) -> Continuation:
    if continue_from(offers, positions).version is None:
        return continue_from(offers, positions)
    worst = min(offer.version for offer in offers)
    return Continuation(worst)


def following_only(offer: Offer, member: Member) -> Offer:
    """A sealed member offers the version that follows, and not the one that it holds."""
    return offer if offer.sealed is None else offer._replace(version=offer.sealed, sealed=None)


def held_only(offer: Offer, member: Member) -> Offer:
    """A sealed member offers the version that it holds, and not the one that follows."""
    return offer._replace(sealed=None)


def last_boundary(offer: Offer, member: Member) -> Offer:
    """A member that has left the seal offers its last boundary until it passes the next one."""
    if member.place <= HSDP.index(SEAL) + 1:
        return offer
    return offer._replace(version=offer.version._replace(boundaries=member.boundaries))


def last_commit(offer: Offer, member: Member) -> Offer:
    """A member of UNSEALED_DDP that has made its step is torn until its boundary."""
    return offer._replace(version=BEGINNING) if member.place > UNSEALED_DDP.index(STEP) else offer


NO_COMMON = "no version, though every position has a survivor"
LOST = "a step is lost"
WRONG = "not the parameters of a run without losses"
WAITS = "a member waits for ever"


@pytest.mark.parametrize(
    ("rules", "losses", "message"),
    [
        pytest.param(Rules((*BACKWARD, STEP)), 1, NO_COMMON, id="no seal"),
        pytest.param(Rules((*BACKWARD, CLIP, STEP)), 1, NO_COMMON, id="clipping, no seal"),
        pytest.param(Rules((*BACKWARD, CLIP_OVER_WORLD, STEP)), 2, NO_COMMON, id="clipping over the world, no seal"),
        pytest.param(
            Rules((*BACKWARD, replace(SEAL, over=Over.REPLICA), STEP)), 2, NO_COMMON, id="the seal is over a replica"
        ),
        pytest.param(
            Rules((*BACKWARD, replace(SEAL, over=Over.POSITION), STEP)), 1, LOST, id="the seal is over a position"
        ),
        pytest.param(
            Rules((*BACKWARD, replace(CLIP, seals=True), STEP)), 2, NO_COMMON, id="clipping over a replica is the seal"
        ),
        pytest.param(
            Rules((*BACKWARD, replace(SEAL, waits=False), STEP)), 1, NO_COMMON, id="the step does not wait for the seal"
        ),
        pytest.param(
            Rules((ALL_GATHER, REDUCE_SCATTER, SEAL, ALL_REDUCE, STEP)), 1, WRONG, id="the seal before the all-reduce"
        ),
        pytest.param(Rules((*BACKWARD, SEAL, CLIP, STEP)), 1, WRONG, id="the seal before clipping"),
        pytest.param(
            Rules(SEALED_BY_CLIPPING, norm_in_plan=False),
            1,
            WRONG,
            id="clipping is the seal, the norm is not passed on",
        ),
        pytest.param(
            Rules(SEALED_BY_CLIPPING, decide=highest_of_positions),
            1,
            WRONG,
            id="clipping is the seal, nobody has left it",
        ),
        pytest.param(Rules(all_report=False), 1, LOST, id="the driver does not wait for all survivors"),
        pytest.param(Rules(decide=highest_of_anyone), 1, WAITS, id="the highest version of anyone"),
        pytest.param(Rules(decide=lowest), 1, LOST, id="the lowest version"),
        pytest.param(Rules(offer=following_only), 1, NO_COMMON, id="sealed members offer only what follows"),
        pytest.param(Rules(offer=held_only), 2, NO_COMMON, id="sealed members offer only what they hold"),
        pytest.param(Rules(offer=last_boundary), 1, LOST, id="those that have left the seal offer their last boundary"),
        pytest.param(Rules(keep_gradients=False), 1, WRONG, id="gradients are cleared before the decision"),
        pytest.param(Rules(keep_name=False), 2, NO_COMMON, id="members rename what they hold before they have trained"),
        pytest.param(Rules(step_first=False), 1, WRONG, id="sealed members send before their step"),
        pytest.param(Rules(newcomers_step=True), 1, WRONG, id="newcomers make the step as well"),
    ],
)
def test_wrong_rules_are_found_out(rules: Rules, losses: int, message: str) -> None:
    assert message in search(2, 2, losses, rules).wrong


def test_survivors_would_receive_a_version_that_nobody_holds() -> None:
    found = search(2, 2, 1, Rules(decide=highest_of_positions))
    assert not found.wrong
    assert found.survivors_receive


@pytest.mark.parametrize("program", [UNSEALED_DDP[:2], UNSEALED_DDP], ids=["DDP", "DDP, a collective after the step"])
def test_without_shards_and_seal_survivors_receive(program: tuple[Operation, ...]) -> None:
    found = search(3, 1, 2, Rules(program, steps=2))
    assert not found.wrong
    assert found.survivors_receive


def test_without_a_seal_ddp_loses_steps_in_a_collective_after_the_step() -> None:
    assert LOST in search(3, 1, 1, Rules(UNSEALED_DDP, offer=last_commit)).wrong


OLD, HELD, NEXT = Version(RoundId(1, 1), 7), Version(RoundId(1, 2), 3), Version(RoundId(1, 2), 4)


@pytest.mark.parametrize(
    ("offers", "expected"),
    [
        pytest.param([], Continuation(None, (0, 1, 2)), id="nobody is left"),
        pytest.param([Offer(1, NEXT)], Continuation(None, (0, 2)), id="two positions have lost their survivors"),
        pytest.param(
            [Offer(0, NEXT), Offer(1, OLD), Offer(2, HELD, NEXT)],
            Continuation(None, (1,)),
            id="one position has an older version only",
        ),
        pytest.param(
            [Offer(0, NEXT), Offer(0, OLD), Offer(1, HELD, NEXT), Offer(2, NEXT)],
            Continuation(NEXT),
            id="a survivor of an earlier round receives",
        ),
        pytest.param(
            [Offer(0, HELD, NEXT), Offer(1, HELD, NEXT), Offer(2, HELD, NEXT)],
            Continuation(HELD),
            id="nobody has left the seal",
        ),
    ],
)
def test_what_the_next_round_continues_from(offers: list[Offer], expected: Continuation) -> None:
    assert continue_from(offers, 3) == expected
