"""Who at the driver's TCP port has authenticated: the callers of calls that were let in."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any

from edriver.common.serving.call_faults import AroundCalls


def noting_callers(note: Callable[[str], None]) -> AroundCalls:
    """Notes the callers of admitted calls; goes behind the interceptor that refuses others.

    Args:
        note: called with each caller, by gRPC's name for it.
    """

    @contextlib.asynccontextmanager
    async def around(context: Any) -> AsyncIterator[None]:
        note(context.peer())
        yield

    return AroundCalls(around)
