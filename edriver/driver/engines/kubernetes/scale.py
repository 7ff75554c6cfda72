"""The number of agents' pods, at the object that starts them."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any, Final

from kubernetes.aio import client

from edriver.driver.engines.kubernetes.api import REQUEST_TIMEOUT, body_of
from edriver.driver.engines.kubernetes.target import Target

JOBSETS: Final = ("jobset.x-k8s.io", "v1alpha2")

_BOUND: Final[dict[str, Any]] = {"_request_timeout": REQUEST_TIMEOUT}
_MERGE: Final[dict[str, Any]] = {"_content_type": "application/merge-patch+json", "_request_timeout": REQUEST_TIMEOUT}
_JSON: Final[dict[str, Any]] = {"_content_type": "application/json-patch+json", "_request_timeout": REQUEST_TIMEOUT}


class ScaleClient:
    """Reads and changes it. Answers are read as they are: the client's models refuse what a newer server may say.

    Args:
        api: a client of the API server.
        namespace: where the object is.
        target: the object.
    """

    def __init__(self, api: client.ApiClient, namespace: str, target: Target) -> None:
        self._namespace = namespace
        self._target = target
        self._batch = client.BatchV1Api(api)
        self._apps = client.AppsV1Api(api)
        self._custom = client.CustomObjectsApi(api)

    async def read(self) -> int:
        """The requested number of pods.

        Raises:
            ApiException: the API server refuses; others of api.TROUBLE: it cannot be reached.
        """
        name, where = self._target.name, self._namespace
        match self._target.kind:
            case "statefulset":
                read = self._apps.read_namespaced_stateful_set_scale_without_preload_content
                return int((await body_of(await read(name, where, **_BOUND)))["spec"].get("replicas", 0))
            case "job":
                job = name
            case _:
                job = self._child
        found = await self._batch.read_namespaced_job_without_preload_content(job, where, **_BOUND)
        return int((await body_of(found))["spec"].get("parallelism", 0))

    async def write(self, size: int) -> None:
        """Ask for so many.

        Raises:
            ApiException: the API server refuses; others of api.TROUBLE: it cannot be reached.
        """
        name, where = self._target.name, self._namespace
        match self._target.kind:
            case "statefulset":
                body: Any = {"spec": {"replicas": size}}
                patch = self._apps.patch_namespaced_stateful_set_scale_without_preload_content
                await body_of(await patch(name, where, body, **_MERGE))
            case "job":
                await self._write_job(name, size)
            case _:
                await self._write_jobset(size)

    async def _write_job(self, name: str, size: int) -> None:
        """An elastic indexed Job takes a new size if both numbers change together."""
        body = {"spec": {"parallelism": size, "completions": size}}
        patch = self._batch.patch_namespaced_job_without_preload_content
        await body_of(await patch(name, self._namespace, body, **_MERGE))

    async def _write_jobset(self, size: int) -> None:
        """A JobSet is elastic from the feature gate ElasticJobSet on. Without it, its template is immutable, and the
        Job that it has made is resized directly.
        """
        target, where = self._target, self._namespace
        read = self._custom.get_namespaced_custom_object_without_preload_content
        found = await body_of(await read(*JOBSETS, where, "jobsets", target.name, **_BOUND))
        jobs = [each["name"] for each in found["spec"]["replicatedJobs"]]
        path = f"/spec/replicatedJobs/{jobs.index(target.job)}"
        patch: list[dict[str, Any]] = [
            {"op": "test", "path": f"{path}/name", "value": target.job},
            {"op": "replace", "path": f"{path}/template/spec/parallelism", "value": size},
            {"op": "replace", "path": f"{path}/template/spec/completions", "value": size},
        ]
        try:
            write = self._custom.patch_namespaced_custom_object_without_preload_content
            await body_of(await write(*JOBSETS, where, "jobsets", target.name, patch, **_JSON))
        except client.exceptions.ApiException as error:
            if error.status != HTTPStatus.UNPROCESSABLE_ENTITY:
                raise
            await self._write_job(self._child, size)

    @property
    def _child(self) -> str:
        """The Job that a JobSet makes of its job: the first of one replica."""
        return f"{self._target.name}-{self._target.job}-0"
