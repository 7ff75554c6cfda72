"""Follow a run: `python examples/client/follow.py [--run ID | --credentials FILE]`.

Prints each event as it happens, and once a second how far training is. An example of edriver.client: what it prints
could as well go to a chat room or a database.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from edriver.client import find
from edriver.text.progress_text import progress_text


def main() -> None:
    """Follow a run to its end."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--run", help="which run of yours on this machine; needed only if there are several")
    parser.add_argument("--credentials", type=Path, help="of a run elsewhere: its --status-credentials")
    flags = parser.parse_args()
    with find(flags.run, flags.credentials) as run:
        known = run.snapshot()
        print(f"run {run.run_id}: {known.run.doing}; {len(known.run.workers)} workers")
        for told in run.watch_progress(since=known.seq):
            if told.HasField("progress"):
                print(f"    {progress_text(told.progress)}")
            elif told.event.text:
                print(f"{time.strftime('%H:%M:%S', time.localtime(told.event.time))} {told.event.text}")


if __name__ == "__main__":
    main()
