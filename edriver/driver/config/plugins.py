"""What other packages add to edriver: entry points, which are looked for when their name is asked for."""

from __future__ import annotations

from typing import Any


class PluginError(Exception):
    """There is no such entry point, or it cannot be loaded. The message is a sentence for the operator."""


def plugin(group: str, name: str) -> Any:
    """What an entry point names.

    Raises:
        PluginError: no package has one of that name, several have, or loading it failed.
    """
    # Imported here: it takes 20 ms, in which agents wait for a driver that takes a run over.
    from importlib.metadata import entry_points

    there = entry_points(group=group)
    found = [each for each in there if each.name == name]
    if not found:
        names = ", ".join(sorted({each.name for each in there})) or "none"
        raise PluginError(
            f"{name!r} is not installed, only {names}: install the package that provides it (entry point group {group})"
        )
    if len(values := sorted({each.value for each in found})) > 1:
        raise PluginError(f"{name!r} is provided by several packages: uninstall one of {', '.join(values)}")
    try:
        return found[0].load()
    except Exception as error:
        raise PluginError(f"{name!r} ({found[0].value}) cannot be loaded: {error!r}") from error
