"""Objects of one kind, as the API server has them: listed, then watched, and listed again if that is too old.

https://kubernetes.io/docs/reference/using-api/api-concepts/#efficient-detection-of-changes
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Any, Final

import tenacity
from kubernetes.aio import client
from kubernetes.aio.watch import Watch

from edriver.driver.engines.kubernetes.api import REQUEST_TIMEOUT, TROUBLE, body_of, sentence

_log = logging.getLogger("edriver.discovery")

WATCH_SECONDS: Final = 60
"""How long one watch lasts: a connection that has died without a word is noticed after that."""

GONE: Final = 410
"""The status of a watch that starts from a version which the API server has forgotten."""


class ObjectWatch:
    """Follows the objects of one kind.

    Args:
        list_objects: the client's method that lists them, in the form that leaves the answer unread.
        what: what it does, for people, as in "list pods".
        changed: called after each change.
        removed: called with each object that is there no more.
        optional: whether a refusal (403) is the operator's choice: then it ends.

    Attributes:
        objects: the objects, by name, as last seen.
    """

    def __init__(
        self,
        list_objects: Callable[..., Awaitable[Any]],
        what: str,
        changed: Callable[[], None] = lambda: None,
        removed: Callable[[dict[str, Any]], None] = lambda _: None,
        *,
        optional: bool = False,
    ) -> None:
        self.objects: dict[str, dict[str, Any]] = {}
        self._list_objects = list_objects
        self._what = what
        self._changed = changed
        self._removed = removed
        self._optional = optional
        self._version: str | None = None
        self._trouble = ""

    async def run(self) -> None:
        """Follow them until cancelled; an API server that is gone is asked again and again, ever more rarely."""
        retrying = tenacity.AsyncRetrying(
            retry=tenacity.retry_if_exception(self._may_pass),
            wait=tenacity.wait_random_exponential(multiplier=0.5, max=15),
            before_sleep=self._note_trouble,
            reraise=True,
        )
        try:
            while True:
                await retrying(self._follow)
        except client.exceptions.ApiException:
            return  # optional, and refused

    def _may_pass(self, error: BaseException) -> bool:
        refused = isinstance(error, client.exceptions.ApiException) and error.status == 403
        return isinstance(error, TROUBLE) and not (refused and self._optional)

    async def _follow(self) -> None:
        """List if need be, then watch until the server ends that."""
        if self._version is None:
            await self._list()
        limits = {"timeout_seconds": WATCH_SECONDS, "_request_timeout": WATCH_SECONDS + REQUEST_TIMEOUT}
        async with Watch(return_type="object") as watch:  # type: ignore[no-untyped-call]
            events = watch.stream(
                self._list_unread, resource_version=self._version, allow_watch_bookmarks=True, **limits
            )
            try:
                async for event in events:
                    self._take(event)
                    self._version = watch.resource_version
            except client.exceptions.ApiException as error:
                if error.status != GONE:
                    raise
                self._version = None
        self._note_answer()

    async def _list_unread(self, **how: Any) -> Any:
        how.pop("_preload_content", None)
        return await self._list_objects(**how)

    async def _list(self) -> None:
        answer = await body_of(await self._list_objects(_request_timeout=REQUEST_TIMEOUT))
        there = {each["metadata"]["name"]: each for each in answer["items"]}
        gone = [each for name, each in self.objects.items() if name not in there]
        self.objects = there
        self._version = answer["metadata"]["resourceVersion"]
        self._note_answer()
        for each in gone:
            self._removed(each)
        self._changed()

    def _take(self, event: Any) -> None:
        if not isinstance(event, dict):
            raise client.exceptions.ApiException(status=502, reason="the watch brought something other than events")
        kind, found = event["type"], event["raw_object"]
        if kind == "BOOKMARK":
            return
        name = found["metadata"]["name"]
        if kind == "DELETED":
            self.objects.pop(name, None)
            self._removed(found)
        else:
            self.objects[name] = found
        self._changed()

    def _note_trouble(self, attempt: tenacity.RetryCallState) -> None:
        error = attempt.outcome.exception() if attempt.outcome else None
        text = sentence(error, self._what) if error else ""
        if text and not self._trouble:
            _log.warning("%s; the run continues with the hosts that it has", text)
        self._trouble = text

    def _note_answer(self) -> None:
        if self._trouble:
            _log.info("the API server answers again")
        self._trouble = ""
