"""What torch's entry point group `torchrun.handlers` names: `torchrun --rdzv-backend=edriver`.

torchrun imports this module at each start, whatever its backend is: what is not needed for that is imported later.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch.distributed.elastic.rendezvous.api import RendezvousHandler, RendezvousParameters


def get_handler() -> Callable[[RendezvousParameters], RendezvousHandler]:
    """What makes a handler, for torch's registry."""
    return create_handler


def create_handler(params: RendezvousParameters) -> RendezvousHandler:
    """Torch's dynamic rendezvous, with its state and its store at `edriver rendezvous`.

    Args:
        params: torchrun's. Of `--rdzv-conf` this takes, besides what torch's handler does, `credentials`, the file of
            the server's credentials, and `read_timeout`, the seconds for which a server that is away is waited for.

    Raises:
        RendezvousConnectionError: no credentials were found.
        ValueError: a parameter is invalid.
    """
    # A worker is started by a fork; gRPC's handlers for that would wait for its threads. And of a server that is away
    # the backend speaks itself.
    os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")

    from edriver.rendezvous.torchrun.engine import engine_of

    return engine_of(params)
