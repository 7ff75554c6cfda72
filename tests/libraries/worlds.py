"""Workers of the scripts that run in a world: forked from a server that has imported their libraries once."""

from __future__ import annotations

import functools
import importlib
from typing import Any

from tests.torch.elastic_world import Fate, Script
from tests.torch.forks import FORKS

_SCRIPTS = "tests.libraries.scripts."
_LIGHTNING = _SCRIPTS + "lightning_worlds"


def script(name: str, module: str = "elastic_worlds", **arguments: Any) -> Script:
    """A script of one of those modules, with arguments besides its fate."""
    FORKS.set_forkserver_preload(["tests.torch.group_ranks", "torch._dynamo", _SCRIPTS + "elastic_worlds"])
    return functools.partial(_run, _SCRIPTS + module, name, arguments)


def _run(module: str, name: str, arguments: dict[str, Any], fate: Fate) -> Any:
    return getattr(importlib.import_module(module), name)(fate, **arguments)


def in_lightning(**options: Any) -> Script:
    """A training of scripts/lightning_worlds.py."""
    FORKS.set_forkserver_preload(["tests.torch.group_ranks", "torch._dynamo", _LIGHTNING])
    return functools.partial(_train, tuple(options.items()))


def _train(options: tuple[tuple[str, Any], ...], fate: Fate) -> Any:
    return importlib.import_module(_LIGHTNING).Training(**dict(options))(fate)
