"""What starts the pods: Jobs, a JobSet, a StatefulSet, or a TrainingRuntime of Kubeflow Trainer with its TrainJob."""

from __future__ import annotations

from typing import Final

from edriver.driver.engines.kubernetes.plan import Kind, Manifest, RunSpec
from edriver.driver.engines.kubernetes.pods import DRAINED, agent_pod, driver_pod

MAX_RESTARTS: Final = 3
"""How often a driver that was lost, not one whose run has failed, is started again."""

MAX_INDEX_FAILURES: Final = 1000
"""How often one agent's pod may fail and be replaced: the driver decides when there are too few, not the Job."""

_DISRUPTION: Final = {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}
"""A pod that was evicted, preempted, or on a drained or lost node has not failed."""

INVALID_FLAGS, RUN_FAILED = 2, 1
"""Exit codes after which nothing gets better by another start."""

JOBSET_API: Final = "jobset.x-k8s.io/v1alpha2"
TRAINER_API: Final = "trainer.kubeflow.org/v1alpha1"


def workloads(plan: RunSpec) -> list[Manifest]:
    """The objects that start the run's pods."""
    match plan.kind:
        case Kind.INDEXED_JOB:
            # Agents that ended with this driver have completed their indexes: another driver would wait in vain.
            driver = _job(plan, plan.driver, "driver", _driver_job(plan, restarts=0))
            return [_job(plan, plan.agents, "agent", _agents_job(plan)), driver]
        case Kind.STATEFULSET:
            driver = _job(plan, plan.driver, "driver", _driver_job(plan, restarts=MAX_RESTARTS))
            return [_headless(plan), _stateful_set(plan), driver]
        case Kind.JOBSET:
            return [_object(JOBSET_API, "JobSet", plan, {"replicatedJobs": _replicated(plan), **_policies()})]
        case Kind.TRAINING_RUNTIME:
            return [_training_runtime(plan), _train_job(plan)]


def _object(api: str, kind: str, plan: RunSpec, spec: Manifest, name: str = "", component: str = "") -> Manifest:
    return {"apiVersion": api, "kind": kind, "metadata": plan.metadata(name or plan.name, component), "spec": spec}


def _job(plan: RunSpec, name: str, component: str, spec: Manifest) -> Manifest:
    return _object("batch/v1", "Job", plan, spec, name, component)


def _driver_job(plan: RunSpec, restarts: int) -> Manifest:
    fatal = {"containerName": "driver", "operator": "In", "values": [RUN_FAILED, INVALID_FLAGS]}
    rules: list[Manifest] = [{"action": "FailJob", "onExitCodes": fatal}]
    if restarts:
        rules.append(_DISRUPTION)
    # One at a time: a second driver would be another run with the same credentials.
    single = {"parallelism": 1, "completions": 1, "podReplacementPolicy": "Failed"}
    policy = {"backoffLimit": restarts, "podFailurePolicy": {"rules": rules}}
    return {**single, **policy, "template": driver_pod(plan)}


def _agents_job(plan: RunSpec) -> Manifest:
    name = agent_pod(plan)["spec"]["containers"][0]["name"]

    def rule(action: str, code: int) -> Manifest:
        return {"action": action, "onExitCodes": {"containerName": name, "operator": "In", "values": [code]}}

    return {
        "completionMode": "Indexed",
        "parallelism": plan.hosts,
        "completions": plan.hosts,  # both change together: an elastic indexed Job
        "backoffLimitPerIndex": MAX_INDEX_FAILURES,
        "podFailurePolicy": {"rules": [rule("FailIndex", INVALID_FLAGS), rule("Ignore", DRAINED), _DISRUPTION]},
        "podReplacementPolicy": "Failed",
        "template": agent_pod(plan),
    }


def _stateful_set(plan: RunSpec) -> Manifest:
    spec = {
        "replicas": plan.hosts,
        "serviceName": plan.agents,
        "podManagementPolicy": "Parallel",
        "selector": {"matchLabels": plan.labels("agent")},
        "template": agent_pod(plan, restart_policy="Always"),
    }
    return _object("apps/v1", "StatefulSet", plan, spec, plan.agents, "agent")


def _headless(plan: RunSpec) -> Manifest:
    """The Service that a StatefulSet names its pods in."""
    spec = {"clusterIP": "None", "selector": plan.labels("agent"), "publishNotReadyAddresses": True}
    return _object("v1", "Service", plan, spec, plan.agents, "agent")


def _replicated(plan: RunSpec) -> list[Manifest]:
    """The two jobs of a JobSet."""
    agents: Manifest = {"spec": _agents_job(plan)}
    if plan.kind is Kind.TRAINING_RUNTIME:  # by which the Trainer knows the job that it sizes
        agents = {"metadata": {"labels": {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}}, **agents}
    return [
        {"name": "driver", "replicas": 1, "template": {"spec": _driver_job(plan, restarts=0)}},
        {"name": plan.agents_job, "replicas": 1, "template": agents},
    ]


def _policies() -> Manifest:
    """A JobSet succeeds with its driver, and starts again if that was lost; a run that has failed stays so."""
    failed = {
        "name": "run_failed",
        "action": "FailJobSet",
        "targetReplicatedJobs": ["driver"],
        "onJobFailureReasons": ["PodFailurePolicy"],
    }
    return {
        "successPolicy": {"operator": "All", "targetReplicatedJobs": ["driver"]},
        "failurePolicy": {"maxRestarts": MAX_RESTARTS, "rules": [failed]},
    }


def _training_runtime(plan: RunSpec) -> Manifest:
    template = {"spec": {"replicatedJobs": _replicated(plan), **_policies()}}
    spec = {"mlPolicy": {"numNodes": plan.hosts}, "template": template}
    return _object(TRAINER_API, "TrainingRuntime", plan, spec)


def _train_job(plan: RunSpec) -> Manifest:
    reference = {"apiGroup": "trainer.kubeflow.org", "kind": "TrainingRuntime", "name": plan.name}
    return _object(TRAINER_API, "TrainJob", plan, {"runtimeRef": reference, "trainer": {"numNodes": plan.hosts}})
