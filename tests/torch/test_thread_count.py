"""How many threads a worker computes with, as members come and go."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch

from edriver.model.plan import SINGLE_WORKER, Assignment
from edriver.worker.backend.thread_count import DEFAULT_VARIABLE, ThreadCount

OTHER_HOSTS = "10.0.0.1"
ONE_MACHINE = "/run/edriver/store"


@pytest.fixture(autouse=True)
def one_thread(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What OMP_NUM_THREADS=1 makes of a process, on a machine of six processors."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {*range(6)})
    yield
    torch.set_num_threads(before)


def defaults() -> dict[str, str]:
    return {DEFAULT_VARIABLE: "1", "OMP_NUM_THREADS": "1"}


def place(size: int, local_size: int, max_on_machine: int = 0) -> Assignment:
    return replace(SINGLE_WORKER, size=size, local_size=local_size, max_on_machine=max_on_machine)


ALONE = place(1, 1, 1)


def test_the_number_follows_how_many_workers_the_machine_can_have() -> None:
    environ = defaults()
    threads = ThreadCount(OTHER_HOSTS, environ)
    found = []
    for on_machine in (2, 1, 1, 2):
        threads.follow(place(4, on_machine, on_machine))
        found.append((torch.get_num_threads(), environ.get("OMP_NUM_THREADS")))
    assert found == [(1, "1"), (6, None), (6, None), (1, "1")]


@pytest.mark.parametrize("store", [OTHER_HOSTS, ONE_MACHINE])
@pytest.mark.parametrize(
    ("now", "expected"),
    [
        pytest.param(place(1, 1, 2), 1, id="the-only-member-whose-neighbors-are-being-replaced"),
        pytest.param(place(3, 1, 3), 1, id="hosts-share-the-machine"),
        pytest.param(place(3, 1, 1), 6, id="a-machine-of-its-own"),
    ],
)
def test_a_worker_has_all_processors_if_there_can_be_no_other(store: str, now: Assignment, expected: int) -> None:
    ThreadCount(store, defaults()).follow(now)
    assert torch.get_num_threads() == expected


@pytest.mark.parametrize(
    ("store", "now", "expected"),
    [
        pytest.param(OTHER_HOSTS, place(3, 1), 6, id="the-only-member-of-a-host"),
        pytest.param(OTHER_HOSTS, place(3, 2), 1, id="members-share-a-host"),
        pytest.param(ONE_MACHINE, place(3, 1), 1, id="hosts-are-all-this-machine"),
        pytest.param(ONE_MACHINE, place(1, 1), 6, id="the-only-member"),
    ],
)
def test_under_a_driver_of_an_older_release_members_count(store: str, now: Assignment, expected: int) -> None:
    ThreadCount(store, defaults()).follow(now)
    assert torch.get_num_threads() == expected


def test_what_the_user_has_set_stays() -> None:
    threads = ThreadCount(OTHER_HOSTS, {"OMP_NUM_THREADS": "1"})
    threads.follow(ALONE)
    assert torch.get_num_threads() == 1


@pytest.mark.parametrize("rounds_before", [0, 1])
def test_what_the_script_has_set_stays(rounds_before: int) -> None:
    threads = ThreadCount(OTHER_HOSTS, defaults())
    for _ in range(rounds_before):
        threads.follow(ALONE)
    torch.set_num_threads(3)
    threads.follow(ALONE)
    threads.follow(place(4, 4, 4))
    assert torch.get_num_threads() == 3
