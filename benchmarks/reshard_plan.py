"""The plan of a resharding, computed alone: `python -m benchmarks.reshard_plan`.

A round of one replica loses a worker, and each of those that are left works out which rows it takes and gives. Prints
one JSON object: seconds of processor time on one rank, by the number of ranks.
"""

from __future__ import annotations

import json
import time

from edriver.model.shards import shadowed_position
from edriver.worker.state.row_slices import plan_moves

RANKS = (64, 512)
PARAMETERS = 1000
ROWS = 4096


def main() -> None:
    """Compute and print."""
    found = {}
    for size in RANKS:
        held = [{rank, shadowed_position(rank, size)} for rank in range(size - 1)]
        targets = [{rank, shadowed_position(rank, size - 1)} for rank in range(size - 1)]
        began = time.process_time()
        plan_moves(size // 3, [ROWS] * PARAMETERS, (size, size - 1), held, targets)
        found[f"{size} ranks, {PARAMETERS:,} parameters"] = time.process_time() - began
    print(json.dumps(found))


if __name__ == "__main__":
    main()
