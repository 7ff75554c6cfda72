"""Sharded training through kills, at each phase of a step; all positions end with the bits of a quiet run."""

from __future__ import annotations

import functools

import pytest

from edriver.model.ids import RoundId, Version
from tests.torch.elastic_world import Death, Script, world
from tests.torch.sharded_training import (
    SLOW_AT,
    half_clipped,
    half_sealed,
    hsdp,
    hsdp_clipped_in_the_seal,
    made_ahead,
    made_by_rank,
    made_with_a_group,
    made_wrongly,
    of_another_model,
    on_another_mesh,
)


@functools.cache
def quiet(script: Script) -> list[str]:
    """What the two positions of a replica end with."""
    with world(script, replica_size=2) as one:
        one.form(one.start(None, None))
        first, second = one.finish()
        assert first != second
        return [first, second]


@pytest.mark.parametrize(
    ("death", "boundary"),
    [
        (Death(4, "forward"), 4),
        (Death(4, "backward"), 4),
        (Death(4, "reducing"), 4),
        (Death(4, "before the seal"), 4),
        (Death(4, "after the step"), 5),
        (Death(5, "commit"), 5),
    ],
    ids=lambda value: getattr(value, "place", ""),
)
def test_a_kill_costs_no_step(death: Death, boundary: int) -> None:
    """A worker of the second replica dies; one replica trains on, and another joins it later."""
    expected = quiet(hsdp)
    with world(hsdp, gate_at=8, replica_size=2) as one:
        workers = one.start(None, None, None, death)
        one.form(workers)
        one.await_death()
        one.form([workers[2], workers[1]])  # the halves of two replicas
        one.interrupt()
        one.form([workers[2], workers[1], workers[0], *one.start(None)])
        assert one.finish() == expected * 2
        assert one.from_versions[1] == Version(RoundId(1, 1), boundary)
        assert one.from_versions[2].round_id == RoundId(1, 2)


@pytest.mark.parametrize(
    ("script", "undisturbed"),
    [
        pytest.param(half_sealed, hsdp, id="seal"),
        pytest.param(half_clipped, hsdp_clipped_in_the_seal, id="clipping"),
    ],
)
def test_members_whose_seal_breaks_make_the_step_that_others_have_made(script: Script, undisturbed: Script) -> None:
    """The only survivor of a position that goes on is one that was still in the seal, and newcomers receive from it."""
    expected = quiet(undisturbed)
    with world(script, replica_size=2) as one:
        workers = one.start(None, None, None, Death(SLOW_AT, "in the seal"))
        one.form(workers)
        one.await_death()
        one.form([workers[2], workers[1], *one.start(None, None)])
        assert one.finish() == expected * 2
        assert one.from_versions[1] == Version(RoundId(1, 1), SLOW_AT + 1)
        assert one.sealed[1] == 1


@pytest.mark.parametrize("script", [made_ahead, made_by_rank])
def test_newcomers_make_their_models_before_a_round_holds_up_others(script: Script) -> None:
    """Or in it, if that takes others. In all, the shards of uneven parameters have the sizes of their positions."""
    expected = quiet(hsdp)
    with world(script, gate_at=8, replica_size=2) as one:
        workers = one.start(None, None)
        one.form(workers)
        one.interrupt()
        one.form([*workers, *one.start(None, None, positions=(0, 1))])
        assert one.finish() == expected * 2


@pytest.mark.parametrize(
    ("script", "error"),
    [
        (made_wrongly, "FileNotFoundError: no weights here"),
        (made_with_a_group, "TypeError: `build` or `optimizer` makes process groups"),
    ],
)
def test_a_newcomer_that_cannot_make_its_model_says_so_before_it_is_in_a_round(script: Script, error: str) -> None:
    with world(script, gate_at=8, replica_size=2) as one:
        one.form(one.start(None, None))
        one.start(None, positions=(0,))
        with pytest.raises(AssertionError, match=rf"worker 3 failed: [\s\S]*{error}"):
            one.finish()


@pytest.mark.parametrize("position", [0, 1])
def test_a_guest_sends_its_shards_and_leaves(position: int) -> None:
    """The slot of a position's only holder is gone: a round takes it in, and trains without it."""
    expected = quiet(hsdp)
    with world(hsdp, gate_at=8, replica_size=2) as one:
        workers = one.start(None, None)
        one.form(workers)
        guest, (newcomer,) = workers[position], one.start(None)
        one.interrupt()
        workers[position] = newcomer
        one.form(workers, guests={position: guest})
        one.let_go([guest])
        assert one.finish() == expected


def test_a_guest_whose_step_was_interrupted() -> None:
    """It has parameters in full when it is asked for its shards, and is a member of a later round."""
    expected = quiet(hsdp)
    with world(hsdp, gate_at=8, replica_size=2) as one:
        workers = one.start(None, None, None, Death(4, "backward"))
        one.form(workers)
        one.await_death()
        (newcomer,) = one.start(None)
        one.form([workers[2], newcomer], guests={1: workers[1]})
        one.interrupt()
        one.form([workers[2], newcomer, workers[0], workers[1]])
        assert one.finish() == expected * 2


@pytest.mark.parametrize("at", [(0, 3), (1, 2)], ids=["0 and 3", "1 and 2"])
def test_the_halves_of_two_replicas_make_a_whole(at: tuple[int, int]) -> None:
    """One of each dies, of two positions, at two places of a step."""
    expected = quiet(hsdp)
    places = iter(("reducing", "backward"))
    deaths = [Death(4, next(places)) if rank in at else None for rank in range(4)]
    with world(hsdp, replica_size=2) as one:
        workers = one.start(*deaths)
        one.form(workers)
        left = one.await_death(deaths=2)
        one.form(sorted(left, key=lambda worker: workers.index(worker) % 2))
        assert one.finish() == expected
        assert one.from_versions[1] == Version(RoundId(1, 1), 4)


@pytest.mark.parametrize("sender", [False, True], ids=["a receiver", "the sender"])
def test_a_death_in_a_sync(sender: bool) -> None:
    """Another holder of the position sends what the dead one has not; who has received it all has changed nothing."""
    expected = quiet(hsdp)
    with world(hsdp, gate_at=8, replica_size=2) as one:
        workers = one.start(Death(1, "sends") if sender else None, None, None, None)
        one.form(workers)
        one.interrupt()
        newcomers = one.start(None, None if sender else Death(0, "received"))
        one.form([*workers, *newcomers])
        one.await_death()
        one.form([workers[2], workers[1], newcomers[0], workers[3]] if sender else workers)
        assert one.finish() == expected * 2


@pytest.mark.parametrize(
    ("script", "said"),
    [
        (
            of_another_model,
            r"the state's 'model' cannot be restored: .*0\.weight has shape \(8, 4\) here and \(7, 4\) there",
        ),
        (on_another_mesh, "sharded over another mesh than the one that `build` is given"),
    ],
)
def test_a_newcomer_that_is_unlike_the_others_says_in_what(script: Script, said: str) -> None:
    with world(script, gate_at=8, replica_size=2) as one:
        workers = one.start(None, None, None, None)
        one.form(workers)
        one.interrupt()
        (newcomer,) = one.start(None)
        one.form([newcomer, *workers[1:]])
        with pytest.raises(AssertionError, match=said):
            one.finish()
