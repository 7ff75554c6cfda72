"""Workers of scripts/: their libraries are imported once, in the server that workers are forked from."""

from __future__ import annotations

import functools
import importlib
from typing import Any

from tests.torch.elastic_world import Fate, Script
from tests.torch.forks import FORKS

_SCRIPTS = "tests.libraries.scripts."


def script(name: str, module: str = "elastic_worlds", **arguments: Any) -> Script:
    """A script of one of those modules, with arguments besides its fate."""
    FORKS.set_forkserver_preload(["tests.torch.group_ranks", "torch._dynamo", _SCRIPTS + "elastic_worlds"])
    return functools.partial(_run, _SCRIPTS + module, name, arguments)


def _run(module: str, name: str, arguments: dict[str, Any], fate: Fate) -> Any:
    return getattr(importlib.import_module(module), name)(fate, **arguments)
