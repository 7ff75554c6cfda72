"""What the stores of a round and of a rendezvous make of values: both answer as torch's own store does."""

from __future__ import annotations

import pytest

from edriver.wire.store_values import MAX_NUMBER, NotANumberError, added, compared


@pytest.mark.parametrize(
    ("value", "more", "after"),
    [(None, 5, b"5"), (b"", 5, b"5"), (b"7", -9, b"-2"), (b"%d" % (MAX_NUMBER - 1), 1, b"%d" % MAX_NUMBER)],
)
def test_a_key_counts_from_0(value: bytes | None, more: int, after: bytes) -> None:
    assert added(value, more) == after


@pytest.mark.parametrize("value", [b"x", b"1.5", b"\xff", b"%d" % (MAX_NUMBER + 1)])
def test_what_is_not_a_number_is_not_added_to(value: bytes) -> None:
    with pytest.raises(NotANumberError):
        added(value, 1)


@pytest.mark.parametrize(("value", "more"), [(MAX_NUMBER, 1), (1, MAX_NUMBER), (-MAX_NUMBER, -1)])
def test_a_sum_that_no_other_store_could_hold_is_refused(value: int, more: int) -> None:
    with pytest.raises(NotANumberError, match=f"the sum would be beyond {MAX_NUMBER}, "):
        added(b"%d" % value, more)


@pytest.mark.parametrize(
    ("value", "expected", "answer", "is_set"),
    [
        pytest.param(b"a", b"a", b"new", True, id="as-expected"),
        pytest.param(b"a", b"b", b"a", False, id="another"),
        pytest.param(b"a", b"", b"a", False, id="none-is-expected"),
        pytest.param(None, b"", b"new", True, id="not-set-and-none-is-expected"),
        pytest.param(None, b"b", b"b", False, id="not-set"),
    ],
)
def test_a_value_is_set_if_it_is_as_expected(value: bytes | None, expected: bytes, answer: bytes, is_set: bool) -> None:
    assert compared(value, expected, b"new") == (answer, is_set)
