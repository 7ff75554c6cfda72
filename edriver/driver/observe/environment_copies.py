"""Says how far the hosts' copies of the Python environment are (--copy-environment), many hosts in one line."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from edriver.text.phrases import count_text
from edriver.v1 import agent_pb2
from edriver.wire.conversion import span_seconds

_log = logging.getLogger("edriver")

GATHER_SECONDS: Final = 0.5
"""For which news of other hosts are waited for, to be said in the same line."""

MAX_NAMED: Final = 8
"""Most hosts that a line names."""


class EnvironmentCopies:
    """What hosts say of their copies, printed.

    Args:
        later: calls a function after so many seconds; None: the running event loop does.
        print_line: prints a line, with its level as in `logging`.
    """

    def __init__(
        self,
        later: Callable[[float, Callable[[], None]], object] | None = None,
        print_line: Callable[[int, str], None] = lambda level, line: _log.log(level, "%s", line),
    ) -> None:
        self._later = later or (lambda seconds, call: asyncio.get_running_loop().call_later(seconds, call))
        self._print = print_line
        self._news: dict[str, agent_pb2.EnvironmentCopy] = {}

    def take(self, host: str, copy: agent_pb2.EnvironmentCopy) -> None:
        """Take what a host says; only its latest is printed."""
        if not self._news:
            self._later(GATHER_SECONDS, self._say)
        self._news[host] = copy

    def _say(self) -> None:
        news, self._news = self._news, {}
        for level, line in lines_of(news):
            self._print(level, line)


def lines_of(news: dict[str, agent_pb2.EnvironmentCopy]) -> list[tuple[int, str]]:
    """What hosts say, by their names, in as few lines as possible, each with its level."""
    alike: dict[tuple[str, ...], list[str]] = {}
    for host, copy in news.items():
        kind = "trouble" if copy.trouble else "done" if copy.HasField("took") else "copying"
        alike.setdefault((kind, copy.source, copy.folder, copy.trouble), []).append(host)
    lines: list[tuple[int, str]] = []
    for (kind, source, folder, trouble), hosts in alike.items():
        where = f"{count_text(len(hosts), 'host')} ({_names(hosts)})"
        if kind == "copying":
            text = f"copying the Python environment {source} to {folder} on {where}: workers start there when done"
        elif kind == "done":
            seconds = [span_seconds(news[host].took) for host in hosts]
            size = news[hosts[0]].bytes
            text = (
                f"copied the Python environment {source} ({size / 1e6:,.0f} MB) to {folder} on {where} in "
                f"{_range(min(seconds), max(seconds))} s"
            )
        elif source:
            text = (
                f"the Python environment {source} cannot be copied to {folder} on {where}: {trouble}; workers "
                "start from the original there"
            )
        else:
            text = f"--copy-environment on {where}: {trouble}"
        lines.append((logging.WARNING if trouble else logging.INFO, text))
    return lines


def _names(hosts: list[str]) -> str:
    return ", ".join(hosts[:MAX_NAMED]) + (", ..." if len(hosts) > MAX_NAMED else "")


def _range(low: float, high: float) -> str:
    return f"{low:.1f}" if f"{low:.1f}" == f"{high:.1f}" else f"{low:.1f} to {high:.1f}"
