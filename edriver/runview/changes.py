"""When each of many things last changed, so that a reader gets only those that changed since; pure."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)


class Changes(Generic[Key]):
    """Versions, which only grow, by what they changed."""

    def __init__(self) -> None:
        self._revisions: dict[Key, int] = {}  # in the order of change

    def __iter__(self) -> Iterator[Key]:
        """All, the latest change last."""
        return iter(list(self._revisions))

    def note(self, key: Key, revision: int) -> None:
        """This version has changed it."""
        self._revisions.pop(key, None)
        self._revisions[key] = revision

    def forget(self, key: Key) -> None:
        """Drop it from all later answers."""
        del self._revisions[key]

    def since(self, revision: int) -> list[Key]:
        """Those that a later version has changed, the latest change last; takes as long as they are many."""
        later: list[Key] = []
        for key in reversed(self._revisions):
            if self._revisions[key] <= revision:
                break
            later.append(key)
        return later[::-1]
