"""Where the output of workers in restart mode goes: torchrun's --log-dir, --redirects, --tee and --local-ranks-filter.

Pure. The agents carry it out (edriver/agent/workers/log_files.py).
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import field
from typing import Final

from edriver.model.frozen import frozen
from edriver.model.limits import MAX_HOST_SLOTS


class Streams(enum.IntFlag):
    """Some of a worker's streams; the values are torchrun's."""

    NONE = 0
    STDOUT = 1
    STDERR = 2
    BOTH = 3


_VALUES: Final = {str(value): Streams(value) for value in range(4)}

_CHOICES: Final = (
    "is neither 0 (no stream), 1 (stdout), 2 (stderr) or 3 (both), nor a list of these by local rank, such as 0:1,1:2"
)


@frozen
class StreamChoice:
    """Some streams of some workers.

    Attributes:
        others: of the workers whose local ranks are not named.
        by_local_rank: of those that are.
    """

    others: Streams = Streams.NONE
    by_local_rank: Mapping[int, Streams] = field(default_factory=dict)

    @classmethod
    def of(cls, text: str) -> StreamChoice:
        """Read what --redirects and --tee take: `3`, or `0:1,1:2`, where workers that are not named have none.

        Raises:
            ValueError: it is something else.
        """
        if text in _VALUES:
            return cls(_VALUES[text])
        named = {}
        for item in text.split(","):
            rank, _, value = item.partition(":")
            if value not in _VALUES:
                raise ValueError(f"{text!r} {_CHOICES}")
            named[_local_rank(rank, text, _CHOICES)] = _VALUES[value]
        return cls(by_local_rank=named)


@frozen
class WorkerLogs:
    """Where the output of workers goes.

    Attributes:
        folder: for the files; empty: each host has one in its folder for temporary files.
        redirects: streams that go to files only.
        tee: streams that go to files, and are shown.
        shown_local_ranks: the workers whose streams are shown; none: all.
    """

    folder: str = ""
    redirects: StreamChoice = field(default_factory=StreamChoice)
    tee: StreamChoice = field(default_factory=StreamChoice)
    shown_local_ranks: tuple[int, ...] = ()


def local_ranks(text: str) -> tuple[int, ...]:
    """Read what --local-ranks-filter takes: `0,1,2`.

    Raises:
        ValueError: it is something else.
    """
    return tuple(_local_rank(word, text, "is not a list of local ranks, such as 0,1,2") for word in text.split(","))


def _local_rank(word: str, text: str, complaint: str) -> int:
    if not (word.isascii() and word.isdecimal() and len(word) <= len(str(MAX_HOST_SLOTS))):
        raise ValueError(f"{text!r} {complaint}")
    if int(word) >= MAX_HOST_SLOTS:
        raise ValueError(f"{text!r} has local rank {word}: a host has at most {MAX_HOST_SLOTS} workers")
    return int(word)
