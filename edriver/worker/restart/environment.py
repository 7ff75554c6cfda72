"""What a script that torchrun runs finds in its environment. Pure.

The names and meanings are those of torch.distributed.run ("Environment Variables") and of its LocalElasticAgent.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from edriver.model.plan import Assignment

ROLE: Final = "default"
"""All workers have one role, torchrun's own default."""

UNLIMITED_RESTARTS: Final = 2**31 - 1
"""What a script reads of a run without --max-restarts: the largest number that all readers take."""


def torchrun_environment(place: Assignment, environ: Mapping[str, str]) -> dict[str, str]:
    """The variables of a worker.

    Args:
        place: its place in the round.
        environ: what its agent passed to it: EDRIVER_RUN_ID, EDRIVER_MAX_RESTARTS, EDRIVER_ERROR_FILE.
    """
    rank, size = str(place.rank), str(place.size)
    return {
        "RANK": rank,
        "LOCAL_RANK": str(place.local_rank),
        "WORLD_SIZE": size,
        "LOCAL_WORLD_SIZE": str(place.local_size),
        "GROUP_RANK": str(place.host_rank),
        "GROUP_WORLD_SIZE": str(place.host_count),
        "ROLE_RANK": rank,
        "ROLE_WORLD_SIZE": size,
        "ROLE_NAME": ROLE,
        "MASTER_ADDR": place.store.host,
        "MASTER_PORT": str(place.store.port),
        "TORCHELASTIC_RUN_ID": environ["EDRIVER_RUN_ID"],
        "TORCHELASTIC_RESTART_COUNT": str(place.failures),
        "TORCHELASTIC_MAX_RESTARTS": environ.get("EDRIVER_MAX_RESTARTS", str(UNLIMITED_RESTARTS)),
        # Rank 0's process serves the store before the script runs: no rank has to, and no port is bound that was chosen
        # before.
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "TORCHELASTIC_ERROR_FILE": environ["EDRIVER_ERROR_FILE"],
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": environ.get("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1"),
    }
