"""The life of NCCL's communicators in a round, with fakes in their place: none of this needs a GPU."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Iterator

import pytest

from edriver.common.ids import RoundId
from edriver.worker.backend.nccl import Communicator, Nccl, abort_together
from edriver.worker.errors import PeerLostError
from edriver.worker.group.round_group import RoundGroup
from edriver.worker.topology import SINGLE_WORKER

LIMIT_SECONDS = 300.0


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
    assert group.sever(RoundId(1, 0)) == 0
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
    members_of = Nccl().members_of
    assert members_of("round/1.1/0//cuda//0") == 1
    assert members_of("round/1.1/0//cuda//17") == 1
    assert members_of("round/1.1/0//cuda//0:1") is None, "of two ranks that send to one another"
    assert members_of("round/1.1/0//cpu//0") is None
    assert members_of("round/1.1/0//no such group//cuda//0") is None
