"""Shows a progress bar on stderr, as tqdm does, until a file is there."""

import itertools
import os
import sys
import time
from pathlib import Path

rank = os.environ["RANK"]
print(f"rank {rank} begins", flush=True)
for number in itertools.count(1):
    sys.stderr.write(f"\rbar {rank}: {number:6d} |{'#' * 20}|")
    sys.stderr.flush()
    if Path("enough").exists():
        break
    time.sleep(0.05)
sys.stderr.write(f"\rbar {rank}: whole\n")
print(f"rank {rank} ends", flush=True)
