"""Runs with --kubernetes on a fake cluster: the real client, real agents and workers, and what was printed to apply.

No API server can be had where these tests run: `fake_api.py` says what is fake.
"""

from __future__ import annotations

import re
import signal
import sys
from pathlib import Path

import pytest

from edriver.cli.main import main
from tests.engines.kubernetes.fake_cluster import FakeCluster, applied, driver_words
from tests.process.running import ROOT, SCRIPTS, Printing, edriver, running
from tests.waiting import until

pytestmark = pytest.mark.engines

TRAIN = [sys.executable, str(SCRIPTS / "train.py")]
LONG = {"EPOCHS": "20000"}


def manifest(capsys: pytest.CaptureFixture[str], *words: str, image: str = "registry/train:1") -> str:
    assert main(["kubernetes", "manifest", "--image", image, *words, *TRAIN]) == 0
    return capsys.readouterr().out


def names(cluster: FakeCluster, phase: str = "Running") -> list[str]:
    return [pod["metadata"]["name"] for pod in cluster.pods() if pod["status"]["phase"] == phase]


@pytest.mark.parametrize("kind", ["indexed-job", "jobset", "statefulset"])
def test_a_pod_that_is_evicted_leaves_in_good_order_and_is_replaced(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, kind: str
) -> None:
    words = ["-np", "2", "--min-np", "1", "--kind", kind]
    with applied(manifest(capsys, *words), tmp_path, LONG) as (cluster, run):
        run.line("rank 1 passed step 5")
        evicted = names(cluster)[0]
        after = len(run.lines)
        cluster.evict(evicted)
        run.line(rf"host {evicted}: its pod is being evicted \(EvictionByEvictionAPI\)", after)
        run.line(r"rank 0 of 1 .* at step ([5-9]|\d\d)", after)
        run.line(r"rank 1 of 2 .* at step ([5-9]|\d\d)", after)
        assert "is lost" not in run.text
        run.process.send_signal(signal.SIGINT)
        assert run.end() == 130
        assert run.gone(), run.left_behind()


def test_a_pod_that_is_killed_is_lost_at_once_and_replaced(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    with applied(manifest(capsys, "-np", "2", "--min-np", "1"), tmp_path, LONG) as (cluster, run):
        run.line("rank 1 passed step 5")
        killed = names(cluster)[1]
        after = len(run.lines)
        cluster.kill(killed)
        run.line(rf"host {killed} is lost: its pod has ended: Error, exit code -9", after)
        run.line(r"rank 1 of 2 .* at step ([5-9]|\d\d)", after)
        run.process.send_signal(signal.SIGINT)
        assert run.end() == 130


def test_a_driver_that_is_evicted_has_a_successor_to_which_the_agents_come(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    words = ["-np", "2", "--kind", "statefulset"]
    environ = {**LONG, "POD_NAME": "train-driver-x7k2p"}
    with applied(manifest(capsys, *words), tmp_path, environ) as (cluster, run):
        run.line("rank 1 passed step 5")
        condition = {"type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI"}
        driver = {"metadata": {"name": environ["POD_NAME"]}, "status": {"conditions": [condition]}}
        cluster.call(cluster.api.put("pods", driver))
        run.process.send_signal(signal.SIGTERM)
        assert run.end() == 143
        environ["KUBECONFIG"] = str(cluster.kubeconfig)
        with running(driver_words(cluster, cluster.driver_port), tmp_path, environ) as successor:
            successor.line("rank 1 passed step 5")
            cluster.call(cluster.api.delete("pods", environ["POD_NAME"]))
            successor.process.send_signal(signal.SIGTERM)
            assert successor.end() == 143
            until(lambda: not names(cluster), "one that is not evicted gives all pods back")


def test_a_driver_that_is_killed_is_resumed_with_the_pods_that_it_had(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    with applied(manifest(capsys, "-np", "2", "--min-np", "1"), tmp_path, LONG) as (cluster, run):
        run.line("rank 1 passed step 5")
        pids, pods = run.pids(), names(cluster)
        run_id = run.id
        run.process.kill()
        run.process.wait()
        resumed = Printing([sys.executable, "-m", "edriver", "resume", run_id], tmp_path, {"PYTHONPATH": str(ROOT)})
        resumed.line("another driver has taken over, number 2 of this run")
        resumed.line("rank 1 passed step")
        assert names(cluster) == pods
        cluster.kill(pods[0])
        resumed.line(rf"host {pods[0]} is lost: ")
        resumed.line(rf"rank 0 of 2 pid ({'|'.join(map(str, pids.values()))}) at step")  # one that was not restarted
        resumed.process.send_signal(signal.SIGINT)
        assert resumed.end() == 130
        assert run.gone(), run.left_behind()


def test_a_watch_that_is_too_old_is_listed_anew(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    with applied(manifest(capsys, "-np", "2", "--min-np", "1"), tmp_path, LONG) as (cluster, run):
        run.line("rank 1 passed step 5")
        lists = cluster.api.asked.count(("list", "pods", ""))
        cluster.call(cluster.api.forget_history())
        until(lambda: cluster.api.asked.count(("list", "pods", "")) > lists, "pods are listed again")
        evicted = names(cluster)[0]
        cluster.evict(evicted)
        run.line(f"host {evicted}: its pod is being evicted")
        assert "the API server" not in run.text
        run.process.send_signal(signal.SIGINT)
        assert run.end() == 130


def test_training_goes_on_and_grows_while_the_api_server_is_gone(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    with applied(manifest(capsys, "-np", "2", "--min-np", "1"), tmp_path, LONG) as (cluster, run):
        run.line("rank 1 passed step 5")
        cluster.stop_api()
        run.line(r"the API server cannot be reached to list pods in namespace default .*; the run continues")
        after = len(run.lines)
        killed = names(cluster)[1]
        cluster.kill(killed)  # the driver notices by the agent's silence alone; its Job replaces it
        run.line(f"host {killed} is lost: its agent has not answered", after)
        run.line(r"rank 1 of 2 .* at step ([5-9]|\d\d)", after)
        cluster.start_api()
        run.line("the API server answers again", after)
        run.process.send_signal(signal.SIGINT)
        assert run.end() == 130


def test_a_cordoned_node_is_left_where_the_driver_may_see_it(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    with applied(manifest(capsys, "-np", "1", "--watch-nodes"), tmp_path, LONG) as (cluster, run):
        run.line("rank 0 passed step 5")
        cluster.cordon()
        run.line(r"host train-agents-0-\d+: its node node-1 is cordoned")
        run.process.send_signal(signal.SIGINT)
        assert run.end() == 130


def test_an_image_that_is_not_there_is_named(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    printed = manifest(capsys, "-np", "1", image="registry/missing:1")
    with applied(printed, tmp_path, LONG) as (_, run):
        run.line(r"pod train-agents-0-\d+ does not start: ImagePullBackOff \(image registry/missing:1\): Back-off")
        run.process.send_signal(signal.SIGINT)
        assert run.end() == 130


def test_a_right_that_is_missing_is_named(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    printed = manifest(capsys, "-np", "1").replace("- watch\n", "- get\n")
    with applied(printed, tmp_path, LONG) as (_, run):
        run.line(r"the driver's service account may not list pods in namespace default: apply the Role")
        run.line("rank 0 passed step 5")
        run.process.send_signal(signal.SIGINT)
        assert run.end() == 130


@pytest.mark.parametrize("kind", ["indexed-job", "jobset", "statefulset"])
def test_the_run_is_as_large_as_it_may_be_gives_back_what_it_does_not_use_and_leaves_nothing(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, kind: str
) -> None:
    words = ["-np", "1", "--max-np", "2", "--kind", kind]
    with applied(manifest(capsys, *words), tmp_path, LONG) as (cluster, run):
        run.line("asked for 2 pods instead of 1")
        run.line("rank 1 of 2 ")
        after = len(run.lines)
        run_id = run.line(r"run ([0-9a-f]{8}): 1 worker")[1]
        assert edriver("resize", "1", "--run", run_id).returncode == 0
        run.line("asked for 1 pod instead of 2", after)
        until(lambda: len(names(cluster)) == 1, "the second pod is given back")
        run.line("rank 0 of 1 ", after)
        assert "is lost" not in run.text
        run.process.send_signal(signal.SIGINT)
        assert run.end() == 130
        if kind != "jobset":  # which ends with its driver: that is its own controller's work
            until(lambda: not names(cluster), "all pods are given back")


def test_a_pod_that_starts_after_the_run_has_ended_ends_at_once_with_a_sentence(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    with applied(manifest(capsys, "-np", "1"), tmp_path, {"EPOCHS": "3"}) as (cluster, run):
        assert run.end() == 0
        cluster.call(cluster.start_late("train-agents-0-late"))
        until(lambda: "train-agents-0-late" in names(cluster, "Succeeded"), "the late pod ends with 0")
        assert re.search(
            r"edriver agent: run [0-9a-f]{8} has ended: there is nothing to do", cluster.output.read_text()
        )


def test_an_agent_that_is_started_twice_is_named_and_does_no_harm(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    with applied(manifest(capsys, "-np", "1"), tmp_path, LONG) as (cluster, run):
        run.line("rank 0 passed step 5")
        (name,) = names(cluster)
        cluster.call(cluster.start_twice(name))
        run.line(f"a second agent has dialled in as host {name}")
        after = len(run.lines)
        run.line("rank 0 passed step", after)
        assert "is lost" not in run.text
        run.process.send_signal(signal.SIGINT)
        assert run.end() == 130


def test_a_wrong_address_of_the_driver_is_named(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    with applied(manifest(capsys, "-np", "1"), tmp_path, LONG, wrong_port=True) as (cluster, run):
        sentence = r"the driver at \S+ has not let this host in yet: it may not run yet"
        until(lambda: re.search(sentence, cluster.output.read_text()), "the agent says that it waits")
        run.process.send_signal(signal.SIGINT)
        assert run.end() == 130


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        pytest.param(["--kubernetes", "train"], "'train' is not KIND/NAME: write job/NAME", id="target"),
        pytest.param(["--kubernetes", "jobset/a"], "write jobset/NAME/JOB", id="jobset"),
        pytest.param(["--kubernetes", "job/a", "-H", "b"], "--kubernetes and -H both define", id="two"),
        pytest.param(["--kubernetes", "job/a", "--launcher", "ssh"], "--kubernetes and --launcher both", id="launcher"),
    ],
)
def test_flags_that_do_not_go_together(tmp_path: Path, words: list[str], sentence: str) -> None:
    done = edriver("-np", "1", "--credentials", str(tmp_path / "c"), *words, "true")
    assert done.returncode == 2
    assert sentence in done.stderr


def test_no_cluster_is_a_sentence(tmp_path: Path) -> None:
    words = ["-np", "1", "--kubernetes", "job/a", "--credentials", str(tmp_path / "c"), "true"]
    done = edriver(*words, environ={"KUBECONFIG": str(tmp_path / "none")})
    assert done.returncode == 1
    assert "no API server is known here" in done.stderr
