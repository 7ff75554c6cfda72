"""What a run on Kubernetes is to be: what was asked for, and what follows from it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final, TypeAlias

Manifest: TypeAlias = dict[str, Any]
"""One object of the Kubernetes API, or a part of one, as YAML writes it."""

DRIVER_PORT, HEALTH_PORT, METRICS_PORT = 7777, 7778, 7779
"""The ports in the pods: the driver's; that of probes, in both kinds of pods; the driver's for Prometheus."""

MAX_NAME_LENGTH: Final = 40
"""Characters of a run's name: a pod's, which begins with it, has 63 at most."""

_NAME: Final = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
_QUANTITY: Final = re.compile(r"\d+(\.\d+)?(m|k|Ki|[MGTPE]i?)?")


class RunSpecError(ValueError):
    """What was asked for cannot be; the message is one sentence for the operator."""


class Kind(StrEnum):
    """What starts the agents' pods."""

    INDEXED_JOB = "indexed-job"
    JOBSET = "jobset"
    STATEFULSET = "statefulset"
    TRAINING_RUNTIME = "training-runtime"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSpec:
    """A run, as its operator wants it.

    Attributes:
        name: the run's name; those of its objects begin with it.
        namespace: where it runs.
        image: the image of all its containers, with edriver and the script.
        kind: what starts the agents' pods.
        np: workers to start with,
        min_np: at least,
        max_np: and at most.
        slots: workers in one pod.
        gpus: GPUs of one agent's pod, by the device plugin's resource.
        gpu_resource: the name of that resource.
        cpu: processors of one agent's pod, as a quantity; empty: not said.
        memory: its memory, as a quantity; empty: not said.
        user: the numeric user of all containers; None: the image's.
        environment: more variables for the agents, which the workers inherit.
        driver_flags: more flags for the driver.
        command: what each worker runs.

    Raises:
        PlanError: it cannot be.
    """

    name: str
    image: str
    np: int
    min_np: int
    max_np: int
    command: tuple[str, ...]
    kind: Kind = Kind.INDEXED_JOB
    namespace: str = "default"
    slots: int = 1
    gpus: int = 0
    gpu_resource: str = "nvidia.com/gpu"
    cpu: str = ""
    memory: str = ""
    user: int | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    driver_flags: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Judge it."""
        for flag, name in (("--name", self.name), ("--namespace", self.namespace)):
            if not _NAME.fullmatch(name) or len(name) > MAX_NAME_LENGTH:
                raise RunSpecError(
                    f"{flag} {name!r}: Kubernetes takes lower-case letters, digits and hyphens, a letter first, and "
                    f"here {MAX_NAME_LENGTH} characters at most"
                )
        if not self.image or any(character.isspace() for character in self.image):
            raise RunSpecError(f"--image {self.image!r} is not an image: give one as in `docker pull`")
        if not 0 < self.min_np <= self.np <= self.max_np:
            raise RunSpecError(f"-np {self.np} must lie between --min-np {self.min_np} and --max-np {self.max_np}")
        if self.slots < 1 or self.gpus < 0:
            raise RunSpecError("--slots must be at least 1, and --gpus at least 0")
        if self.gpus and self.gpus != self.slots:
            raise RunSpecError(
                f"--slots {self.slots} and --gpus {self.gpus}: a worker has one GPU, so leave out --slots"
            )
        for flag, quantity in (("--cpu", self.cpu), ("--memory", self.memory)):
            if quantity and not _QUANTITY.fullmatch(quantity):
                raise RunSpecError(f"{flag} {quantity!r} is not a quantity: give, for example, 4 or 16Gi")
        if not self.command:
            raise RunSpecError("the command is missing: add the program to run at the end, for example python train.py")

    @property
    def hosts(self) -> int:
        """The number of agents' pods with which the run starts."""
        return -(-self.np // self.slots)

    @property
    def min_hosts(self) -> int:
        """With how few it can train."""
        return -(-self.min_np // self.slots)

    @property
    def driver(self) -> str:
        """The name of the driver's Job and Service."""
        return f"{self.name}-driver"

    @property
    def agents(self) -> str:
        """The name of what starts the agents' pods."""
        return f"{self.name}-agents"

    @property
    def agents_job(self) -> str:
        """The name of the agents' job within a JobSet. The Trainer finds its training job by the container's name."""
        return "node" if self.kind is Kind.TRAINING_RUNTIME else "agent"

    @property
    def target(self) -> str:
        """What the driver watches and scales, as in `edriver --kubernetes TARGET`."""
        match self.kind:
            case Kind.INDEXED_JOB:
                return f"job/{self.agents}"
            case Kind.STATEFULSET:
                return f"statefulset/{self.agents}"
        return f"jobset/{self.name}/{self.agents_job}"

    @property
    def secrets(self) -> tuple[str, str]:
        """The names of the Secrets with the credentials of the driver and of its agents."""
        return f"{self.name}-driver", f"{self.name}-agent"

    def labels(self, component: str = "") -> dict[str, str]:
        """The recommended labels of the run's objects, or of one component's."""
        found = {"app.kubernetes.io/name": "edriver", "app.kubernetes.io/instance": self.name}
        return {**found, "app.kubernetes.io/component": component} if component else found

    def metadata(self, name: str, component: str = "") -> Manifest:
        """The metadata of an object of the run."""
        return {"name": name, "namespace": self.namespace, "labels": self.labels(component)}
