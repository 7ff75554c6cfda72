"""Where the group of a script in restart mode meets that names a store which nobody serves."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from edriver.model.store_address import StoreAddress
from edriver.worker.restart.one_round import served_store
from edriver.worker.restart.script_rendezvous import lead_to_round, script_address

SIZE = 3
TORCHS = sys.modules["torch.distributed.rendezvous"]


@pytest.fixture
def own(monkeypatch: pytest.MonkeyPatch) -> Iterator[StoreAddress]:
    """The round's store, in the environment of one of its workers."""
    store, address = served_store("127.0.0.1")
    for module in (c10d, dist, TORCHS):
        monkeypatch.setattr(module, "rendezvous", module.rendezvous)
    for name, value in {
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "TORCHELASTIC_RESTART_COUNT": "0",
        "MASTER_ADDR": address.host,
        "MASTER_PORT": str(address.port),
        "RANK": "0",
        "WORLD_SIZE": str(SIZE),
    }.items():
        monkeypatch.setenv(name, value)
    lead_to_round(address, SIZE)
    yield address
    del store


def meet(url: str, rank: int = -1, size: int = -1) -> tuple[Any, int, int]:
    module: Any = c10d
    found: tuple[Any, int, int] = next(iter(module.rendezvous(url, rank, size)))
    return found


@pytest.mark.parametrize(
    ("variables", "url", "given"),
    [
        pytest.param({"MASTER_ADDR": "localhost", "MASTER_PORT": "1"}, "env://", True, id="variables"),
        pytest.param({}, "tcp://127.0.0.1:1", True, id="tcp"),
        pytest.param({}, "tcp://127.0.0.1:1?rank={rank}&world_size=3", False, id="tcp-with-ranks"),
        pytest.param({}, "env://", True, id="its-own-round"),
    ],
)
def test_all_ranks_meet_though_nobody_serves_the_scripts_store(
    own: StoreAddress, monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], url: str, given: bool
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)

    def rank(number: int) -> list[bytes]:
        words = (number, SIZE) if given else ()
        store, found, size = meet(url.format(rank=number), *words)
        assert (found, size) == (number, SIZE)
        store.set(f"of {number}", str(number))
        return [store.get(f"of {other}") for other in range(SIZE)]

    with ThreadPoolExecutor(SIZE) as threads:
        assert list(threads.map(rank, range(SIZE))) == [[b"0", b"1", b"2"]] * SIZE


def test_groups_at_different_addresses_do_not_meet(own: StoreAddress) -> None:
    (one, *_), (other, *_) = meet("tcp://a:1", 0, SIZE), meet("tcp://b:1", 0, SIZE)
    one.set("key", "mine")
    assert other.check(["key"]) is False


def test_a_group_of_fewer_workers_has_a_store_of_its_own(own: StoreAddress) -> None:
    store, rank, size = meet("tcp://127.0.0.1:0", 0, 1)
    assert (rank, size) == (0, 1)
    assert store.port != own.port
    assert os.environ["TORCHELASTIC_USE_AGENT_STORE"] == "True"


@pytest.mark.parametrize(
    ("url", "environ", "address"),
    [
        ("env://", {"MASTER_ADDR": "a", "MASTER_PORT": "7"}, "a:7"),
        ("env://", {"MASTER_ADDR": "::1", "MASTER_PORT": "7"}, "[::1]:7"),
        ("env://", {"MASTER_ADDR": "a"}, None),
        ("env://", {"MASTER_ADDR": "a", "MASTER_PORT": "x"}, None),
        ("tcp://b:8?rank=0", {"MASTER_ADDR": "a", "MASTER_PORT": "7"}, "b:8"),
        ("file:///tmp/x", {"MASTER_ADDR": "a", "MASTER_PORT": "7"}, None),
    ],
)
def test_where_a_script_expects_a_store(url: str, environ: dict[str, str], address: str | None) -> None:
    assert script_address(url, environ) == address
