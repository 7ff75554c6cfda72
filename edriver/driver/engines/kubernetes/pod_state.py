"""What a pod's object says of the host that it is: pure."""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime
from typing import Any, Final

DEFAULT_GRACE: Final = 30.0
"""terminationGracePeriodSeconds of a pod that does not name it."""

Pod = dict[str, Any]
"""A pod, as the API server writes it."""


def name_of(pod: Pod) -> str:
    """Its name, which is the host's."""
    return str(pod["metadata"]["name"])


def leaving(pod: Pod, cordoned: Collection[str] = ()) -> str:
    """Why the host should be left now, as a cause for people; empty: it need not be.

    Args:
        pod: the pod.
        cordoned: the names of nodes that take no further pods.
    """
    if is_disrupted(pod):
        reason = _condition(pod, "DisruptionTarget").get("reason", "no reason given")
        return f"its pod is being evicted ({reason})"
    if pod["metadata"].get("deletionTimestamp"):
        return "its pod is being deleted"
    if ended(pod):
        return "its pod has ended"
    node = pod.get("spec", {}).get("nodeName", "")
    return f"its node {node} is cordoned" if node in cordoned else ""


def lost_at(pod: Pod, now: float) -> float:
    """When a pod that is leaving will be killed, in seconds since the epoch, as far as it says.

    Args:
        pod: the pod.
        now: the time; one whose deletion has not been requested yet has its grace from then on, at least.
    """
    if deletion := pod["metadata"].get("deletionTimestamp"):  # which includes the grace
        return datetime.fromisoformat(deletion).timestamp()
    return now + float(pod.get("spec", {}).get("terminationGracePeriodSeconds", DEFAULT_GRACE))


def ended(pod: Pod) -> str:
    """How the pod has ended; empty: it has not."""
    status = pod.get("status", {})
    if status.get("phase") not in ("Succeeded", "Failed"):
        return ""
    for container in status.get("containerStatuses", ()):
        if terminated := container.get("state", {}).get("terminated"):
            return f"its pod has ended: {terminated.get('reason', 'exit')}, exit code {terminated.get('exitCode')}"
    return f"its pod has ended: {status.get('reason') or status['phase']}"


def trouble(pod: Pod) -> str:
    """Why the pod does not start, if it needs the operator; empty: nothing is known of that."""
    scheduled = _condition(pod, "PodScheduled")
    if scheduled.get("status") == "False":
        return f"{scheduled.get('reason', 'not scheduled')}: {scheduled.get('message', '')}".rstrip(": ")
    for container in pod.get("status", {}).get("containerStatuses", ()):
        waiting = container.get("state", {}).get("waiting") or {}
        if (reason := waiting.get("reason", "")) not in ("", "ContainerCreating", "PodInitializing"):
            image = f" (image {container['image']})" if "Image" in reason and container.get("image") else ""
            return f"{reason}{image}: {waiting.get('message', '')}".rstrip(": ")
    return ""


def is_disrupted(pod: Pod) -> bool:
    """Whether the cluster takes the pod away: an eviction, a preemption, a taint of its node."""
    return _condition(pod, "DisruptionTarget").get("status") == "True"


def is_cordoned(node: dict[str, Any]) -> bool:
    """Whether a node takes no further pods."""
    return bool(node.get("spec", {}).get("unschedulable"))


def _condition(pod: Pod, kind: str) -> dict[str, Any]:
    conditions = pod.get("status", {}).get("conditions", ())
    return next((each for each in conditions if each.get("type") == kind), {})
