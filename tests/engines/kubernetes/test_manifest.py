"""`edriver kubernetes manifest`: what it prints is valid by the official schemas, and says what a run needs."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from kubeflow_trainer_api import models as trainer

from edriver.agent.dial_in import join_config_of
from edriver.cli.main import main
from edriver.driver.engines.kubernetes.plan import Kind, RunSpec, RunSpecError
from tests.process.running import ROOT

SCHEMAS_OF = "1.37"
"""The version of Kubernetes whose schemas are asked; strict: without unknown fields."""

CRD_MODELS = {
    "JobSet": trainer.JobsetV1alpha2JobSet,
    "TrainingRuntime": trainer.TrainerV1alpha1TrainingRuntime,
    "TrainJob": trainer.TrainerV1alpha1TrainJob,
}
"""Generated from the OpenAPI schemas of the CRDs."""

Objects = dict[tuple[str, str], Any]


def printed(capsys: pytest.CaptureFixture[str], *words: str) -> Objects:
    assert main(["kubernetes", "manifest", "--image", "registry/train:1", *words]) == 0
    found = list(yaml.safe_load_all(capsys.readouterr().out))
    by_name = {(each["kind"], each["metadata"]["name"]): each for each in found}
    assert len(by_name) == len(found)
    return by_name


def check(document: dict[str, Any]) -> None:
    if (model := CRD_MODELS.get(document["kind"])) is None:
        kubernetes_validate.validate(document, SCHEMAS_OF, strict=True)
    else:
        assert model.from_dict(document).to_dict() == document  # what the schema does not know is left out


def within(part: Any, key: str) -> Iterator[Any]:
    """All objects in an object that have a key."""
    if isinstance(part, dict):
        if key in part:
            yield part
        part = list(part.values())
    if isinstance(part, list):
        for each in part:
            yield from within(each, key)


def jobs(found: Objects) -> list[Any]:
    """The specs of all Jobs, those of JobSets among them."""
    return list(within(list(found.values()), "backoffLimit")) + list(within(list(found.values()), "completionMode"))


def pod_templates(found: Objects) -> dict[str, Any]:
    """The templates of all pods, by what they are."""
    specs = [each for each in within(list(found.values()), "spec") if "containers" in each["spec"]]
    by = {pod["metadata"]["labels"]["app.kubernetes.io/component"]: pod for pod in specs}
    assert set(by) == {"driver", "agent"}
    return by


@pytest.mark.parametrize("kind", Kind)
@pytest.mark.parametrize(
    "more",
    [
        pytest.param([], id="plain"),
        pytest.param(["--gpus", "8", "--cpu", "32", "--memory", "200Gi", "--user", "1000", "--watch-nodes"], id="all"),
    ],
)
def test_every_object_is_valid_by_the_official_schemas(
    capsys: pytest.CaptureFixture[str], kind: Kind, more: list[str]
) -> None:
    words = ["-np", "16", "--min-np", "8", "--max-np", "32", "--kind", kind, "--env", "A=b", *more, "python", "t.py"]
    found = printed(capsys, *words)
    for document in found.values():
        check(document)
    for pod in pod_templates(found).values():
        check({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x", **pod["metadata"]}, "spec": pod["spec"]})


def test_a_field_that_the_schemas_do_not_know_is_found(capsys: pytest.CaptureFixture[str]) -> None:
    for kind, name in ((Kind.INDEXED_JOB, ("Job", "train-agents")), (Kind.JOBSET, ("JobSet", "train"))):
        document = printed(capsys, "-np", "2", "--kind", kind, "true")[name]
        document["spec"]["paralellism"] = 2
        with pytest.raises((kubernetes_validate.ValidationError, AssertionError)):
            check(document)


@pytest.mark.parametrize("kind", Kind)
def test_pods_find_what_they_name(capsys: pytest.CaptureFixture[str], kind: Kind) -> None:
    """Secrets, accounts and Services that pods refer to are there, with the keys and selectors that they need."""
    found = printed(capsys, "-np", "4", "--kind", kind, "python", "t.py")
    pods = pod_templates(found)
    for component, pod in pods.items():
        (secret,) = [volume["secret"] for volume in pod["spec"]["volumes"] if "secret" in volume]
        keys = {item["key"] for item in secret["items"]}
        assert keys == found["Secret", secret["secretName"]]["data"].keys() == {f"{component}.json"}
        mounted = {mount["name"] for mount in pod["spec"]["containers"][0]["volumeMounts"]}
        assert mounted == {volume["name"] for volume in pod["spec"]["volumes"]}
    service = found["Service", "train-driver"]
    assert service["spec"]["selector"].items() <= pods["driver"]["metadata"]["labels"].items()
    assert not service["spec"]["selector"].items() <= pods["agent"]["metadata"]["labels"].items()
    (port,) = service["spec"]["ports"]
    (listening,) = [p for p in pods["driver"]["spec"]["containers"][0]["ports"] if p["name"] == port["targetPort"]]
    command = pods["driver"]["spec"]["containers"][0]["command"]
    assert command[command.index("--port") + 1] == str(listening["containerPort"])
    dialled = pods["agent"]["spec"]["containers"][0]["command"]
    assert dialled[dialled.index("--driver") + 1] == f"train-driver:{port['port']}"
    assert ("ServiceAccount", pods["driver"]["spec"]["serviceAccountName"]) in found
    (subject,) = found["RoleBinding", "train-driver"]["subjects"]
    assert (subject["kind"], subject["name"], subject["namespace"]) == ("ServiceAccount", "train-driver", "default")


@pytest.mark.parametrize(
    ("kind", "restarts", "ignores", "together"),
    [
        pytest.param(Kind.INDEXED_JOB, 0, False, None, id="job"),
        pytest.param(Kind.STATEFULSET, 3, True, None, id="statefulset"),
        pytest.param(Kind.JOBSET, 0, False, 3, id="jobset"),
        pytest.param(Kind.TRAINING_RUNTIME, 0, False, 3, id="training-runtime"),
    ],
)
def test_a_driver_that_is_lost_starts_anew_where_its_agents_do(
    capsys: pytest.CaptureFixture[str], kind: Kind, restarts: int, ignores: bool, together: int | None
) -> None:
    """`ignores`: whether its eviction counts for none; `together`: how often all of a JobSet start anew."""
    found = printed(capsys, "-np", "2", "--kind", kind, "true")
    (driver,) = [spec for spec in jobs(found) if spec["template"]["spec"]["containers"][0]["name"] == "driver"]
    assert driver["backoffLimit"] == restarts
    rules = driver["podFailurePolicy"]["rules"]
    assert [rule["action"] for rule in rules] == ["FailJob", "Ignore"][: 1 + ignores], "a run that has failed stays so"
    assert rules[0]["onExitCodes"]["values"] == [1, 2]
    assert [each["maxRestarts"] for each in within(list(found.values()), "maxRestarts")] == [together] * (
        together is not None
    )


@pytest.mark.parametrize("kind", [Kind.INDEXED_JOB, Kind.JOBSET, Kind.TRAINING_RUNTIME])
def test_an_agent_that_has_left_a_run_that_goes_on_is_replaced(capsys: pytest.CaptureFixture[str], kind: Kind) -> None:
    found = printed(capsys, "-np", "2", "--kind", kind, "true")
    (agents,) = [spec for spec in jobs(found) if spec.get("completionMode") == "Indexed"]
    (container,) = agents["template"]["spec"]["containers"]
    code = int(container["command"][container["command"].index("--exit-code-if-drained") + 1])
    assert code != 0, "its index would be complete"
    rules = agents["podFailurePolicy"]["rules"]
    (ignored,) = [rule["onExitCodes"] for rule in rules if rule["action"] == "Ignore" and "onExitCodes" in rule]
    assert (ignored["containerName"], ignored["values"]) == (container["name"], [code])


@pytest.mark.parametrize(
    ("kind", "more", "also"),
    [
        pytest.param(Kind.INDEXED_JOB, [], "", id="job"),
        pytest.param(Kind.STATEFULSET, ["--watch-nodes"], "clusterrole,clusterrolebinding", id="statefulset"),
        pytest.param(Kind.JOBSET, [], "jobset", id="jobset"),
        pytest.param(Kind.TRAINING_RUNTIME, [], "trainjob,trainingruntime", id="training-runtime"),
    ],
)
def test_what_the_page_says_deletes_all(
    capsys: pytest.CaptureFixture[str], kind: Kind, more: list[str], also: str
) -> None:
    page = (ROOT / "docs" / "how-to" / "kubernetes.md").read_text()
    (command,) = re.findall(r"kubectl delete (\S+) -l (\S+)=train\n", page)
    short = {"pdb": "poddisruptionbudget", "sa": "serviceaccount"}
    deleted = {short.get(word, word) for word in command[0].split(",")} | {"job", "statefulset", "service"}  # all
    assert f"`{also}`" in page or not also
    for (found, _), each in printed(capsys, "-np", "2", "--kind", kind, *more, "true").items():
        assert found.lower() in deleted | {*also.split(",")}
        assert each["metadata"]["labels"][command[1]] == "train"


@pytest.mark.parametrize("kind", Kind)
def test_the_driver_may_do_what_it_does_and_nothing_else(capsys: pytest.CaptureFixture[str], kind: Kind) -> None:
    found = printed(capsys, "-np", "4", "--kind", kind, "python", "t.py")
    assert not [name for name in found if name[0].startswith("Cluster")]
    rules = found["Role", "train-driver"]["rules"]
    assert not [rule for rule in rules if "*" in (*rule["apiGroups"], *rule["resources"], *rule["verbs"])]
    unnamed = [rule for rule in rules if "resourceNames" not in rule]
    assert [(rule["resources"], rule["verbs"]) for rule in unnamed] == [(["pods"], ["list", "watch"])]
    secrets = [rule for rule in rules if rule["resources"] == ["secrets"]]
    assert [(rule["resourceNames"], rule["verbs"]) for rule in secrets] == [(["train-agent"], ["patch"])]
    agent = pod_templates(found)["agent"]["spec"]
    assert agent["automountServiceAccountToken"] is False


@pytest.mark.parametrize("kind", Kind)
def test_pods_end_in_good_order_and_are_probed(capsys: pytest.CaptureFixture[str], kind: Kind) -> None:
    for role, pod in pod_templates(printed(capsys, "-np", "4", "--kind", kind, "python", "t.py")).items():
        from edriver.agent.agent import FLUSH_LIMIT
        from edriver.agent.settings import AgentSettings
        from edriver.agent.worker import TERMINATION_GRACE

        (container,) = pod["spec"]["containers"]
        if role != "driver":
            told = float(container["command"][container["command"].index("--grace") + 1])
            drain = AgentSettings("run", "a", 0, "", Path("/"), grace=told).leave_timeout
            assert pod["spec"]["terminationGracePeriodSeconds"] > drain + TERMINATION_GRACE + FLUSH_LIMIT
        (port,) = [port["containerPort"] for port in container["ports"] if port["name"] == "health"]
        asked = {name: container[f"{name}Probe"]["grpc"] for name in ("startup", "liveness", "readiness")}
        assert {name: probe["service"] for name, probe in asked.items()} == {
            "startup": "liveness",
            "liveness": "liveness",
            "readiness": "readiness",
        }
        assert {probe["port"] for probe in asked.values()} == {port}
        assert container["command"][container["command"].index("--health-port") + 1] == str(port)


def test_an_eviction_leaves_as_many_agents_as_can_train_and_never_stops_a_drain_for_good(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def least(*words: str) -> int | None:
        budget = printed(capsys, *words, "true").get(("PodDisruptionBudget", "train-agents"))
        return None if budget is None else budget["spec"]["minAvailable"]

    assert least("-np", "16", "--min-np", "5", "--gpus", "2") == 3
    assert least("-np", "4") == 3
    assert least("-np", "1") is None


def test_agents_are_as_many_as_the_slots_take(capsys: pytest.CaptureFixture[str]) -> None:
    found = printed(capsys, "-np", "10", "--gpus", "4", "--kind", "indexed-job", "true")
    spec = found["Job", "train-agents"]["spec"]
    assert spec["parallelism"] == spec["completions"] == 3
    (container,) = spec["template"]["spec"]["containers"]
    assert container["resources"]["limits"]["nvidia.com/gpu"] == "4"
    assert container["command"][container["command"].index("--slots") + 1] == "4"


def test_the_kubelet_expands_nothing_of_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    pod = pod_templates(printed(capsys, "-np", "1", "sh", "-c", "echo $(date)"))["driver"]
    assert pod["spec"]["containers"][0]["command"][-1] == "echo $$(date)"


def test_the_secrets_let_agents_in_and_nothing_more(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    from edriver.driver.services.run_credentials import RunCredentials

    found = printed(capsys, "-np", "1", "true")
    driver, agent = tmp_path / "driver.json", tmp_path / "agent.json"
    driver.write_bytes(base64.b64decode(found["Secret", "train-driver"]["data"]["driver.json"]))
    agent.write_bytes(base64.b64decode(found["Secret", "train-agent"]["data"]["agent.json"]))
    agent.chmod(0o600)
    run = RunCredentials.read(driver)
    joining = join_config_of(["--driver", "d:1", "--credentials", str(agent), "--host", "a"])
    assert (joining.run_id, joining.token) == (run.run_id, run.agent_token)
    assert joining.authority.encode() == run.authority.certificate
    text = agent.read_text()
    assert "PRIVATE KEY" not in text
    assert not any(secret in text for secret in (run.status_token, run.control_token))
    others = printed(capsys, "-np", "1", "true")["Secret", "train-agent"]["data"]["agent.json"]
    assert json.loads(base64.b64decode(others))["token"] != joining.token


def test_a_base_for_kustomize_has_the_same_objects(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    words = ["-np", "4", "--name", "bert", "-n", "ml", "python", "t.py"]
    whole = printed(capsys, *words)
    assert main(["kubernetes", "manifest", "--image", "registry/train:1", "--kustomize", str(tmp_path), *words]) == 0
    kustomization = yaml.safe_load((tmp_path / "kustomization.yaml").read_text())
    made = [each for file in kustomization["resources"] for each in yaml.safe_load_all((tmp_path / file).read_text())]
    assert made == [each for (kind, _), each in whole.items() if kind != "Secret"]
    generated = {each["name"]: each["files"] for each in kustomization["secretGenerator"]}
    assert generated == {name: list(each["data"]) for (kind, name), each in whole.items() if kind == "Secret"}
    assert {(tmp_path / file).stat().st_mode & 0o777 for files in generated.values() for file in files} == {0o600}
    assert kustomization["namespace"] == "ml"
    assert main(["kubernetes", "manifest", "--image", "registry/train:1", "--kustomize", str(tmp_path), *words]) == 1


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        pytest.param(["-np", "2", "--name", "My_Run", "true"], "--name 'My_Run': Kubernetes takes", id="name"),
        pytest.param(["-np", "2", "--min-np", "3", "true"], "-np 2 must lie between --min-np 3", id="numbers"),
        pytest.param(["-np", "2", "--gpus", "2", "--slots", "1", "true"], "leave out --slots", id="slots"),
        pytest.param(["-np", "2", "--memory", "16GB", "true"], "--memory '16GB' is not a quantity", id="quantity"),
        pytest.param(["-np", "2", "--env", "A", "true"], "--env 'A': give NAME=VALUE", id="variable"),
        pytest.param(["-np", "2"], "the command is missing", id="command"),
    ],
)
def test_what_cannot_be_is_refused_in_a_sentence(
    capsys: pytest.CaptureFixture[str], words: list[str], sentence: str
) -> None:
    assert main(["kubernetes", "manifest", "--image", "x", *words]) == 2
    assert sentence in capsys.readouterr().err


def test_an_image_with_a_space_is_none() -> None:
    with pytest.raises(RunSpecError, match="is not an image"):
        RunSpec(name="a", image="a b", np=1, min_np=1, max_np=1, command=("true",))
