"""A real Prometheus server, the child of a test: on a free port, with a configuration and a folder of its own."""

from __future__ import annotations

import json
import re
import subprocess
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from tests.needs import PROMETHEUS, require
from tests.waiting import until

T = TypeVar("T")

BOUND = 300.0
"""Seconds that a test waits for Prometheus; only a failing test ever waits so long."""


class Prometheus:
    """The server's HTTP API.

    Args:
        url: where it is.
    """

    def __init__(self, url: str) -> None:
        self._url = url

    def ask(self, path: str, **parameters: str | float) -> Any:
        """The data of an answer of its API; what it refuses raises HTTPError."""
        url = f"{self._url}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
        with urllib.request.urlopen(url, timeout=BOUND) as answer:
            return json.load(answer)["data"]

    def values(self, expression: str, began: float) -> list[float]:
        """All values of an expression since then, each second, of all its series."""
        found = self.ask("query_range", query=expression, start=began, end=time.time(), step=1)
        return [float(value) for series in found["result"] for _, value in series["values"]]

    def until(self, look: Callable[[], T], what: str = "it") -> T:
        """Look again with each of its scrapes, until there is something; `what` names it where there never is."""
        return until(look, f"Prometheus has seen {what}", every=0.5)  # it has no way to tell when it has scraped


@contextmanager
def prometheus(folder: Path, target: str, rules: Path) -> Iterator[Prometheus]:
    """Have one scrape this target each second."""
    require(PROMETHEUS)
    configuration = {
        "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
        "rule_files": [str(rules)],
        "scrape_configs": [{"job_name": "edriver", "static_configs": [{"targets": [target]}]}],
    }
    (folder / "prometheus.yml").write_text(json.dumps(configuration))  # JSON is YAML, too
    server = subprocess.Popen(
        [
            "prometheus",
            f"--config.file={folder / 'prometheus.yml'}",
            f"--storage.tsdb.path={folder / 'prometheus'}",
            "--web.listen-address=127.0.0.1:0",
        ],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    giving_up = threading.Timer(BOUND, server.kill)
    giving_up.start()
    with server:  # waits for it, and closes the pipe; what it prints later is little, and fits in
        try:
            assert server.stderr is not None
            address = _address_in(server.stderr)
            giving_up.cancel()
            yield Prometheus(f"http://{address}")
        finally:
            giving_up.cancel()
            server.kill()


def _address_in(lines: Iterable[str]) -> str:
    """Where it listens, once it does, from what it prints."""
    printed, address, ready = [], "", False  # which of both comes first is a matter of chance
    for line in lines:
        printed.append(line)
        if found := re.search(r'msg="Listening on" address=(\S+)', line):
            address = found[1]
        ready = ready or "Server is ready to receive web requests" in line
        if ready and address:
            return address
    raise AssertionError(f"Prometheus does not listen:\n{''.join(printed)}")
