"""The broker, with the real client on a fake API server, within the rights that the printed Role gives."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml
from kubernetes.aio import client

from edriver.agent.dial_in import RunEndedError, join_config_of
from edriver.cli.main import main
from edriver.driver.core.demand import Demand
from edriver.driver.engines.kubernetes import scale
from edriver.driver.engines.kubernetes.api import close
from edriver.driver.engines.kubernetes.broker import KubernetesBroker, wanted_size
from edriver.driver.engines.kubernetes.target import Target
from edriver.driver.launch.broker import BrokerError
from tests.engines.kubernetes.fake_api import FakeApi, Object, RefusalError, serving

DRIVER = "train-driver-x7k2p"
"""The name of the driver's pod."""

RESOURCES = {"Job": "jobs", "StatefulSet": "statefulsets", "JobSet": "jobsets", "Secret": "secrets"}


def asked(slots: int, hosts: tuple[str, ...] = (), unused: tuple[str, ...] = ()) -> Demand:
    return Demand(slots, needed=1, unused=unused, hosts=hosts)


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@dataclass
class Scene:
    """A broker, and the API server that it talks to."""

    api: FakeApi
    broker: KubernetesBroker
    clock: Clock
    target: Target

    @property
    def size(self) -> int:
        """The size that the cluster was asked for."""
        match self.target.kind:
            case "statefulset":
                return int(self.api.get("statefulsets", self.target.name)["spec"]["replicas"])
            case "job":
                spec = self.api.get("jobs", self.target.name)["spec"]
            case _:
                jobs = self.api.get("jobsets", self.target.name)["spec"]["replicatedJobs"]
                (spec,) = [job["template"]["spec"] for job in jobs if job["name"] == self.target.job]
        assert spec["parallelism"] == spec["completions"]
        return int(spec["parallelism"])


Play = Callable[[Scene], Awaitable[None]]
Played = Callable[[str, str, Play], None]


@pytest.fixture
def played(capsys: pytest.CaptureFixture[str]) -> Played:
    """Apply a manifest of a kind to a fake API server, and have a broker there."""

    def play(kind: str, target: str, scene: Play) -> None:
        words = ["--image", "i", "-np", "4", "--min-np", "2", "--max-np", "8", "--kind", kind, "true"]
        assert main(["kubernetes", "manifest", *words]) == 0
        objects: list[Object] = list(yaml.safe_load_all(capsys.readouterr().out))

        async def run() -> None:
            api = FakeApi([rule for each in objects if each["kind"] == "Role" for rule in each["rules"]])
            for each in objects:
                if each["kind"] in RESOURCES:
                    await api.put(RESOURCES[each["kind"]], each)
            await api.put("jobs", {"metadata": {"name": "train-agent-0"}, "spec": {"parallelism": 4, "completions": 4}})
            async with serving(api) as url:
                found, clock = Target.of(target), Clock()
                reached = client.ApiClient(client.Configuration(host=url))

                async def connect() -> client.ApiClient:
                    return reached

                broker = KubernetesBroker("default", found, 1, "0a1b2c3d", DRIVER, connect, clock)
                await scene(Scene(api, broker, clock, found))
                await close(reached)

        asyncio.run(run())

    return play


KINDS = [
    pytest.param("indexed-job", "job/train-agents", id="job"),
    pytest.param("jobset", "jobset/train/agent", id="jobset"),
    pytest.param("statefulset", "statefulset/train-agents", id="statefulset"),
]


@pytest.mark.parametrize(("kind", "target"), KINDS)
def test_it_asks_for_what_the_run_can_use_and_gives_back_what_it_does_not(
    played: Played, kind: str, target: str
) -> None:
    async def scene(on: Scene) -> None:
        await on.broker.reconcile(asked(8))
        assert on.size == 8
        before = len(on.api.asked)
        await on.broker.reconcile(asked(8))
        assert len(on.api.asked) == before, "nothing is asked for that is there"
        suffix = "" if kind == "statefulset" else "-abcde"
        names = tuple(f"{on.target.name}-{index}{suffix}" for index in range(8))
        await on.broker.reconcile(asked(3, names, names[3:7]))
        assert on.size == 8, "controllers take the highest index first, which is used"
        await on.broker.reconcile(asked(3, names, names[3:]))
        assert on.size == 3

    played(kind, target, scene)


@pytest.mark.parametrize(("kind", "target"), KINDS)
def test_when_the_run_has_ended_late_pods_hear_of_it_and_others_are_given_back(
    played: Played, tmp_path: Path, kind: str, target: str
) -> None:
    async def scene(on: Scene) -> None:
        await on.broker.reconcile(asked(4))
        await on.broker.close()
        assert on.size == (4 if kind == "jobset" else 0)  # a JobSet ends with its driver
        credentials = tmp_path / "agent.json"
        credentials.write_bytes(base64.b64decode(on.api.get("secrets", "train-agent")["data"]["agent.json"]))
        credentials.chmod(0o600)
        with pytest.raises(RunEndedError, match="run 0a1b2c3d has ended"):
            join_config_of(["--driver", "d:1", "--credentials", str(credentials), "--host", "a"])
        assert set(on.api.get("secrets", "train-agent")["data"]) == {"agent.json"}

    played(kind, target, scene)


@pytest.mark.parametrize(
    ("kind", "target", "evicted", "left"),
    [
        pytest.param("statefulset", "statefulset/train-agents", True, 4, id="its-successor-gets-the-agents"),
        pytest.param("statefulset", "statefulset/train-agents", False, 0, id="it-has-no-successor"),
        pytest.param("indexed-job", "job/train-agents", True, 0, id="a-job-has-none"),
    ],
)
def test_a_driver_that_is_evicted_leaves_the_agents_to_its_successor(
    played: Played, kind: str, target: str, evicted: bool, left: int
) -> None:
    async def scene(on: Scene) -> None:
        condition = {"type": "DisruptionTarget", "status": str(evicted)}
        await on.api.put("pods", {"metadata": {"name": DRIVER}, "status": {"conditions": [condition]}})
        evicted_too = {"conditions": [{"type": "DisruptionTarget", "status": "True"}]}
        await on.api.put("pods", {"metadata": {"name": "another"}, "status": evicted_too})
        before = on.api.get("secrets", "train-agent")["data"]
        await on.broker.close()
        assert on.size == left
        assert (on.api.get("secrets", "train-agent")["data"] == before) is (left > 0)

    played(kind, target, scene)


def test_a_jobset_that_is_not_elastic_has_its_job_resized(played: Played) -> None:
    async def scene(on: Scene) -> None:
        def refuse(resource: str) -> None:
            if resource == "jobsets":
                raise RefusalError(422, "Invalid", "spec.replicatedJobs: field is immutable")

        on.api.before_patch = refuse
        await on.broker.reconcile(asked(6))
        assert on.api.get("jobs", "train-agent-0")["spec"] == {"parallelism": 6, "completions": 6}

    played("jobset", "jobset/train/agent", scene)


def test_a_quota_that_is_used_up_is_one_sentence_and_asked_again_ever_more_rarely(played: Played) -> None:
    async def scene(on: Scene) -> None:
        on.api.quota = "exceeded quota: gpus, requested: pods=8, used: pods=4, limited: pods=4"
        times, said = [], set()
        for second in range(100):
            on.clock.now = float(second)
            before = len(on.api.asked)
            with pytest.raises(BrokerError) as refused:
                await on.broker.reconcile(asked(8))
            said.add(str(refused.value))
            if len(on.api.asked) > before:
                times.append(second)
        assert times == [0, 2, 6, 14, 30, 62]
        (sentence,) = said
        assert sentence.startswith(
            "the cluster refuses to scale job/train-agents: the namespace's quota is used up: exceeded quota: gpus"
        )
        on.api.quota = ""
        on.clock.now = 200.0
        before = len(on.api.asked)
        await on.broker.reconcile(asked(8))
        assert on.size == 8
        assert [verb for verb, _, _ in on.api.asked[before:]] == ["get", "patch"], "it may have been changed meanwhile"

    played("indexed-job", "job/train-agents", scene)


@pytest.mark.parametrize(
    ("size", "most", "least", "used", "wanted"),
    [
        pytest.param(4, 8, 2, [0, 1, 2, 3], 8, id="more"),
        pytest.param(8, 8, 2, [0], 8, id="as-many-as-it-can-use"),
        pytest.param(8, 3, 2, [0, 1, 2], 3, id="fewer"),
        pytest.param(8, 3, 2, [0, 1, 6], 7, id="a-used-one-behind-unused-ones-stays"),
        pytest.param(8, 0, 2, [], 2, id="never-fewer-than-needed"),
        pytest.param(1, 0, 2, [], 1, id="fewer-than-needed-are-not-made-more"),
    ],
)
def test_the_size_that_is_asked_for(size: int, most: int, least: int, used: list[int], wanted: int) -> None:
    assert wanted_size(size, most, least, used) == wanted


@pytest.mark.parametrize(
    ("target", "pod", "index"),
    [
        pytest.param("job/train-agents", "train-agents-12-x7k2p", 12, id="job"),
        pytest.param("jobset/train/agent", "train-agent-0-3-x7k2p", 3, id="jobset"),
        pytest.param("statefulset/train-agents", "train-agents-5", 5, id="statefulset"),
        pytest.param("job/train-agents", "another", None, id="another"),
    ],
)
def test_a_pods_index_is_in_its_name(target: str, pod: str, index: int | None) -> None:
    assert Target.of(target).index(pod) == index


def test_the_jobset_api_is_the_one_that_the_manifest_has() -> None:
    from edriver.driver.engines.kubernetes.workloads import JOBSET_API

    assert "/".join(scale.JOBSETS) == JOBSET_API
