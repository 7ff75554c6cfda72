"""The proof that one end of a connection sends to the other: it is valid for that member, connection and time alone."""

from __future__ import annotations

import dataclasses

import pytest

from edriver.driver.journal.keyed_random import KeyedRandom, new_key
from edriver.model.ids import RoundId
from edriver.model.plan import SINGLE_WORKER, Assignment
from edriver.worker.group.membership_proof import PROOF_BYTES, SECRET_BYTES, MembershipProof

SECRET = bytes(range(SECRET_BYTES))
PROOF = MembershipProof(SECRET, RoundId(1, 7), "round/1.7//0")


def test_the_proof_of_a_rank_to_another_is_accepted() -> None:
    proof_of = PROOF.proof_of(speaker=0, listener=1)
    assert len(proof_of) == PROOF_BYTES
    assert PROOF.holds(proof_of, speaker=0, listener=1)


@pytest.mark.parametrize(
    "other",
    [
        pytest.param(dataclasses.replace(PROOF, secret=SECRET[::-1]), id="another-secret"),
        pytest.param(dataclasses.replace(PROOF, round_id=RoundId(1, 8)), id="another-round"),
        pytest.param(dataclasses.replace(PROOF, round_id=RoundId(2, 7)), id="another-incarnation"),
        pytest.param(dataclasses.replace(PROOF, group="round/1.7//1"), id="another-group"),
    ],
)
def test_it_holds_nowhere_else(other: MembershipProof) -> None:
    assert not PROOF.holds(other.proof_of(speaker=0, listener=1), speaker=0, listener=1)


@pytest.mark.parametrize(("speaker", "listener"), [(1, 0), (0, 2), (2, 1), (1, 1)])
def test_it_holds_for_no_other_pair_and_not_the_other_way_round(speaker: int, listener: int) -> None:
    assert not PROOF.holds(PROOF.proof_of(speaker=0, listener=1), speaker, listener)


@pytest.mark.parametrize("received", [b"", bytes(PROOF_BYTES), PROOF.proof_of(0, 1)[:-1], PROOF.proof_of(0, 1) + b"x"])
def test_any_other_proof_is_refused(received: bytes) -> None:
    assert not PROOF.holds(received, speaker=0, listener=1)


def test_too_short_a_secret_is_refused() -> None:
    with pytest.raises(ValueError, match="needs a secret of 32 bytes, not 0"):
        MembershipProof(b"", RoundId(1, 1), "group")


def test_the_driver_draws_as_much_as_workers_expect_and_anew_each_time() -> None:
    draws = KeyedRandom(new_key())
    assert len(draws.secret()) == SECRET_BYTES
    assert draws.secret() != draws.secret()


@pytest.mark.parametrize(
    "holder", [PROOF, dataclasses.replace(SINGLE_WORKER, secret=SECRET)], ids=["proof", "assignment"]
)
def test_a_secret_is_not_shown(holder: MembershipProof | Assignment) -> None:
    assert "secret" not in repr(holder)
    assert repr(SECRET) not in repr(holder)
