"""Copies of what is small."""

from __future__ import annotations

import collections
import dataclasses
import datetime
import enum
import threading
from pathlib import Path
from typing import Any

import pytest

from edriver.worker.copies.small_copy import NotSmallError, SmallCopies


class Phase(enum.Enum):
    WARM = 1


@dataclasses.dataclass
class Progress:
    epoch: int
    losses: list[float]


MUTABLE = [
    [1, [2]],
    {"a": {"b": 1}},
    {1, 2},
    collections.deque([1, 2], maxlen=5),
    collections.OrderedDict(a=[1]),
    collections.defaultdict(list, a=[1]),
    collections.Counter("aab"),
    Progress(1, [0.5]),
    bytearray(b"abc"),
]


@pytest.mark.parametrize("value", MUTABLE, ids=lambda v: type(v).__name__)
def test_what_can_change_is_copied(value: Any) -> None:
    copied = SmallCopies().of(value)
    assert copied == value
    assert type(copied) is type(value)
    assert copied is not value


def test_what_is_inside_is_copied_too() -> None:
    value = {"a": ([1], {2})}
    copied = SmallCopies().of(value)
    assert copied["a"][0] is not value["a"][0]
    assert copied["a"][1] is not value["a"][1]


@pytest.mark.parametrize("value", [1, "x" * 10**6, None, Phase.WARM, Path("a"), datetime.date(2020, 1, 1), print, len])
def test_what_cannot_change_is_not_copied(value: object) -> None:
    assert SmallCopies().of(value) is value


@pytest.mark.parametrize(
    "value",
    [list(range(600)), {i: i for i in range(300)}, [[0] * 300, [0] * 300], Progress(1, [0.5] * 1000), bytearray(5000)],
    ids=["list", "dict", "nested", "object", "bytes"],
)
def test_what_is_large_is_refused(value: object) -> None:
    with pytest.raises(NotSmallError, match="larger than 4 KB"):
        SmallCopies().of(value)


def test_the_limit_is_for_each_value() -> None:
    copies = SmallCopies()
    assert [copies.of([n] * 500) for n in range(5)] == [[n] * 500 for n in range(5)]
    with pytest.raises(NotSmallError):
        copies.of([[n] * 500 for n in range(5)])


def test_what_cannot_be_copied_is_refused() -> None:
    with pytest.raises(NotSmallError, match="a lock cannot be copied"):
        SmallCopies().of(threading.Lock())


def test_what_is_shared_stays_shared() -> None:
    shared = [1]
    copies = SmallCopies()
    one, other = copies.of({"a": shared}), copies.of([shared])
    assert one["a"] is other[0]


def test_a_circle_is_copied() -> None:
    value: list[Any] = [1]
    value.append(value)
    copied = SmallCopies().of(value)
    assert copied[1] is copied
