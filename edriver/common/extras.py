"""What only some commands need: packages that an extra of edriver installs (pyproject.toml)."""

from __future__ import annotations

from importlib.util import find_spec


def missing_extra(what: str, module: str, extra: str) -> str:
    """What to install before a command or a flag can be used; empty: it is there.

    Args:
        what: the command or the flag, as the user typed it.
        module: the module that it imports.
        extra: the extra that installs the module's package.
    """
    if find_spec(module) is not None:
        return ""
    return f"{what} needs {module.replace('_', '-')}: pip install 'edriver[{extra}]'"
