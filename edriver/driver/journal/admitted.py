"""Which globals a pickle of the journal's may name: see "Restricting Globals" in the documentation of pickle.

Members of enumerations are written in one way by every Python: 3.11.0 to 3.11.3 would name `getattr`.
"""

from __future__ import annotations

import enum
import pickle
import sys
from collections.abc import Callable
from typing import Any


def reduced(found: object) -> Any:
    """What `reducer_override` answers: a member of an enumeration is its class and its value.

    Args:
        found: what is to be written; of anything else the answer is NotImplemented.
    """
    return (type(found), (found.value,)) if isinstance(found, enum.Enum) else NotImplemented


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
