"""Hosts that have a slot for each GPU or core: who is asked, how often, and who is left out with which words."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from edriver.agent.devices import counted
from edriver.agent.resources import limits
from edriver.discovery.errors import DiscoveryError, UnusableSourceError
from edriver.discovery.hosts import parse_host_list
from edriver.discovery.slot_counts import ASK_INTERVAL, DeviceCount, SlotCounts
from edriver.model.hosts import Devices, HostSet


class AskedHosts:
    """Hosts that answer what a test has written down, if it lets them.

    Args:
        answers: by the host's name; an error is raised; None: the answer does not come.
    """

    def __init__(self, answers: dict[str, DeviceCount | Exception | None]) -> None:
        self.answers = answers
        self.asked: list[str] = []
        self.now = 0.0

    async def __call__(self, host: str) -> DeviceCount:
        self.asked.append(host)
        answer = self.answers[host]
        if answer is None:
            await asyncio.Event().wait()
        if isinstance(answer, Exception):
            raise answer
        assert answer is not None
        return answer


def slots_of(hosts: HostSet) -> dict[str, int]:
    return {host.name: host.slots for host in hosts}


def run(
    answers: dict[str, DeviceCount | Exception | None],
    *lists: str,
    known: Callable[[str], int] = lambda _: 0,
    needed: int | None = None,
    pause: float = 1.0,
) -> tuple[list[dict[str, int] | str], AskedHosts, SlotCounts]:
    """What comes of several answers of a source, with a pause after each."""
    hosts = AskedHosts(answers)
    counts = SlotCounts(hosts, lambda: hosts.now, known, needed)

    async def all_of_them() -> list[dict[str, int] | str]:
        found: list[dict[str, int] | str] = []
        for each in lists:
            try:
                found.append(slots_of(await counts.counted(parse_host_list(each), wait=0.05)))
            except DiscoveryError as error:
                found.append(f"{type(error).__name__}: {error}")
            hosts.now += pause
        return found

    return asyncio.run(all_of_them()), hosts, counts


FOUR, NO_GPU = DeviceCount(gpus=4, cores=16), DeviceCount(gpus=0, cores=6)


def test_what_is_counted() -> None:
    found, _, _ = run({"a": FOUR, "b": FOUR, "c": FOUR, "d": NO_GPU}, "a:gpu,b:cpu,c:auto,d:auto,e:3")
    assert found == [{"a": 4, "b": 16, "c": 4, "d": 6, "e": 3}]


def test_a_host_is_asked_once_while_it_is_listed() -> None:
    found, hosts, _ = run({"a": FOUR}, "a:gpu", "a:gpu", "b:1", "a:gpu,b:1")
    assert found == [{"a": 4}, {"a": 4}, {"b": 1}, {"a": 4, "b": 1}]
    assert hosts.asked == ["a", "a"]


def test_numbers_ask_nobody() -> None:
    assert run({}, "a:2,b:3")[:1] == ([{"a": 2, "b": 3}],)


def test_a_host_without_devices_is_left_out_with_the_reason() -> None:
    found, _, counts = run({"a": FOUR, "b": NO_GPU}, "a:gpu,b:gpu")
    assert found == [{"a": 4}]
    assert counts.note.startswith("host b is not used: it has no NVIDIA GPUs that workers may use")


def test_a_list_that_cannot_change_must_have_devices_everywhere() -> None:
    found, _, _ = run({"a": FOUR, "b": NO_GPU}, "a:gpu,b:gpu", "a:gpu,b:gpu", needed=1)
    assert str(found[0]).startswith("UnusableSourceError: host b is not used: it has no NVIDIA GPU")
    assert found[1] == {"a": 4}, "the run continues: it had begun"
    assert UnusableSourceError.__mro__[1] is DiscoveryError


@pytest.mark.parametrize(
    ("needed", "found"),
    [
        pytest.param(5, {"a": 4, "b": 1}, id="enough"),
        pytest.param(
            6,
            "UnusableSourceError: a:4, b:1: the run needs 6 slots (--min-np, by default -np): add hosts, or give "
            "--min-np 5",
            id="too-few",
        ),
    ],
)
def test_a_list_that_cannot_change_must_have_the_slots_that_the_run_needs(
    needed: int, found: dict[str, int] | str
) -> None:
    assert run({"a": FOUR}, "a:gpu,b:1", needed=needed)[0] == [found]
    assert run({"a": FOUR, "c": DiscoveryError("down")}, "a:gpu,b:1,c:gpu", needed=9)[0] == [{"a": 4, "b": 1}]


def test_without_any_host_left_there_is_no_answer() -> None:
    found, _, _ = run({"a": DiscoveryError("no sshd"), "b": None}, "a:gpu,b:cpu", needed=1)
    reasons = "host a is not used: no sshd; host b is not used: it has not reported yet how many cores it has"
    assert found == [f"DiscoveryError: {reasons}"]


def test_a_host_that_does_not_answer_holds_up_no_other_and_comes_when_it_does() -> None:
    hosts = AskedHosts({"a": FOUR, "b": None})
    counts = SlotCounts(hosts, lambda: 0.0)
    listed = parse_host_list("a:gpu,b:gpu")

    async def story() -> list[dict[str, int]]:
        answered = asyncio.Event()

        async def ask(host: str) -> DeviceCount:
            if host == "b":
                await answered.wait()
            return FOUR

        counts._ask = ask
        before = slots_of(await counts.counted(listed, wait=0.05))
        answered.set()
        return [before, slots_of(await counts.counted(listed, wait=None))]

    assert asyncio.run(story()) == [{"a": 4}, {"a": 4, "b": 4}]


@pytest.mark.parametrize(("pause", "asked"), [(ASK_INTERVAL / 4, 1), (ASK_INTERVAL, 2)])
def test_a_host_that_cannot_be_asked_is_asked_again_after_a_while(pause: float, asked: int) -> None:
    _, hosts, _ = run({"a": DiscoveryError("down"), "b": FOUR}, "a:gpu,b:gpu", "a:gpu,b:gpu", pause=pause)
    assert hosts.asked.count("a") == asked
    assert hosts.asked.count("b") == 1


def test_a_driver_that_takes_a_run_over_asks_no_host_of_it() -> None:
    answers: dict[str, DeviceCount | Exception | None] = {"a": DiscoveryError("its sshd is gone"), "b": FOUR}
    found, hosts, _ = run(answers, "a:gpu,b:gpu", known={"a": 3, "b": 0}.__getitem__)
    assert found == [{"a": 3, "b": 4}]
    assert hosts.asked == ["b"]


def test_a_host_that_counts_something_else_now_is_asked_anew() -> None:
    assert run({"a": FOUR}, "a:gpu", "a:cpu", "a:2")[0] == [{"a": 4}, {"a": 16}, {"a": 2}]


def test_a_host_has_no_more_slots_than_could_be_written() -> None:
    assert DeviceCount(gpus=0, cores=5000).slots(Devices.CPU) == 1024


@pytest.mark.parametrize(
    ("environment", "quota", "found"),
    [
        pytest.param({}, None, {"gpus": 2, "cores": 8}, id="all"),
        pytest.param({"CUDA_VISIBLE_DEVICES": "1"}, 2.5, {"gpus": 1, "cores": 3}, id="a-containers-quota"),
        pytest.param({"CUDA_VISIBLE_DEVICES": ""}, 0.25, {"gpus": 0, "cores": 1}, id="less-than-a-core"),
        pytest.param({}, 64.0, {"gpus": 2, "cores": 8}, id="a-quota-of-more-than-there-are"),
    ],
)
def test_what_a_host_says_of_itself(
    environment: dict[str, str],
    quota: float | None,
    found: dict[str, int],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm"):
        (tmp_path / name).touch()
    limit = None if quota is None else limits.Limit(quota, lambda: None)
    monkeypatch.setattr("edriver.agent.devices.cpu_limit", lambda _: limit)
    assert counted(environment, tmp_path, 8, "") == found
