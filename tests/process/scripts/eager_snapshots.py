"""edriver, with a snapshot after each event: `python eager_snapshots.py python -m edriver ...`."""

from __future__ import annotations

import sys

from edriver.cli.main import main
from edriver.driver.journal import journal

if __name__ == "__main__":
    journal.SNAPSHOT_BYTES = journal.SNAPSHOT_SHARE = 0  # type: ignore[misc]
    sys.exit(main(sys.argv[4:]))
