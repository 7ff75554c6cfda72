"""Workers of scripts/elastic_worlds.py: its libraries are imported once, in the server that workers are forked from."""

from __future__ import annotations

import functools
import importlib
from typing import Any

from tests.torch.elastic_world import Fate, Script
from tests.torch.forks import FORKS

_SCRIPTS = "tests.libraries.scripts.elastic_worlds"


def script(name: str, **arguments: Any) -> Script:
    """One of those scripts."""
    FORKS.set_forkserver_preload(["tests.torch.group_ranks", "torch._dynamo", _SCRIPTS])
    return functools.partial(_run, name, arguments)


def _run(name: str, arguments: dict[str, Any], fate: Fate) -> Any:
    return getattr(importlib.import_module(_SCRIPTS), name)(fate, **arguments)
