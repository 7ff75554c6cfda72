"""Follow a run: `python examples/client/follow.py [--run ID | --credentials FILE]`.

Prints each event as it happens, and once a second how far training is. An example of edriver.client: what it prints
could as well go to a chat room or a database.
"""

from __future__ import annotations

import argparse
import datetime
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
        print(f"run {run.run_id}: {known.run.activity.text}; {len(known.run.workers)} workers")
        for response in run.watch_progress(since=known.seq):
            if response.HasField("progress"):
                print(f"    {progress_text(response.progress)}")
            elif response.event.text:
                print(f"{response.event.time.ToDatetime(datetime.UTC).astimezone():%H:%M:%S} {response.event.text}")


if __name__ == "__main__":
    main()
