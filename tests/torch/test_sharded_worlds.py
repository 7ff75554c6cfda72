"""Sharded training through kills, at each phase of a step; all positions end with the bits of a quiet run."""

from __future__ import annotations

import pytest

from edriver.model.ids import RoundId, Version
from tests.torch.elastic_world import Death, Script, world
from tests.torch.sharded_training import SLOW_AT, half_sealed, hsdp


def quiet(script: Script) -> list[str]:
    """What the two positions of a replica end with."""
    with world(script, replica_size=2) as one:
        one.form(one.start(None, None))
        first, second = one.finish()
        assert first != second
        return [first, second]


@pytest.mark.parametrize(
    ("place", "boundary"),
    [("backward", 4), ("before the seal", 4), ("after the step", 5)],
    ids=lambda value: str(value),
)
def test_a_kill_costs_no_step(place: str, boundary: int) -> None:
    """A worker of the second replica dies; one replica trains on, and another joins it later."""
    expected = quiet(hsdp)
    with world(hsdp, gate_at=8, replica_size=2) as one:
        workers = one.start(None, None, None, Death(4, place))
        one.form(workers)
        one.await_death()
        one.form([workers[2], workers[1]])  # the halves of two replicas
        one.interrupt()
        one.form([workers[2], workers[1], workers[0], *one.start(None)])
        assert one.finish() == expected * 2
        assert one.from_versions[1] == Version(RoundId(1, 1), boundary)
        assert one.from_versions[2].round_id == RoundId(1, 2)


@pytest.mark.parametrize("position", [0, 1])
def test_a_guest_hands_its_shards_to_the_one_that_takes_its_place(position: int) -> None:
    """It is the only holder of its position, and has no place in a replica any more."""
    expected = quiet(hsdp)
    with world(hsdp, gate_at=8, replica_size=2) as one:
        workers = one.start(None, None)
        one.form(workers)
        one.interrupt()
        replica = list(workers)
        (replica[position],) = one.start(None)
        one.form(replica, guest=(workers[position], position))
        one.form(replica)
        assert one.finish() == expected
        assert one.from_versions[1] == one.from_versions[2], "no step is made with a guest"


def test_members_whose_seal_breaks_make_the_step_that_others_have_made() -> None:
    """The only survivor of a position that goes on is one that was still in the seal, and newcomers receive from it."""
    expected = quiet(hsdp)
    with world(half_sealed, replica_size=2) as one:
        workers = one.start(None, None, None, Death(SLOW_AT, "in the seal"))
        one.form(workers)
        one.await_death()
        one.form([workers[2], workers[1], *one.start(None, None)])
        assert one.finish() == expected * 2
        assert one.from_versions[1] == Version(RoundId(1, 1), SLOW_AT + 1)
        assert one.sealed[1] == 1
