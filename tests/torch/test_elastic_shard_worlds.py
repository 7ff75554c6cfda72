"""One replica of all workers through kills, at each phase of a step: no step is lost, and no bit of another value."""

from __future__ import annotations

import functools

import pytest

from edriver.model.ids import RoundId, Version
from tests.torch.elastic_world import Death, Script, world
from tests.torch.sharded_training import (
    SLOW_AT,
    altered,
    cut_short,
    decayed,
    half_sealed,
    hsdp,
    made_ahead,
    made_by_rank,
    overwritten,
)


@functools.cache
def quiet(script: Script, size: int) -> list[str]:
    """What the workers end with."""
    with world(script, one_replica=True) as one:
        one.form(one.start(*[None] * size))
        found = one.finish()
        assert len(set(found)) == size, "each has shards of its own"
        return found


@pytest.mark.parametrize(
    ("place", "boundary"),
    [("backward", 4), ("before the seal", 4), ("after the step", 5)],
    ids=str,
)
def test_a_kill_costs_no_step(place: str, boundary: int) -> None:
    """One of four is lost, and another takes its place."""
    with world(hsdp, one_replica=True) as one:
        one.form(one.start(None, None, None, Death(4, place)))
        one.form([*one.await_death(), *one.start(None)])
        assert one.finish() == quiet(hsdp, 4)
        assert one.from_versions[1] == Version(RoundId(1, 1), boundary)
        assert one.lost == [0, 0]


def test_members_whose_seal_breaks_make_the_step_that_others_have_made_and_their_shadows_do() -> None:
    with world(half_sealed, one_replica=True) as one:
        one.form(one.start(None, None, None, Death(SLOW_AT, "in the seal")))
        one.form([*one.await_death(), *one.start(None)])
        assert one.finish() == quiet(hsdp, 4)
        assert one.from_versions[1] == Version(RoundId(1, 1), SLOW_AT + 1)
        assert one.sealed[1] == 1


def test_training_goes_on_with_those_that_are_left_and_grows_back() -> None:
    """Three of four, which change their gradients' mean in its last bits; and then four."""
    with world(hsdp, gate_at=8, one_replica=True) as one:
        one.form(one.start(None, None, None, Death(4, "backward")))
        one.form(one.await_death())
        one.form([*one.interrupt(), *one.start(None)])
        assert len(set(one.finish())) == 4
        assert one.lost == [0, 0, 0]
        assert one.from_versions[1] == Version(RoundId(1, 1), 4)
        assert one.from_versions[2].round_id == RoundId(1, 2)


def test_half_of_the_workers_leave_and_others_take_their_places() -> None:
    with world(hsdp, gate_at=6, one_replica=True) as one:
        workers = one.start(None, None, None, None)
        one.form(workers)
        one.interrupt()
        one.leave(workers[2:])
        one.form([*workers[:2], *one.start(None, None)])
        assert one.finish() == quiet(hsdp, 4)


@pytest.mark.parametrize("script", [made_ahead, made_by_rank])
def test_newcomers_make_their_models_before_a_round_holds_up_others(script: Script) -> None:
    """With the shards of any position of the round that trains, in the place of which those of their own round come."""
    with world(script, gate_at=8, one_replica=True) as one:
        workers = one.start(None, None)
        one.form(workers)
        one.interrupt()
        one.leave(workers[1:])
        one.form([*workers[:1], *one.start(None, positions=(0,))])
        assert one.finish() == quiet(hsdp, 2)


def test_newcomers_learn_what_trains_and_evaluates_and_what_modules_keep_as_extra_state() -> None:
    with world(altered, gate_at=6, one_replica=True) as one:
        workers = one.start(None, None, None, None)
        one.form(workers)
        one.interrupt()
        one.leave(workers[2:])
        one.form([*workers[:2], *one.start(None, None)])
        assert one.finish() == quiet(altered, 4)


def test_those_that_stop_leave_what_the_script_has_written_to_their_shards() -> None:
    with world(decayed, gate_at=6, one_replica=True) as one:
        workers = one.start(None, None, None, None)
        one.form(workers)
        one.interrupt()
        one.leave(workers[2:])
        one.form([*workers[:2], *one.start(None, None)])
        assert one.finish() == quiet(decayed, 4)


def test_a_newcomer_dies_while_shards_are_cut() -> None:
    """Some have shards of the round that breaks, and nobody has passed a boundary of it: those before are there."""
    with world(cut_short, one_replica=True) as one:
        one.form(one.start(None, None, None, Death(4, "backward")))
        one.form([*one.await_death(), *one.start(Death(2, "cut"))])
        one.form([*one.await_death(), *one.start(None)])
        assert one.finish() == quiet(hsdp, 4)
        assert one.from_versions[1:] == [Version(RoundId(1, 1), 4)] * 2


def test_a_member_dies_before_it_sends_what_others_need() -> None:
    """Rank 1 has its shards of the round that breaks, and rank 2 waits for rows: only those before are there."""
    with world(cut_short, gate_at=4, one_replica=True) as one:
        workers = one.start(Death(2, "cutting"), None, None)
        one.form(workers)
        one.form([*one.interrupt(), *one.start(None)])
        survivors = one.await_death()
        one.form([*survivors[:2], *one.start(None)])
        assert len(set(one.finish())) == 3
        assert one.from_versions[2] == one.from_versions[1]
        assert one.lost == [0, 0, 0]


def test_what_the_script_writes_to_parameters_reaches_the_shadows() -> None:
    with world(overwritten, one_replica=True) as one:
        one.form(one.start(None, None, None, Death(5, "backward")))
        one.form([*one.await_death(), *one.start(None)])
        expected = quiet(overwritten, 4)
        assert one.finish() == expected != quiet(hsdp, 4)
        assert one.lost == [0, 0]
