"""All objects of a run in their order, as one YAML stream, or as a base for kustomize."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import yaml

from edriver.driver.engines.kubernetes import access
from edriver.driver.engines.kubernetes.plan import Manifest, RunSpec
from edriver.driver.engines.kubernetes.pods import AGENT_FILE, DRIVER_FILE
from edriver.driver.engines.kubernetes.workloads import workloads
from edriver.system.private_files import make_private

RESOURCES_FILE = "resources.yaml"


def objects(plan: RunSpec, *, watch_nodes: bool = False) -> list[Manifest]:
    """All objects of a run but its Secrets, in the order in which they are applied."""
    nodes = access.node_rights(plan) if watch_nodes else []
    return [*access.rights(plan), *nodes, access.service(plan), *access.disruption_budget(plan), *workloads(plan)]


def manifest(plan: RunSpec, driver: bytes, agent: bytes, *, watch_nodes: bool = False) -> str:
    """All objects, with the run's credentials, as `kubectl apply -f -` reads them."""
    return _yaml([*access.secrets(plan, driver, agent), *objects(plan, watch_nodes=watch_nodes)])


def write_kustomize_base(
    plan: RunSpec, folder: Path, driver: bytes, agent: bytes, *, watch_nodes: bool = False
) -> None:
    """Write a base for kustomize: the same objects, with the credentials in separate files for this user alone.

    Raises:
        OSError: a file cannot be written, or exists already.
    """
    names = dict(zip(plan.secrets, (DRIVER_FILE, AGENT_FILE), strict=True))
    kustomization = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "namespace": plan.namespace,
        "resources": [RESOURCES_FILE],
        "secretGenerator": [{"name": name, "files": [file], "type": "Opaque"} for name, file in names.items()],
        # The driver's Role knows the agents' Secret by its name.
        "generatorOptions": {"disableNameSuffixHash": True, "labels": plan.labels()},
    }
    files = {
        RESOURCES_FILE: _yaml(objects(plan, watch_nodes=watch_nodes)).encode(),
        "kustomization.yaml": _yaml([kustomization]).encode(),
        DRIVER_FILE: driver,
        AGENT_FILE: agent,
    }
    make_private(folder)
    for name, content in files.items():
        mode = 0o600 if name in (DRIVER_FILE, AGENT_FILE) else 0o644
        with os.fdopen(os.open(folder / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
            file.write(content)


def _yaml(documents: Sequence[Manifest]) -> str:
    class Plain(yaml.SafeDumper):
        """Writes what occurs twice twice: an anchor helps no reader."""

        def ignore_aliases(self, _data: object) -> bool:
            return True

    return yaml.dump_all(documents, Dumper=Plain, sort_keys=False, explicit_start=True, width=120)
