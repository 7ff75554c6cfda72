"""A fake cluster around the fake API server: its pods are real processes of this machine.

Of the controllers it has the parts that a run meets: an indexed Job's (also within a JobSet), which counts completed
indexes and replaces failed pods, a StatefulSet's, and a kubelet that starts containers, sends SIGTERM, and reports how
they ended.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import copy
import itertools
import os
import signal
import sys
import threading
from asyncio.subprocess import Process
from collections.abc import Coroutine, Iterator
from pathlib import Path
from typing import Any, TypeVar

import yaml
from aiohttp import web
from kubernetes.client import ApiClient, Configuration, CoreV1Api, V1Eviction, V1ObjectMeta

from tests.engines.kubernetes.fake_api import ADMINISTRATOR, FakeApi, Object
from tests.process.running import BOUND, ROOT, Run

Answer = TypeVar("Answer")
INDEX = "batch.kubernetes.io/job-completion-index"
NODE = "node-1"


class FakeCluster:
    """A cluster to which a manifest was applied. Its methods are for the thread of the test.

    Args:
        manifest: what `edriver kubernetes manifest` has printed.
        folder: for files of its pods.
        driver_port: where the driver will listen.
        environ: more variables for the pods.
    """

    def __init__(self, manifest: str, folder: Path, driver_port: int, environ: dict[str, str]) -> None:
        self.objects = list(yaml.safe_load_all(manifest))
        self.folder = folder
        self.driver_port = driver_port
        self.output = folder / "pods.log"
        self._environ = environ
        rules = [rule for each in self.objects if each["kind"] in ("Role", "ClusterRole") for rule in each["rules"]]
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self.api = self.call(self._make(rules))
        self._processes: dict[str, Process] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._numbers = itertools.count(1)
        self._runner: web.AppRunner | None = None
        self._port = 0
        self._closed = False
        self.call(self._start_api())
        self.kubeconfig.write_text(kubeconfig_text(self._port))
        self.call(self._apply())

    def call(self, what: Coroutine[Any, Any, Answer]) -> Answer:
        """Run something in the cluster's event loop."""
        return asyncio.run_coroutine_threadsafe(what, self._loop).result(BOUND)

    @property
    def kubeconfig(self) -> Path:
        return self.folder / "kubeconfig"

    def pods(self) -> list[Object]:
        async def read() -> list[Object]:
            return self.api.all("pods")

        return self.call(read())

    def stop_api(self) -> None:
        """The API server is gone; pods go on."""
        self.call(self._stop_api())

    def start_api(self) -> None:
        self.call(self._start_api())

    async def start_late(self, name: str) -> None:
        """A pod that was created before its Job became smaller, and is started only now."""
        job = self.api.get("jobs", "train-agents")
        await self._create(name, job["spec"]["template"], {"batch.kubernetes.io/job-name": "another"})

    async def start_twice(self, name: str) -> None:
        """A second container with the name of a pod."""
        (container,) = self.api.get("pods", name)["spec"]["containers"]
        process = await self._start_container(name, container)
        self._processes[f"{name} (second)"] = process

    def evict(self, name: str) -> None:
        """Evict a pod as `kubectl drain` does: a condition, a deletion timestamp, SIGTERM."""
        host = f"http://127.0.0.1:{self._port}"
        administrator = Configuration(host=host, api_key={"authorization": f"Bearer {ADMINISTRATOR}"})
        with ApiClient(administrator) as api:
            eviction = V1Eviction(metadata=V1ObjectMeta(name=name))
            CoreV1Api(api).create_namespaced_pod_eviction(name, "default", eviction)

    def kill(self, name: str) -> None:
        """The container of a pod is killed, with all its processes."""

        async def kill() -> None:
            os.killpg(self._processes[name].pid, signal.SIGKILL)

        self.call(kill())

    def cordon(self) -> None:
        self.call(self.api.put("nodes", {"metadata": {"name": NODE}, "spec": {"unschedulable": True}}))

    def close(self) -> None:
        self._closed = True
        self.call(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(BOUND)
        self._loop.close()

    # The API server.

    async def _make(self, rules: list[Object]) -> FakeApi:
        api = FakeApi(rules)
        api.changed = lambda _: self._later(self._reconcile())
        api.evict = lambda name: self._later(self._delete_pod(name, evicted=True))
        return api

    async def _start_api(self) -> None:
        self._runner = web.AppRunner(self.api.app(), shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", self._port)
        await site.start()
        self._port = self._runner.addresses[0][1]

    async def _stop_api(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    async def _apply(self) -> None:
        plural = {"Job": "jobs", "StatefulSet": "statefulsets", "JobSet": "jobsets", "Secret": "secrets"}
        await self.api.put("nodes", {"metadata": {"name": NODE}, "spec": {}})
        for each in self.objects:
            if each["kind"] in plural and not each["metadata"]["name"].endswith("-driver"):
                await self.api.put(plural[each["kind"]], each)
        await self._reconcile()

    def _later(self, what: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(what)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # The controllers.

    async def _reconcile(self) -> None:
        if self._closed:
            return
        for jobset in self.api.all("jobsets"):
            for job in jobset["spec"]["replicatedJobs"]:
                if job["name"] != "driver":
                    await self._reconcile_child(jobset["metadata"]["name"], job)
        for job in self.api.all("jobs"):
            await self._reconcile_job(job)
        for each in self.api.all("statefulsets"):
            await self._reconcile_stateful_set(each)

    async def _reconcile_child(self, jobset: str, job: Object) -> None:
        """The Job that a JobSet makes; its size follows the JobSet's, as with the feature gate ElasticJobSet."""
        child = copy.deepcopy(job["template"])
        child["spec"]["template"]["metadata"]["labels"] |= {
            "jobset.sigs.k8s.io/jobset-name": jobset,
            "jobset.sigs.k8s.io/replicatedjob-name": job["name"],
        }
        await self.api.put("jobs", {**child, "metadata": {"name": f"{jobset}-{job['name']}-0"}})

    async def _reconcile_job(self, job: Object) -> None:
        name, spec = job["metadata"]["name"], job["spec"]
        assert spec["parallelism"] == spec["completions"], "an elastic indexed Job changes both together"
        own = [
            pod for pod in self.api.all("pods") if pod["metadata"]["labels"].get("batch.kubernetes.io/job-name") == name
        ]
        index_of = {pod["metadata"]["name"]: int(pod["metadata"]["labels"][INDEX]) for pod in own}
        taken = {index_of[pod["metadata"]["name"]] for pod in own if pod["status"]["phase"] != "Failed"}
        for index in sorted(set(range(spec["completions"])) - taken):
            labels = {"batch.kubernetes.io/job-name": name, INDEX: str(index)}
            await self._create(f"{name}-{index}-{next(self._numbers):05d}", spec["template"], labels)
        for pod in own:
            if index_of[pod["metadata"]["name"]] >= spec["completions"] and pod["status"]["phase"] == "Running":
                await self._delete_pod(pod["metadata"]["name"])

    async def _reconcile_stateful_set(self, found: Object) -> None:
        name, spec = found["metadata"]["name"], found["spec"]
        wanted = {f"{name}-{ordinal}" for ordinal in range(spec["replicas"])}
        there = {pod["metadata"]["name"] for pod in self.api.all("pods") if pod["metadata"]["name"].startswith(name)}
        for pod in sorted(wanted - there):
            await self._create(pod, spec["template"], {})
        for pod in sorted(there - wanted):
            await self._delete_pod(pod)

    async def _create(self, name: str, template: Object, labels: dict[str, str]) -> None:
        pod = {
            "metadata": {"name": name, "labels": {**template["metadata"]["labels"], **labels}},
            "spec": {**template["spec"], "nodeName": NODE},
            "status": {"phase": "Pending"},
        }
        await self.api.put("pods", pod)
        self._later(self._run_pod(pod))

    async def _delete_pod(self, name: str, *, evicted: bool = False) -> None:
        with contextlib.suppress(KeyError):
            pod = self.api.get("pods", name)
            if pod["metadata"].get("deletionTimestamp"):
                return
            pod["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
            if evicted:
                condition = {"type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI"}
                pod["status"]["conditions"] = [condition]
            await self.api.put("pods", pod)
            if process := self._processes.get(name):
                with contextlib.suppress(ProcessLookupError):
                    process.send_signal(signal.SIGTERM)

    # The kubelet.

    async def _run_pod(self, pod: Object) -> None:
        name = pod["metadata"]["name"]
        (container,) = pod["spec"]["containers"]
        code = 0
        while True:
            if "missing" in container["image"]:
                waiting = {"reason": "ImagePullBackOff", "message": f"Back-off pulling image {container['image']!r}"}
                status = {"image": container["image"], "state": {"waiting": waiting}}
                await self._update(name, {"phase": "Pending", "containerStatuses": [status]})
                return
            process = self._processes[name] = await self._start_container(name, container)
            await self._update(name, {"phase": "Running", "containerStatuses": [{"state": {"running": {}}}]})
            code = await process.wait()
            del self._processes[name]
            deleted = "deletionTimestamp" in self.api.get("pods", name)["metadata"]
            if pod["spec"]["restartPolicy"] != "Always" or deleted or self._closed:
                break
        ended = {"state": {"terminated": {"exitCode": code, "reason": "Completed" if code == 0 else "Error"}}}
        await self._update(name, {"phase": "Failed" if code else "Succeeded", "containerStatuses": [ended]})
        if deleted:
            await self.api.delete("pods", name)
        await self._reconcile()

    async def _update(self, name: str, status: Object) -> None:
        pod = self.api.get("pods", name)
        pod["status"].update(status)
        await self.api.put("pods", pod)

    async def _start_container(self, name: str, container: Object) -> Process:
        (secret,) = (each for each in self.api.all("secrets") if each["metadata"]["name"].endswith("-agent"))
        credentials = self.folder / f"{name}.json"
        credentials.write_bytes(base64.b64decode(secret["data"]["agent.json"]))
        credentials.chmod(0o600)
        command = agent_words(container["command"], name, credentials, self.driver_port)
        environ = {**os.environ, "PYTHONPATH": str(ROOT), **self._environ}
        with self.output.open("ab") as output:
            return await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "edriver",
                *command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=environ,
                start_new_session=True,
            )

    async def _close(self) -> None:
        for process in self._processes.values():
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        await asyncio.gather(*(process.wait() for process in list(self._processes.values())))
        await self._stop_api()
        left = asyncio.all_tasks() - {asyncio.current_task()}  # answers that are under way, too
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)


def kubeconfig_text(port: int) -> str:
    """A file with which the driver reaches the API server at a port of this machine."""
    found = {
        "clusters": [{"name": "fake", "cluster": {"server": f"http://127.0.0.1:{port}"}}],
        "users": [{"name": "driver", "user": {"token": "driver"}}],
        "contexts": [{"name": "fake", "context": {"cluster": "fake", "user": "driver"}}],
        "current-context": "fake",
    }
    return yaml.safe_dump(found)


def agent_words(command: list[str], pod: str, credentials: Path, driver_port: int) -> list[str]:
    """An agent's command line of the manifest, with this machine's files and ports."""
    driver = next(word for word in command if word.endswith("-driver:7777"))
    words = {"$(POD_NAME)": pod, "/etc/edriver/agent.json": str(credentials), driver: f"127.0.0.1:{driver_port}"}
    words["7778"] = "0"  # pods share this machine's ports
    return [words.get(word, word) for word in command[1:]]


@contextlib.contextmanager
def applied(
    manifest: str, folder: Path, environ: dict[str, str], *, wrong_port: bool = False
) -> Iterator[tuple[FakeCluster, Run]]:
    """A manifest applied to a fake cluster, and its driver, which runs beside it as its pod would."""
    from tests.process.running import free_ports, running

    port, another = free_ports(2)
    cluster = FakeCluster(manifest, folder, another if wrong_port else port, environ)
    try:
        with running(driver_words(cluster, port), folder, {"KUBECONFIG": str(cluster.kubeconfig), **environ}) as run:
            try:
                yield cluster, run
            except AssertionError as error:
                error.add_note(f"pods:\n{cluster.output.read_text()}")
                raise
    finally:
        cluster.close()


def driver_words(cluster: FakeCluster, port: int) -> list[str]:
    """The driver's command line of the manifest, with this machine's files and ports."""
    secret = next(each for each in cluster.objects if each["kind"] == "Secret" and "driver.json" in each["data"])
    credentials = cluster.folder / "driver.json"
    credentials.write_bytes(base64.b64decode(secret["data"]["driver.json"]))
    words = {"/etc/edriver/driver.json": str(credentials), "7777": str(port), "7778": "0", "7779": "0"}
    words["0.0.0.0"] = "127.0.0.1"
    return [words.get(word, word) for word in _driver_container(cluster.objects)["command"][1:]]


def _driver_container(part: Any) -> Any:
    if isinstance(part, dict):
        if part.get("name") == "driver" and "command" in part:
            return part
        part = list(part.values())
    if isinstance(part, list):
        return next(filter(None, map(_driver_container, part)), None)
    return None
