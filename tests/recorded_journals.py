"""Records what a journal of the present format holds, for the releases to come: `python -m tests.recorded_journals`.

What has been recorded is what a release has really written, so a format is recorded once. Only as long as no release
has written it, delete the files and record it again: `tests/data/journal/format-N.sqlite3`, a journal with a snapshot,
and events, orders and links after it, and `format-N-cores.json`, states of cores after random events.
"""

from __future__ import annotations

import json
import random
import sys
from contextlib import closing
from pathlib import Path
from typing import Any, Final

from edriver.driver.journal.entries import JournalEntry
from edriver.driver.journal.formats import FORMAT
from edriver.driver.journal.journal import Head, JournalRecord
from edriver.driver.journal.sqlite_journal import SqliteJournal
from edriver.driver.run.driver_state import state_codec
from tests.journal_story import SNAPSHOT_AT, Driver, story
from tests.sim.random_events import RandomEvents

FOLDER: Final = Path(__file__).parent / "data" / "journal"

HEAD: Final = Head("5d2f01aa", ("-np", "2", "train.py"), "/there", {"A": "b"}, b"k" * 32, "/tmp/f", began=(0.0, 100.0))

SEEDS: Final = (1, 8, 20, 33, 41, 57, 64, 92)
"""Of random events that lead to cores which differ in as much as possible."""


def record(path: Path) -> None:
    """Write the journal of a run whose driver was killed after the last event of the story."""
    driver = Driver()
    with closing(SqliteJournal.create(path, HEAD)) as journal:
        for number, (now, event, progress) in enumerate(story()):
            journal.append([JournalRecord(JournalEntry(now, 100.0 + now, event, progress), (1, number + 1, 1))])
            if progress:
                driver.hear(progress, now)
            driver.take(event, now)
            if driver.ordered:
                journal.append_orders(driver.ordered)
            if number + 1 == SNAPSHOT_AT:
                journal.write_snapshot(now, 100.0 + now, driver.state.to_bytes(None))
        journal._database.execute("PRAGMA journal_mode = DELETE")
        journal._database.execute("VACUUM")


def cores() -> list[dict[str, Any]]:
    """States of cores, as JSON."""
    found = []
    for seed in SEEDS:
        run = RandomEvents(seed)
        run.run(random.Random(seed).randint(30, 120))
        found.append(state_codec().save(core=run.core))
    return found


if __name__ == "__main__":
    target = FOLDER / f"format-{FORMAT}.sqlite3"
    if target.exists():
        sys.exit(f"{target} is there: a format is recorded once")
    FOLDER.mkdir(parents=True, exist_ok=True)
    record(target)
    (FOLDER / f"format-{FORMAT}-cores.json").write_text(json.dumps(cores(), separators=(",", ":")) + "\n")
