"""Round ids and versions: a total order in which what came later is greater, and the same one on both sides."""

from __future__ import annotations

from hypothesis import given

from edriver.model.ids import NO_ROUND, NO_VERSION, RoundId, Version
from edriver.wire.conversion import round_id_message, round_id_of, version_message, version_of
from tests.fuzz.strategies import NUMBERS, VERSIONS


@given(VERSIONS, VERSIONS, VERSIONS)
def test_versions_are_in_a_total_order(a: Version, b: Version, c: Version) -> None:
    assert (a < b) + (a == b) + (a > b) == 1
    assert (a <= b) == (not b < a)
    assert not (a <= b <= c) or a <= c
    assert not (a <= b <= a) or a == b
    assert a >= NO_VERSION


@given(VERSIONS, NUMBERS, NUMBERS)
def test_a_later_round_is_greater_however_many_boundaries_the_earlier_one_had(
    earlier: Version, incarnations: int, more: int
) -> None:
    incarnation, n = earlier.round_id
    assert Version(RoundId(incarnation, n + 1 + more), 0) > earlier
    assert Version(RoundId(incarnation + 1 + incarnations, 0), 0) > earlier, "a driver that took over counts from 1"
    assert earlier._replace(boundaries=earlier.boundaries + 1) > earlier
    assert earlier.round_id >= NO_ROUND


@given(VERSIONS)
def test_a_version_is_the_same_on_the_other_side(version: Version) -> None:
    sent = version_message(version).SerializeToString()
    assert version_of(type(version_message(version)).FromString(sent)) == version
    assert round_id_of(round_id_message(version.round_id)) == version.round_id
