"""Which globals a pickle of the journal's may name: see "Restricting Globals" in the documentation of pickle."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Callable
from typing import Any


def find_admitted(module_name: str, global_name: str, admits: Callable[[object], bool]) -> Any:
    """The global with this name, of a module that has been imported.

    Args:
        module_name: the module,
        global_name: and the name in it.
        admits: whether what was found, or None, may be used.

    Raises:
        UnpicklingError: it may not.
    """
    found: object = getattr(sys.modules.get(module_name), global_name, None)
    if not admits(found):
        raise pickle.UnpicklingError(f"{module_name}.{global_name} does not belong in a journal")
    return found
