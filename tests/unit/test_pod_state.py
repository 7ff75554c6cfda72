"""What a pod's object, as the API server writes it, says of the host that it is."""

from __future__ import annotations

from typing import Any

import pytest

from edriver.driver.engines.kubernetes.pod_state import ended, is_cordoned, leaving, name_of, trouble


def pod(phase: str = "Running", conditions: list[Any] | None = None, state: Any = None, **metadata: Any) -> Any:
    container = {"image": "registry/train:1", "state": state or {}}
    status = {"phase": phase, "conditions": conditions or [], "containerStatuses": [container]}
    return {"metadata": {"name": "a-0", **metadata}, "spec": {"nodeName": "node-1"}, "status": status}


EVICTED = {"type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI"}
SPARED = {"type": "DisruptionTarget", "status": "False"}


@pytest.mark.parametrize(
    ("found", "cordoned", "reason"),
    [
        pytest.param(pod(), [], "", id="it-runs"),
        pytest.param(pod(conditions=[EVICTED]), [], "its pod is being evicted (EvictionByEvictionAPI)", id="evicted"),
        pytest.param(pod(conditions=[SPARED]), [], "", id="it-was-to-be-evicted"),
        pytest.param(pod(deletionTimestamp="2026-01-01T00:00:00Z"), [], "its pod is being deleted", id="deleted"),
        pytest.param(pod("Failed"), [], "its pod has ended", id="ended"),
        pytest.param(pod(), ["node-1"], "its node node-1 is cordoned", id="cordoned"),
        pytest.param(pod(), ["node-2"], "", id="another-node-is-cordoned"),
        pytest.param({"metadata": {"name": "a-0"}}, [], "", id="it-is-not-scheduled-yet"),
    ],
)
def test_why_a_host_is_left(found: Any, cordoned: list[str], reason: str) -> None:
    assert leaving(found, cordoned) == reason
    assert name_of(found) == "a-0"


@pytest.mark.parametrize(
    ("found", "how"),
    [
        pytest.param(pod(), "", id="it-runs"),
        pytest.param(
            pod("Failed", state={"terminated": {"reason": "OOMKilled", "exitCode": 137}}),
            "its pod has ended: OOMKilled, exit code 137",
            id="its-container",
        ),
        pytest.param({"status": {"phase": "Failed", "reason": "Evicted"}}, "its pod has ended: Evicted", id="the-node"),
        pytest.param({"status": {"phase": "Succeeded"}}, "its pod has ended: Succeeded", id="no-reason"),
    ],
)
def test_how_a_pod_has_ended(found: Any, how: str) -> None:
    assert ended(found) == how


@pytest.mark.parametrize(
    ("found", "why"),
    [
        pytest.param(pod(), "", id="none"),
        pytest.param(pod("Pending", state={"waiting": {"reason": "ContainerCreating"}}), "", id="it-is-being-made"),
        pytest.param(
            pod("Pending", state={"waiting": {"reason": "ErrImagePull", "message": "not found"}}),
            "ErrImagePull (image registry/train:1): not found",
            id="image",
        ),
        pytest.param(pod(state={"waiting": {"reason": "CrashLoopBackOff"}}), "CrashLoopBackOff", id="it-crashes"),
        pytest.param(
            pod("Pending", [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/3"}]),
            "Unschedulable: 0/3",
            id="no-node",
        ),
        pytest.param(pod(conditions=[{"type": "PodScheduled", "status": "True"}]), "", id="it-has-a-node"),
    ],
)
def test_why_a_pod_does_not_start(found: Any, why: str) -> None:
    assert trouble(found) == why


def test_a_node_is_cordoned() -> None:
    assert is_cordoned({"spec": {"unschedulable": True}})
    assert not is_cordoned({"spec": {}})
