"""JSON as RFC 8259 has it: Python's own reads more."""

from __future__ import annotations

import json
from typing import Any


def strict(text: str) -> Any:
    """Read it; NaN and Infinity are errors."""

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is no JSON")

    return json.loads(text, parse_constant=refuse)
