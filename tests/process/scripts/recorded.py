"""A script for torchrun that dies after torch's @record has written what ended it: HOW says in which way."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from torch.distributed.elastic.multiprocessing.errors import record

HOW = os.environ["HOW"]
RANK = int(os.environ["RANK"])
ERROR_FILE = Path(os.environ["TORCHELASTIC_ERROR_FILE"])
RECORDED = Path("recorded")


@record
def fail(reason: str) -> None:
    raise ValueError(reason)


def record_failure(reason: str) -> None:
    """Write the error file, and go on."""
    with contextlib.suppress(ValueError):
        fail(reason)


def wait(whether: Callable[[], bool]) -> None:
    while not whether():
        time.sleep(0.01)


def main() -> None:
    if "child" in sys.argv:
        fail("of the child")
    print(f"rank {RANK} of {os.environ['WORLD_SIZE']} pid {os.getpid()}", flush=True)
    if RANK == 1 and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        match HOW:
            case "abort":
                record_failure("and gone")
                os.abort()
            case "child":
                os._exit(subprocess.run([sys.executable, __file__, "child"]).returncode)
            case "torn":
                ERROR_FILE.write_text('{"message": {"message": "ValueError: torn", "extraInfo": {')
                os._exit(7)
            case "lives-on":
                record_failure("the first")
                RECORDED.touch()
    if RANK == 0 and HOW == "lives-on":
        wait(lambda: RECORDED.exists() and time.time() > RECORDED.stat().st_mtime + 0.1)
        record_failure("the second")
        os._exit(3)
    wait(lambda: Path("stop").exists())


main()
