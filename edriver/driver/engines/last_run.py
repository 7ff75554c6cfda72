"""What a driver that resumes a run asks of the engine that it is in: what ran before?

An engine answers by `last_run()` in its module; it is imported where its variable is set, and nowhere else.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Final, Protocol

_MODULES: Final = {"SLURM_JOB_ID": "edriver.driver.engines.slurm.last_allocation"}
"""The engines that a driver may run in, by a variable that they set for it."""


class LastRun(Protocol):
    """What an engine knows of the driver before."""

    def present_environment(self, before: Mapping[str, str], now: Mapping[str, str]) -> dict[str, str]:
        """The environment in which the run continues.

        Args:
            before: the environment of the driver before,
            now: and of this process.
        """

    async def why_agents_are_gone(self, before: Mapping[str, str], now: Mapping[str, str], launcher: str) -> str:
        """Why no agent of the driver before can live; empty: they may, or it is not known.

        Args:
            before: the environment of that driver,
            now: and of this one.
            launcher: the name of the launcher that started them.
        """


class _NoEngine:
    def present_environment(self, before: Mapping[str, str], _now: Mapping[str, str]) -> dict[str, str]:
        return {**before}

    async def why_agents_are_gone(self, _before: Mapping[str, str], _now: Mapping[str, str], _launcher: str) -> str:
        return ""


def last_run(now: Mapping[str, str]) -> LastRun:
    """What knows the driver before this one.

    Args:
        now: the environment of this process.
    """
    for variable, module in _MODULES.items():
        if variable in now:
            found: LastRun = importlib.import_module(module).last_run()
            return found
    return _NoEngine()
