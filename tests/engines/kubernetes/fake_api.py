"""A fake API server: as much of Kubernetes' HTTP protocol as edriver uses, spoken over real HTTP to the real client.

List and watch with resource versions, label selectors, bookmarks and 410 Gone; get, merge patch and JSON patch; the
scale of a StatefulSet; evictions; and rights by the rules of a Role. It stores objects and knows nothing of what they
mean: `fake_cluster.py` has the controllers and the kubelet.
"""

from __future__ import annotations

import asyncio
import copy
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web

Object = dict[str, Any]

BOOKMARK_INTERVAL = 0.5
"""Seconds between two bookmarks; a real server's is about a minute."""

ADMINISTRATOR = "administrator"
"""The token of those who evict pods, such as `kubectl drain`; all other callers have the driver's rights."""

GROUPS = {"pods": "", "nodes": "", "secrets": "", "jobs": "batch", "statefulsets": "apps", "jobsets": "jobset.x-k8s.io"}


class RefusalError(Exception):
    """An answer that is an error."""

    def __init__(self, code: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.status = {"kind": "Status", "status": "Failure", "code": code, "reason": reason, "message": message}
        self.code = code


def merge(into: Object, patch: Object) -> None:
    """RFC 7386."""
    for key, value in patch.items():
        if value is None:
            into.pop(key, None)
        elif isinstance(value, dict) and isinstance(into.get(key), dict):
            merge(into[key], value)
        else:
            into[key] = value


def json_patch(into: Any, operations: list[Object]) -> None:
    """RFC 6902: test and replace."""
    for each in operations:
        *path, last = each["path"].strip("/").split("/")
        at = into
        for word in path:
            at = at[int(word)] if isinstance(at, list) else at[word]
        key: Any = int(last) if isinstance(at, list) else last
        if each["op"] == "test":
            if at[key] != each["value"]:
                raise RefusalError(422, "Invalid", f"test of {each['path']} failed")
        elif each["op"] == "replace":
            at[key] = each["value"]
        else:
            raise RefusalError(400, "BadRequest", f"this fake knows no {each['op']}")


def matches(labels: dict[str, str], selector: str) -> bool:
    return all(
        labels.get(key) == value for key, _, value in (each.partition("=") for each in selector.split(",") if each)
    )


class FakeApi:
    """The objects, and their history.

    Attributes:
        rules: what the caller may do: the rules of a Role.
        asked: what was asked for: (verb, resource, name), in order.
        quota: the message with which a larger scale is refused; empty: it is not.
        changed: called, in the event loop, with a resource that a caller has changed.
        before_patch: called with a resource before it is changed; may raise RefusalError.
    """

    def __init__(self, rules: list[Object]) -> None:
        self.rules = rules
        self.asked: list[tuple[str, str, str]] = []
        self.quota = ""
        self.changed: Callable[[str], None] = lambda _: None
        self.before_patch: Callable[[str], None] = lambda _: None
        self.evict: Callable[[str], None] = lambda _: None
        self._objects: dict[str, dict[str, Object]] = {resource: {} for resource in GROUPS}
        self._history: list[tuple[int, str, str, Object]] = []
        self._version = 100
        self._oldest = 0
        self._news = asyncio.Condition()

    # The storage.

    def all(self, resource: str) -> list[Object]:
        return [copy.deepcopy(each) for each in self._objects[resource].values()]

    def get(self, resource: str, name: str) -> Object:
        return copy.deepcopy(self._objects[resource][name])

    async def put(self, resource: str, found: Object) -> None:
        """Create an object, or replace it."""
        name = found["metadata"]["name"]
        known = name in self._objects[resource]
        self._objects[resource][name] = copy.deepcopy(found)
        await self._note(resource, "MODIFIED" if known else "ADDED", self._objects[resource][name])

    async def delete(self, resource: str, name: str) -> None:
        if found := self._objects[resource].pop(name, None):
            await self._note(resource, "DELETED", found)

    async def forget_history(self) -> None:
        """All that happened is too old for a watch from now on: 410 Gone."""
        async with self._news:
            self._version += 1
            self._oldest = self._version
            self._history.clear()
            self._news.notify_all()

    async def _note(self, resource: str, kind: str, found: Object) -> None:
        async with self._news:
            self._version += 1
            found["metadata"]["resourceVersion"] = str(self._version)
            self._history.append((self._version, resource, kind, copy.deepcopy(found)))
            self._news.notify_all()

    # HTTP.

    def app(self) -> web.Application:
        app = web.Application()
        for prefix, resource in (
            ("/api/v1/namespaces/{ns}", "pods"),
            ("/api/v1", "nodes"),
            ("/api/v1/namespaces/{ns}", "secrets"),
            ("/apis/batch/v1/namespaces/{ns}", "jobs"),
            ("/apis/apps/v1/namespaces/{ns}", "statefulsets"),
            ("/apis/jobset.x-k8s.io/v1alpha2/namespaces/{ns}", "jobsets"),
        ):
            where = f"{prefix}/{resource}"
            app.router.add_get(where, self._answering(self._list, resource))
            app.router.add_get(f"{where}/{{name}}", self._answering(self._get, resource))
            app.router.add_patch(f"{where}/{{name}}", self._answering(self._patch, resource))
        scale = "/apis/apps/v1/namespaces/{ns}/statefulsets/{name}/scale"
        app.router.add_get(scale, self._answering(self._get_scale, "statefulsets/scale"))
        app.router.add_patch(scale, self._answering(self._patch_scale, "statefulsets/scale"))
        app.router.add_post(
            "/api/v1/namespaces/{ns}/pods/{name}/eviction", self._answering(self._evict, "pods/eviction")
        )
        return app

    def _answering(self, handler: Callable[..., Any], resource: str) -> Callable[..., Any]:
        async def answer(request: web.Request) -> web.StreamResponse:
            try:
                found: web.StreamResponse = await handler(request, resource)
            except RefusalError as refusal:
                return web.json_response(refusal.status, status=refusal.code)
            return found

        return answer

    def _check(self, verb: str, resource: str, name: str) -> None:
        self.asked.append((verb, resource, name))
        group = GROUPS[resource.partition("/")[0]]
        for rule in self.rules:
            named = rule.get("resourceNames", [name])
            if group in rule["apiGroups"] and resource in rule["resources"] and verb in rule["verbs"] and name in named:
                return
        raise RefusalError(403, "Forbidden", f'{resource} "{name}" is forbidden: User "driver" cannot {verb} resource')

    def _find(self, resource: str, request: web.Request) -> Object:
        name = request.match_info["name"]
        if name not in self._objects[resource]:
            raise RefusalError(404, "NotFound", f'{resource} "{name}" not found')
        return self._objects[resource][name]

    async def _list(self, request: web.Request, resource: str) -> web.StreamResponse:
        selector = request.query.get("labelSelector", "")
        watched = request.query.get("watch", "").lower() == "true"
        self._check("watch" if watched else "list", resource, "")
        if watched:
            return await self._watch(request, resource, selector)
        name = request.query.get("fieldSelector", "").removeprefix("metadata.name=")
        items = [
            each
            for each in self.all(resource)
            if matches(each["metadata"].get("labels", {}), selector) and name in ("", each["metadata"]["name"])
        ]
        return web.json_response({"kind": "List", "metadata": {"resourceVersion": str(self._version)}, "items": items})

    async def _watch(self, request: web.Request, resource: str, selector: str) -> web.StreamResponse:
        loop = asyncio.get_running_loop()
        seen, until = int(request.query["resourceVersion"]), loop.time() + int(request.query["timeoutSeconds"])
        stream = web.StreamResponse(headers={"Content-Type": "application/json"})
        await stream.prepare(request)

        async def send(kind: str, found: Object) -> None:
            if request.transport is None or request.transport.is_closing():
                raise asyncio.CancelledError
            await stream.write(json.dumps({"type": kind, "object": found}).encode() + b"\n")

        while loop.time() < until:
            if seen < self._oldest:
                await send(
                    "ERROR", RefusalError(410, "Expired", f"too old resource version: {seen} ({self._oldest})").status
                )
                break
            for version, of, kind, found in [each for each in self._history if each[0] > seen]:
                if of == resource and matches(found["metadata"].get("labels", {}), selector):
                    await send(kind, found)
                seen = version
            async with self._news:
                if self._version <= seen:
                    try:
                        await asyncio.wait_for(self._news.wait(), BOOKMARK_INTERVAL)
                    except TimeoutError:
                        await send("BOOKMARK", {"metadata": {"resourceVersion": str(seen)}})
        return stream

    async def _get(self, request: web.Request, resource: str) -> web.StreamResponse:
        self._check("get", resource, request.match_info["name"])
        return web.json_response(self._find(resource, request))

    async def _patch(self, request: web.Request, resource: str) -> web.StreamResponse:
        self._check("patch", resource, request.match_info["name"])
        found = copy.deepcopy(self._find(resource, request))
        self.before_patch(resource)
        patch = await request.json()
        if isinstance(patch, list):
            json_patch(found, patch)
        else:
            merge(found, patch)
        if self.quota and resource in ("jobs", "jobsets"):
            raise RefusalError(403, "Forbidden", self.quota)
        await self.put(resource, found)
        self.changed(resource)
        return web.json_response(found)

    async def _get_scale(self, request: web.Request, resource: str) -> web.StreamResponse:
        self._check("get", resource, request.match_info["name"])
        return web.json_response(self._scale(self._find("statefulsets", request)))

    async def _patch_scale(self, request: web.Request, resource: str) -> web.StreamResponse:
        self._check("patch", resource, request.match_info["name"])
        found = copy.deepcopy(self._find("statefulsets", request))
        found["spec"]["replicas"] = (await request.json())["spec"]["replicas"]
        await self.put("statefulsets", found)
        self.changed("statefulsets")
        return web.json_response(self._scale(found))

    @staticmethod
    def _scale(found: Object) -> Object:
        spec = {"replicas": found["spec"]["replicas"]}
        return {
            "kind": "Scale",
            "apiVersion": "autoscaling/v1",
            "metadata": {"name": found["metadata"]["name"]},
            "spec": spec,
        }

    async def _evict(self, request: web.Request, resource: str) -> web.StreamResponse:
        name = request.match_info["name"]
        if request.headers.get("Authorization") != f"Bearer {ADMINISTRATOR}":
            raise RefusalError(403, "Forbidden", f'{resource} "{name}" is forbidden: the run evicts nothing')
        self._find("pods", request)
        self.evict(name)
        return web.json_response({"kind": "Status", "status": "Success"}, status=201)


@asynccontextmanager
async def serving(api: FakeApi) -> AsyncIterator[str]:
    """Serve it in this event loop; gives its URL."""
    runner = web.AppRunner(api.app(), shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()
