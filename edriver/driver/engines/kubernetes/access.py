"""Who reaches whom: the driver's Service, its rights at the API server, the Secrets, and what may be evicted."""

from __future__ import annotations

import base64

from edriver.driver.engines.kubernetes.plan import DRIVER_PORT, Kind, Manifest, RunSpec
from edriver.driver.engines.kubernetes.pods import AGENT_FILE, DRIVER_FILE

RBAC_API = "rbac.authorization.k8s.io"


def service(plan: RunSpec) -> Manifest:
    """Where agents dial in. It leads to the driver before that is ready: an agent that is early waits for less."""
    spec = {
        "selector": plan.labels("driver"),
        "publishNotReadyAddresses": True,
        "ports": [{"name": "driver", "port": DRIVER_PORT, "targetPort": "driver", "protocol": "TCP"}],
    }
    return {"apiVersion": "v1", "kind": "Service", "metadata": plan.metadata(plan.driver, "driver"), "spec": spec}


def rights(plan: RunSpec) -> list[Manifest]:
    """The driver's ServiceAccount, and the Role with what it needs and nothing else."""
    metadata = plan.metadata(plan.driver, "driver")
    account = {"kind": "ServiceAccount", "name": plan.driver, "namespace": plan.namespace}
    role = {"apiGroup": RBAC_API, "kind": "Role", "name": plan.driver}
    return [
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata, "automountServiceAccountToken": False},
        {"apiVersion": f"{RBAC_API}/v1", "kind": "Role", "metadata": metadata, "rules": rules(plan)},
        _binding("RoleBinding", metadata, role, account),
    ]


def rules(plan: RunSpec) -> list[Manifest]:
    """The driver's permissions: list the pods, change the number of its agents, and record that its run has ended."""

    def rule(group: str, resource: str, name: str, *verbs: str) -> Manifest:
        return {"apiGroups": [group], "resources": [resource], "resourceNames": [name], "verbs": list(verbs)}

    _, agents_secret = plan.secrets
    common: list[Manifest] = [
        {"apiGroups": [""], "resources": ["pods"], "verbs": ["list", "watch"]},  # no right can be bound to a label
        rule("", "secrets", agents_secret, "patch"),  # to be replaced, not to be read
    ]
    match plan.kind:
        case Kind.INDEXED_JOB:
            return [*common, rule("batch", "jobs", plan.agents, "get", "patch")]
        case Kind.STATEFULSET:
            return [*common, rule("apps", "statefulsets/scale", plan.agents, "get", "patch")]
    jobs = rule("batch", "jobs", f"{plan.name}-{plan.agents_job}-0", "get", "patch")
    return [*common, rule("jobset.x-k8s.io", "jobsets", plan.name, "get", "patch"), jobs]


def node_rights(plan: RunSpec) -> list[Manifest]:
    """The right to see which nodes are cordoned, which a namespace's Role cannot give."""
    name = f"{plan.namespace}-{plan.driver}-nodes"
    metadata = {"name": name, "labels": plan.labels("driver")}
    account = {"kind": "ServiceAccount", "name": plan.driver, "namespace": plan.namespace}
    rule = {"apiGroups": [""], "resources": ["nodes"], "verbs": ["list", "watch"]}
    role = {"apiGroup": RBAC_API, "kind": "ClusterRole", "name": name}
    return [
        {"apiVersion": f"{RBAC_API}/v1", "kind": "ClusterRole", "metadata": metadata, "rules": [rule]},
        _binding("ClusterRoleBinding", metadata, role, account),
    ]


def _binding(kind: str, metadata: Manifest, role: Manifest, account: Manifest) -> Manifest:
    made = {"apiVersion": f"{RBAC_API}/v1", "kind": kind, "metadata": metadata}
    return {**made, "roleRef": role, "subjects": [account]}


def secrets(plan: RunSpec, driver: bytes, agent: bytes) -> list[Manifest]:
    """The run's credentials: all of them for the driver, what lets agents in for the agents."""
    secret = {"apiVersion": "v1", "kind": "Secret", "type": "Opaque"}
    return [
        {**secret, "metadata": plan.metadata(name), "data": {key: base64.b64encode(content).decode()}}
        for name, key, content in zip(plan.secrets, (DRIVER_FILE, AGENT_FILE), (driver, agent), strict=True)
    ]


def disruption_budget(plan: RunSpec) -> list[Manifest]:
    """The number of agents that an eviction must leave: enough to train, but not all, or no node could be drained.

    A number, because a Job has no scale of which the disruption controller could compute a percentage.
    """
    least = min(plan.min_hosts, plan.hosts - 1)
    if not least:
        return []
    spec = {
        "minAvailable": least,
        "selector": {"matchLabels": plan.labels("agent")},
        "unhealthyPodEvictionPolicy": "AlwaysAllow",
    }
    budget = {"apiVersion": "policy/v1", "kind": "PodDisruptionBudget"}
    return [{**budget, "metadata": plan.metadata(plan.agents, "agent"), "spec": spec}]
