"""Which slots and workers make up whole replicas, and which sizes of a run are possible with them."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edriver.driver.core.failures.new_sizes import NewSizes
from edriver.driver.core.replicas import ReplicaCount, whole_replicas
from edriver.driver.core.roster import Roster
from edriver.model.limits import MAX_TOTAL_SLOTS
from edriver.model.mode import Mode
from edriver.model.settings import WHOLE_HOSTS, Settings

HOSTS = st.lists(st.integers(1, 6).flatmap(lambda slots: st.tuples(st.just(slots), st.integers(0, slots))), max_size=7)
SIZES = st.sampled_from([WHOLE_HOSTS, 1, 2, 3, 4, 6])
RESTART = Settings(np=8, min_np=4, max_np=16, mode=Mode.RESTART, replica_size=4)


def replicas_by_search(size: int, hosts: list[tuple[int, int]]) -> int:
    """The most workers in whole replicas, found by trying which hosts make up one together."""
    if size == WHOLE_HOSTS:
        return sum(slots for slots, workers in hosts if workers == slots)
    alone = sum(workers // size * size for slots, workers in hosts if slots >= size)
    full = [slots for slots, workers in hosts if slots < size and workers == slots]

    def together(left: tuple[int, ...]) -> int:
        best = 0
        for count in range(2, len(left) + 1):
            for chosen in set(itertools.combinations(left, count)):
                if len(set(chosen)) == 1 and sum(chosen) == size:
                    rest = list(left)
                    for slots in chosen:
                        rest.remove(slots)
                    best = max(best, size + together(tuple(rest)))
        return best

    return alone + together(tuple(full))


@given(size=SIZES, hosts=HOSTS, most=st.one_of(st.just(math.inf), st.integers(0, 30)))
def test_replicas_are_whole_and_as_many_as_there_can_be(size: int, hosts: list[tuple[int, int]], most: float) -> None:
    slots = {f"h{number}": of for number, (of, _) in enumerate(hosts)}
    there = {f"h{number}": workers for number, (_, workers) in enumerate(hosts)}
    found = whole_replicas(size, [(name, slots[name], there[name]) for name in slots], most)
    assert all(0 < count <= there[name] for name, count in found.items())
    total = sum(found.values())
    assert total <= most
    best = replicas_by_search(size, hosts)
    if size == WHOLE_HOSTS:
        assert all(found[name] == slots[name] for name in found)
        left_out = [slots[name] for name in slots if there[name] == slots[name] and name not in found]
        assert total == best if most >= best else all(total + more > most for more in left_out)
        return
    assert total == (best if most >= best else most // size * size)
    ranks = [name for name, count in found.items() for _ in range(count)]
    for replica in _batched(ranks, size):
        names = set(replica)
        whole = all(slots[name] == replica.count(name) for name in names)
        assert len(names) == 1 or (whole and len({slots[name] for name in names}) == 1), replica


def _batched(ranks: list[str], size: int) -> list[tuple[str, ...]]:
    return [tuple(ranks[at : at + size]) for at in range(0, len(ranks), size)]


@given(
    size=SIZES,
    changes=st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4), st.integers(0, 4)), max_size=30),
)
def test_the_running_count_is_that_of_all_hosts(size: int, changes: list[tuple[int, int, int]]) -> None:
    count, hosts = ReplicaCount(size), dict[str, tuple[int, int]]()
    for number, slots, workers in changes:
        hosts[f"h{number}"] = slots, min(slots, workers)
        count.note(f"h{number}", *hosts[f"h{number}"])
        assert count.total == sum(whole_replicas(size, [(name, *both) for name, both in hosts.items()]).values())


def test_ranks_of_a_replica_follow_one_another_though_its_hosts_do_not() -> None:
    hosts = [("a", 2, 2), ("b", 4, 4), ("c", 3, 3), ("d", 2, 2), ("e", 2, 2)]
    assert list(whole_replicas(4, hosts)) == ["a", "d", "b"]
    assert whole_replicas(WHOLE_HOSTS, hosts, 8) == {"a": 2, "b": 4, "d": 2}


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"np": 9}, "-np is 9: with --replica-size 4 it must be a multiple, such as 8 or 12"),
        ({"min_np": 3}, "--min-np is 3: with --replica-size 4 it must be a multiple, such as 4"),
        ({"max_np": 18}, "--max-np is 18: with --replica-size 4 it must be a multiple, such as 16 or 20"),
        ({"replica_size": -1}, "--replica-size is -1: it must be at least 1, or host"),
        (
            {"mode": Mode.ELASTIC, "replica_size": WHOLE_HOSTS},
            "--replica-size host is for scripts in restart mode: with --mode elastic give a number of workers",
        ),
    ],
)
def test_limits_that_no_whole_replicas_make_up_are_refused(changes: dict[str, int], sentence: str) -> None:
    with pytest.raises(ValueError, match=f"^{sentence}$"):
        replace(RESTART, **changes)  # type: ignore[arg-type]


def test_a_run_without_a_limit_or_with_whole_hosts_has_no_multiples() -> None:
    unlimited = replace(RESTART, np=9, min_np=3, max_np=MAX_TOTAL_SLOTS, replica_size=3)
    assert NewSizes(unlimited, Roster(3)).max_workers == MAX_TOTAL_SLOTS - MAX_TOTAL_SLOTS % 3
    whole_hosts = NewSizes(replace(RESTART, np=7, min_np=5, replica_size=WHOLE_HOSTS), Roster(WHOLE_HOSTS))
    whole_hosts.resize(9)
    assert whole_hosts.max_workers == 9


def test_a_resize_to_another_size_than_a_multiple_keeps_whole_replicas() -> None:
    sizes = NewSizes(RESTART, Roster(4))
    for asked, most in ((11, 8), (12, 12), (3, 4), (99, 16)):
        sizes.resize(asked)
        assert sizes.max_workers == most
