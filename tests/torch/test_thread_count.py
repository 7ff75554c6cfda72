"""How many threads a worker computes with, as members come and go."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
import torch

from edriver.worker.backend.thread_count import DEFAULT_VARIABLE, ThreadCount


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


def test_a_worker_has_all_processors_while_it_is_alone_on_its_host() -> None:
    environ = defaults()
    threads = ThreadCount("10.0.0.1", environ)
    found = []
    for size, local_size in ((4, 2), (3, 1), (1, 1), (5, 2)):
        threads.follow(size, local_size)
        found.append((torch.get_num_threads(), environ.get("OMP_NUM_THREADS")))
    assert found == [(1, "1"), (6, None), (6, None), (1, "1")]


def test_hosts_that_are_all_this_machine_share_it() -> None:
    threads = ThreadCount("/run/edriver/store", defaults())
    threads.follow(3, 1)
    assert torch.get_num_threads() == 1
    threads.follow(1, 1)
    assert torch.get_num_threads() == 6


def test_what_the_user_has_set_stays() -> None:
    threads = ThreadCount("10.0.0.1", {"OMP_NUM_THREADS": "1"})
    threads.follow(1, 1)
    assert torch.get_num_threads() == 1


@pytest.mark.parametrize("rounds_before", [0, 1])
def test_what_the_script_has_set_stays(rounds_before: int) -> None:
    threads = ThreadCount("10.0.0.1", defaults())
    for _ in range(rounds_before):
        threads.follow(1, 1)
    torch.set_num_threads(3)
    threads.follow(1, 1)
    threads.follow(4, 4)
    assert torch.get_num_threads() == 3
