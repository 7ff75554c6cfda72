"""The two kinds of pods: the driver's, and an agent's."""

from __future__ import annotations

from typing import Final

from edriver.driver.engines.kubernetes.plan import DRIVER_PORT, HEALTH_PORT, METRICS_PORT, Manifest, RunSpec

TERMINATION_GRACE: Final = 60
"""Seconds between SIGTERM and SIGKILL: an agent asks the driver to drain its host (40 s), then ends its workers (5 s)
and sends what they have printed last (8 s); the driver ends its agents (11 s)."""

AGENT_GRACE: Final = 50
"""The part of it that an agent may use (--grace): it keeps 10 s of that for its workers' end."""

CREDENTIALS_FOLDER: Final = "/etc/edriver"
DRIVER_FILE, AGENT_FILE = "driver.json", "agent.json"
"""Where both kinds of pods find their credentials; the keys in their Secrets."""

DRAINED: Final = 75
"""The exit code of an agent that has left a run in progress, gracefully (EX_TEMPFAIL of sysexits.h). With 0, also
after an eviction, its index of the Job would be complete, and never be started again."""

DEFAULT_GROUP: Final = 65534
"""The group that may read a Secret's files, which are root's, where the pods' user is the image's."""


def driver_pod(plan: RunSpec) -> Manifest:
    """The template of the driver's pod."""
    command = [
        *("edriver", "--kubernetes", plan.target),
        *("-np", str(plan.np), "--min-np", str(plan.min_np), "--max-np", str(plan.max_np)),
        *("--run-credentials", f"{CREDENTIALS_FOLDER}/{DRIVER_FILE}", "--port", str(DRIVER_PORT)),
        *("--health-port", str(HEALTH_PORT), "--metrics-port", str(METRICS_PORT), "--metrics-address", "0.0.0.0"),  # noqa: S104
        *("--slots-per-host", str(plan.slots), "--name", plan.name),
        *map(_literal, (*plan.driver_flags, *plan.command)),
    ]
    container = {
        **_container("driver", plan, command),
        "ports": [_port("driver", DRIVER_PORT), _port("health", HEALTH_PORT), _port("metrics", METRICS_PORT)],
        "resources": {"requests": {"cpu": "500m", "memory": "512Mi"}, "limits": {"memory": "2Gi"}},
        "env": _environment(plan, "POD_NAMESPACE", "POD_NAME"),
        "volumeMounts": [_CREDENTIALS_MOUNT],
    }
    secret, _ = plan.secrets
    # The driver cannot be moved without an end of its run: an autoscaler that packs nodes leaves it where it is.
    annotations = {"cluster-autoscaler.kubernetes.io/safe-to-evict": "false"}
    return _template("driver", plan, container, [_credentials(secret, DRIVER_FILE)], annotations)


def agent_pod(plan: RunSpec, restart_policy: str = "Never") -> Manifest:
    """The template of an agent's pod."""
    command = [
        *("edriver", "agent", "--driver", f"{plan.driver}:{DRIVER_PORT}"),
        *("--credentials", f"{CREDENTIALS_FOLDER}/{AGENT_FILE}", "--host", "$(POD_NAME)"),
        *("--slots", str(plan.slots), "--health-port", str(HEALTH_PORT), "--exit-code-if-drained", str(DRAINED)),
        *("--grace", str(AGENT_GRACE)),
    ]
    name = "node" if plan.agents_job == "node" else "agent"
    container = {
        **_container(name, plan, command),
        "ports": [_port("health", HEALTH_PORT)],
        "env": [*_environment(plan, "POD_NAME"), *({"name": n, "value": v} for n, v in plan.environment.items())],
        "volumeMounts": [_CREDENTIALS_MOUNT, {"name": "shm", "mountPath": "/dev/shm"}],  # noqa: S108
    }
    if resources := _resources(plan):
        container["resources"] = resources
    _, secret = plan.secrets
    shared_memory = {"name": "shm", "emptyDir": {"medium": "Memory"}}  # what a DataLoader's processes pass batches by
    return _template("agent", plan, container, [_credentials(secret, AGENT_FILE), shared_memory], {}, restart_policy)


def _template(
    component: str,
    plan: RunSpec,
    container: Manifest,
    volumes: list[Manifest],
    annotations: dict[str, str],
    restart_policy: str = "Never",
) -> Manifest:
    metadata: Manifest = {"labels": plan.labels(component)}
    if annotations:
        metadata["annotations"] = annotations
    spec: Manifest = {
        "serviceAccountName": plan.driver if component == "driver" else "default",
        "automountServiceAccountToken": component == "driver",  # an agent has no business with the API server
        "restartPolicy": restart_policy,
        "terminationGracePeriodSeconds": TERMINATION_GRACE,
        "enableServiceLinks": False,  # a script does not need variables of unrelated services
        "shareProcessNamespace": True,  # the pause container reaps what workers leave, as PID 1
        "securityContext": _pod_security(plan.user),
        "containers": [container],
        "volumes": volumes,
    }
    return {"metadata": metadata, "spec": spec}


def _container(name: str, plan: RunSpec, command: list[str]) -> Manifest:
    def probe(service: str, period: int, failures: int) -> Manifest:
        asked = {"port": HEALTH_PORT, "service": service}
        return {"grpc": asked, "periodSeconds": period, "timeoutSeconds": 5, "failureThreshold": failures}

    security: Manifest = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    return {
        "name": name,
        "image": plan.image,
        "command": command,
        "securityContext": security,
        "startupProbe": probe("liveness", 2, 60),  # an image's first import of gRPC may take long
        "livenessProbe": probe("liveness", 10, 6),
        "readinessProbe": probe("readiness", 5, 1),
        "terminationMessagePolicy": "FallbackToLogsOnError",  # `kubectl describe pod` has the sentence it ended with
    }


def _port(name: str, number: int) -> Manifest:
    return {"name": name, "containerPort": number, "protocol": "TCP"}  # without it, two appliers see two ports


def _environment(plan: RunSpec, *fields: str) -> list[Manifest]:
    paths = {"POD_NAME": "metadata.name", "POD_NAMESPACE": "metadata.namespace"}
    home = [] if plan.user is None else [{"name": "HOME", "value": "/tmp"}]  # noqa: S108  the user may have no home
    return [*({"name": name, "valueFrom": {"fieldRef": {"fieldPath": paths[name]}}} for name in fields), *home]


def _literal(word: str) -> str:
    """Escape a word so that the kubelet expands nothing in it."""
    return word.replace("$(", "$$(")


def _resources(plan: RunSpec) -> Manifest:
    requests = {name: quantity for name, quantity in (("cpu", plan.cpu), ("memory", plan.memory)) if quantity}
    limits = {"memory": plan.memory} if plan.memory else {}  # no limit of processors: it would throttle a step
    if plan.gpus:
        limits[plan.gpu_resource] = str(plan.gpus)
    return {name: found for name, found in (("requests", requests), ("limits", limits)) if found}


def _pod_security(user: int | None) -> Manifest:
    security: Manifest = {
        "fsGroup": DEFAULT_GROUP if user is None else user,
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    return security if user is None else {**security, "runAsNonRoot": True, "runAsUser": user, "runAsGroup": user}


_CREDENTIALS_MOUNT: Final = {"name": "credentials", "mountPath": CREDENTIALS_FOLDER, "readOnly": True}


def _credentials(secret: str, key: str) -> Manifest:
    # 0400; the kubelet adds the group's right for the pod's fsGroup.
    mounted = {"secretName": secret, "defaultMode": 0o400, "items": [{"key": key, "path": key}]}
    return {"name": "credentials", "secret": mounted}
