"""The life of NCCL's communicators in a round, with fakes in their place: none of this needs a GPU."""

from __future__ import annotations

import dataclasses
import os
import threading
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d
from torch.distributed.distributed_c10d import PrefixStore, Store

from edriver.model.ids import RoundId
from edriver.model.plan import SINGLE_WORKER
from edriver.worker.backend import checks, torch_groups
from edriver.worker.backend import nccl as nccl_module
from edriver.worker.backend.nccl import Communicator, Nccl, abort_together, nccl_here, note_sizes
from edriver.worker.errors import PeerLostError
from edriver.worker.group.round_group import RoundGroup

LIMIT_SECONDS = 300.0

c10d: Any = distributed_c10d  # of torch 2.15, which is not the one that mypy sees


class FakeCommunicator:
    """Aborts once it is let."""

    def __init__(self, let: threading.Event | None = None) -> None:
        self.begun = threading.Event()
        self._let = let

    def abort(self) -> None:
        self.begun.set()
        if self._let is not None:
            assert self._let.wait(LIMIT_SECONDS)


class BrokenCommunicator(FakeCommunicator):
    def abort(self) -> None:
        raise RuntimeError("ncclCommAbort failed")


class FakeNccl(Nccl):
    """Gloo, beside communicators that the test makes."""

    backend = "gloo"

    def __init__(self, **found: FakeCommunicator) -> None:
        self.found = found
        self.asked: list[str] = []
        self.gave_up = threading.Event()

    def communicators(self) -> dict[str, Communicator]:
        return dict(self.found)

    def finish(self) -> None:
        begun = [name for name, one in self.found.items() if one.begun.is_set()]
        self.asked.append(f"finish, aborted: {begun}")

    def give_up(self) -> None:
        self.gave_up.set()


@pytest.fixture
def nccl() -> FakeNccl:
    return FakeNccl(world=FakeCommunicator(), half=FakeCommunicator())


@pytest.fixture(autouse=True)
def over_loopback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")


@pytest.fixture
def group(nccl: FakeNccl) -> Iterator[RoundGroup]:
    """A group whose round 1 is built; the rank in it is the only one."""
    group = RoundGroup("127.0.0.1", nccl)
    build(group, 1)
    yield group
    group.teardown()


def build(group: RoundGroup, number: int) -> None:
    here = dataclasses.replace(SINGLE_WORKER, round_id=RoundId(1, number), store=group.store)
    group.build(here, LIMIT_SECONDS)


def test_all_communicators_are_aborted_together_though_each_waits_for_the_other() -> None:
    first, second = FakeCommunicator(), FakeCommunicator()
    first._let, second._let = second.begun, first.begun
    gave_up = threading.Event()
    abort_together([first, second], gave_up.set).join(LIMIT_SECONDS)
    assert first.begun.is_set()
    assert second.begun.is_set()
    assert not gave_up.is_set()


def test_a_communicator_whose_abort_hangs_is_given_up() -> None:
    let, gave_up = threading.Event(), threading.Event()
    abort_together([FakeCommunicator(), FakeCommunicator(let)], gave_up.set, bound=0.01)
    try:
        assert gave_up.wait(LIMIT_SECONDS)
    finally:
        let.set()


def test_a_communicator_that_cannot_be_aborted_is_given_up() -> None:
    gave_up = threading.Event()
    abort_together([BrokenCommunicator(), FakeCommunicator()], gave_up.set, bound=0.01)
    assert gave_up.wait(LIMIT_SECONDS)


def test_severing_aborts_each_communicator_once_and_later_ones_too(nccl: FakeNccl, group: RoundGroup) -> None:
    group.sever(RoundId(1, 1))
    assert all(one.begun.wait(LIMIT_SECONDS) for one in nccl.found.values())
    first = nccl.found["world"]
    first.begun.clear()
    nccl.found["made since"] = FakeCommunicator()
    group.sever(RoundId(1, 1))
    assert nccl.found["made since"].begun.wait(LIMIT_SECONDS)
    assert not first.begun.is_set()


def test_severing_does_not_wait_for_the_aborts(nccl: FakeNccl, group: RoundGroup) -> None:
    let = threading.Event()
    nccl.found["slow"] = FakeCommunicator(let)
    group.sever(RoundId(1, 1))  # would not return
    let.set()


def test_severing_an_older_round_aborts_nothing(nccl: FakeNccl, group: RoundGroup) -> None:
    assert group.sever(RoundId(1, 0)) == (0, 0)
    assert not any(one.begun.is_set() for one in nccl.found.values())


def test_an_agreed_end_lets_the_device_finish_before_the_communicators_are_aborted(
    nccl: FakeNccl, group: RoundGroup
) -> None:
    group.teardown()
    assert nccl.asked == ["finish, aborted: []", "finish, aborted: ['world', 'half']"]


def test_a_severed_round_is_not_finished_before_its_communicators_are_aborted(
    nccl: FakeNccl, group: RoundGroup
) -> None:
    group.sever(RoundId(1, 1))
    group.teardown()
    assert nccl.asked == ["finish, aborted: ['world', 'half']"]


def test_the_next_rounds_communicators_are_others_under_the_same_names(nccl: FakeNccl, group: RoundGroup) -> None:
    group.teardown()
    nccl.found = {"world": FakeCommunicator()}
    build(group, 2)
    group.sever(RoundId(1, 2))
    assert nccl.found["world"].begun.wait(LIMIT_SECONDS)


class BrokenDevice(FakeNccl):
    def finish(self) -> None:
        raise RuntimeError("CUDA error: unspecified launch failure")


def test_a_broken_device_is_reported_and_not_taken_for_a_lost_peer() -> None:
    nccl = BrokenDevice(world=FakeCommunicator())
    group = RoundGroup("127.0.0.1", nccl)
    build(group, 1)
    with pytest.raises(RuntimeError, match="CUDA error"):
        group.teardown()
    nccl.found.clear()
    group.teardown()


class DeviceOfALostPeer(FakeNccl):
    """A device that is not done before the round is severed."""

    group: RoundGroup

    def finish(self) -> None:
        super().finish()
        self.group.sever(RoundId(1, 1))


def test_a_round_that_is_severed_while_the_device_finishes_it_is_lost() -> None:
    nccl = DeviceOfALostPeer(world=FakeCommunicator())
    nccl.group = group = RoundGroup("127.0.0.1", nccl)
    build(group, 1)
    with pytest.raises(PeerLostError):
        group.settle()
    group.teardown()


def test_a_round_settles_without_aborting_anything(nccl: FakeNccl, group: RoundGroup) -> None:
    group.settle()
    assert nccl.asked == ["finish, aborted: []"]


def test_a_round_without_communicators_does_not_touch_the_device(nccl: FakeNccl, group: RoundGroup) -> None:
    nccl.found.clear()
    group.settle()
    assert nccl.asked == []


def test_the_key_that_introduces_a_communicator_says_how_many_build_it(group: RoundGroup) -> None:
    def members_of(key: str) -> int | None:
        return Nccl().members_of(key, together=False)

    assert members_of("round/1.1/0//cuda//0") == 1
    assert members_of("round/1.1/0//cuda//17") == 1
    assert members_of("round/1.1/0//cuda//0:1") is None, "of two ranks that send to one another"
    assert members_of("round/1.1/0//cpu//0") is None
    assert members_of("round/1.1/0//no such group//cuda//0") is None
    assert members_of("round/1.1/0//cuda//0/nccl_storekey_0") is None, "rank 0 alone sets it, and asks with all others"


class KeysOfRound(Store):
    """A round's store: of keys that it has been asked for together, the first, and how many meet at it."""

    def __init__(self) -> None:
        super().__init__()
        self.met: list[tuple[str, int | None]] = []

    def has_extended_api(self) -> bool:
        return True

    def multi_get(self, keys: list[str]) -> list[bytes]:
        self.met.append((keys[0], Nccl().members_of(keys[0], together=True)))
        return [b""] * len(keys)


class Eager:
    """As ProcessGroupNCCL2: builds its communicator as it is constructed. Its name is that of the group."""

    def __init__(self, store: Any, rank: int, size: int, name: str, ids: int = 1) -> None:
        prefixed = PrefixStore(name, store)
        prefixed.multi_get([f"nccl_storekey_0{f'_{n}' if ids > 1 else ''}" for n in range(ids)])


@pytest.mark.parametrize("ids", [1, 3])
def test_members_meet_before_they_build_a_communicator_while_the_group_is_constructed(ids: int) -> None:
    store = KeysOfRound()

    class Noted(Eager):
        pass

    note_sizes([None, Noted])
    note_sizes([None, Noted])
    of_group = PrefixStore("cuda/", PrefixStore("5/", PrefixStore("round/1.1", store)))
    Noted(of_group, 2, 257, "5", ids=ids)
    key = "round/1.1/5//cuda//5/nccl_storekey_0"
    assert store.met == [(key if ids == 1 else f"{key}_0", 257)]
    assert Nccl().members_of(key, together=True) is None, "constructed, and not listed"


def test_members_meet_before_they_build_a_listed_groups_communicator(group: RoundGroup) -> None:
    members_of = Nccl().members_of
    assert members_of("round/1.1/0//cuda//0/nccl_storekey_0", together=True) == 1
    assert members_of("round/1.1/0//cuda//0/p2p-0-1-0/nccl_storekey_0", together=True) is None, "of two ranks"
    assert members_of("round/1.1/0//cuda//0", together=True) is None


@pytest.mark.skipif(not hasattr(c10d, "ProcessGroupNCCL2"), reason="torch before 2.15, or without CUDA")
def test_torchs_own_class_is_constructed_as_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int | None] = []

    def make(self: Any, store: Any, rank: int, size: int, options: Any, device: Any) -> None:
        made.append(Nccl().members_of("/3//cuda//3/nccl_storekey_0", together=True))

    monkeypatch.setattr(c10d.ProcessGroupNCCL2, "__init__", make)
    note_sizes([c10d.ProcessGroupNCCL2])
    options = c10d._DistributedBackendOptions()
    options.store, options.group_rank, options.group_size = PrefixStore("cuda/", KeysOfRound()), 0, 2
    options.timeout, options.group_id, options.global_ranks_in_group = timedelta(seconds=1), "3", [0, 1]
    monkeypatch.setattr(c10d, "_nccl2_device", lambda _: torch.device("cuda:0"))
    with pytest.raises(TypeError, match="must be called"):  # pybind11: torch's own constructor has not been called
        c10d._create_nccl2_process_group(options, None)
    assert made == [2]


class Part(FakeCommunicator):
    """What a group has for tensors of a GPU."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self._name = name

    def name(self) -> str:
        return self._name


class FoundNccl(Nccl):
    """NCCL in a process without a GPU: the parts of its groups are fakes, found as those of torch."""

    backend = "gloo"

    def __init__(self) -> None:
        self.gave_up = threading.Event()

    def finish(self) -> None: ...

    def give_up(self) -> None:
        self.gave_up.set()


@pytest.fixture
def parts(monkeypatch: pytest.MonkeyPatch) -> dict[str, Part | None]:
    """The parts for tensors of a GPU, by the groups' names: instead of torch's."""
    parts: dict[str, Part | None] = {}
    monkeypatch.setattr(torch_groups, "by_name", lambda: {name: name for name in parts})
    monkeypatch.setattr(torch_groups, "part_for", lambda group, device: parts.get(group))
    return parts


@pytest.fixture
def found(parts: dict[str, Part | None]) -> Iterator[RoundGroup]:
    group = RoundGroup("127.0.0.1", FoundNccl())
    build(group, 1)
    yield group
    parts.clear()
    group.teardown()


def test_the_communicators_of_each_kind_of_nccl_are_aborted(found: RoundGroup, parts: dict[str, Part | None]) -> None:
    all_parts = [Part("nccl"), Part("nccl2"), Part("nccl-lazy")]
    others = [Part("gloo"), Part("fake")]
    parts.update({f"{n}": part for n, part in enumerate([*all_parts, *others, None])})
    found.sever(RoundId(1, 1))
    assert all(part.begun.wait(LIMIT_SECONDS) for part in all_parts)
    assert not any(part.begun.is_set() for part in others)


def test_a_worker_with_a_part_of_an_unknown_name_ends_itself_when_its_round_is_severed(
    found: RoundGroup, parts: dict[str, Part | None], caplog: pytest.LogCaptureFixture
) -> None:
    parts.update({"0": Part("nccl"), "experts": Part("nccl17")})
    found.sever(RoundId(1, 1))
    nccl = found._nccl
    assert isinstance(nccl, FoundNccl)
    assert nccl.gave_up.is_set()
    assert "process group 'experts' uses 'nccl17' for tensors of a GPU" in caplog.text


def test_a_part_of_an_unknown_name_is_reported_at_the_start(monkeypatch: pytest.MonkeyPatch, group: RoundGroup) -> None:
    monkeypatch.setattr(torch_groups, "part_for", lambda group, device: Part("nccl17"))
    (finding,) = [one for one in checks.found_by(checks.GROUP_CHECKS) if one.name == "groups"]
    assert finding.trouble.startswith("process group '0' uses 'nccl17' for tensors of a GPU (torch ")
    assert "A worker with a GPU ends when its round is aborted" in checks.sentence(finding)
    monkeypatch.undo()


@pytest.mark.parametrize(("chosen", "then"), [(None, "0"), ("1", "1")])
def test_nccl_is_the_class_that_has_been_run_unless_the_user_has_chosen(
    chosen: str | None, then: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(dist, "is_nccl_available", lambda: True)
    monkeypatch.setattr(nccl_module, "note_sizes", lambda kinds: list(kinds))
    monkeypatch.setenv("TORCH_DIST_USE_NCCL2", "")
    monkeypatch.delenv("TORCH_DIST_USE_NCCL2") if chosen is None else monkeypatch.setenv("TORCH_DIST_USE_NCCL2", chosen)
    assert nccl_here() is not None
    assert os.environ["TORCH_DIST_USE_NCCL2"] == then


@pytest.mark.skipif(not hasattr(c10d, "ProcessGroupNCCL2"), reason="torch before 2.15, or without CUDA")
@pytest.mark.parametrize(
    ("choice", "maker"), [("0", "_create_nccl_process_group"), ("1", "_create_nccl2_process_group")]
)
def test_torch_reads_the_choice_as_it_registers_nccl(choice: str, maker: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_DIST_USE_NCCL2", choice)
    monkeypatch.setattr(c10d.Backend, "_plugins", {})
    monkeypatch.setattr(c10d, "_FR_SELF_RECORDING_BACKENDS", set())
    c10d._register_builtin_nccl_backend()
    assert c10d.Backend._plugins["NCCL"].creator_fn.__name__ == maker
