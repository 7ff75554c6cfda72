"""A real run whose values are no numbers, and which fails or is stopped: what it leaves is valid JSON, says of what it
failed, and how far it was in the end.
"""

from __future__ import annotations

import re
import signal
import sys
from pathlib import Path
from typing import Any

from tests.process.running import SCRIPTS, edriver, running
from tests.strict_json import strict

NO_NUMBERS = {"loss": "NaN", "scale": "Infinity", "lr": 0.0}


def status(run_id: str) -> dict[str, Any]:
    """What `edriver status --json` says."""
    answer: dict[str, Any] = strict(edriver("status", "--json", "--run", run_id).stdout)
    return answer


def test_values_that_are_no_numbers_and_the_failure(tmp_path: Path) -> None:
    environ = {"XDG_STATE_HOME": str(tmp_path / "state")}
    job = [sys.executable, str(SCRIPTS / "diverging.py")]
    log = tmp_path / "events.jsonl"
    with running(["-np", "1", "--event-log", str(log), *job], tmp_path, environ) as run:
        run.line("passed step 5")
        run_id = run.id
        while not (live := status(run_id)).get("progress", {}).get("reported"):
            pass  # a report comes within seconds
        assert live["progress"]["reported"] == NO_NUMBERS
        assert (live["workers"][0]["slot"], live["failures"], live["steps_lost"]) == (0, 0, "0")
        strict(edriver("runs", "--json", environ=environ).stdout)
        (tmp_path / "raise").touch()
        assert run.end() == 1
    records = tmp_path / "state" / "edriver" / run_id
    for path in (log, records / "events.jsonl"):
        ended = [strict(line) for line in path.read_text().splitlines()][-1]["run_ended"]
        assert ended["progress"]["reported"] == NO_NUMBERS
        assert ended["progress"]["steps"] == steps_of(tmp_path)
        assert "FloatingPointError: the loss is nan" in ended["worker_failures"][0]["traceback"]
    for name in ("run.json", "trace.json"):
        strict((records / name).read_text())
    listed = strict(edriver("runs", "--json", environ=environ).stdout)
    known = next(each for each in listed if each["run_id"] == run_id)
    assert (known["state"], str(known["steps"])) == ("failed", steps_of(tmp_path))
    assert run.lines[-2] == f"edriver: records: {records}"
    assert run.lines[-1].endswith(f": edriver report {run_id}")
    report = edriver("report", run_id, "--output", str(tmp_path / "report.html"), environ=environ).stdout
    page = (tmp_path / "report.html").read_text()
    for said in ("FloatingPointError: the loss is nan", "diverging.py", "in train", "the last line before it"):
        assert said in report
        assert said in page
    assert re.search(r"^rounds +1: 1 failure, ", report, re.MULTILINE)
    data = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    assert data is not None
    assert page.count("raise FloatingPointError(") == 2  # among the failures, and in what the worker has printed
    assert strict(data[1])["curve"]["progress"]["reported"] == {"loss": None, "lr": 0.0, "scale": None}


def test_a_run_that_is_stopped_says_how_far_it_was(tmp_path: Path) -> None:
    """Workers are asked once more; what they make until they are stopped, milliseconds later, is left out."""
    job = [sys.executable, str(SCRIPTS / "diverging.py")]
    log = tmp_path / "events.jsonl"
    with running(["-np", "1", "--event-log", str(log), *job], tmp_path) as run:
        run.line("passed step 5")
        run.process.send_signal(signal.SIGINT)
        assert run.end() == 130
    ended = strict(log.read_text().splitlines()[-1])["run_ended"]
    assert ended["end"] == "RUN_END_STOPPED"
    assert int(steps_of(tmp_path)) - int(ended["progress"]["steps"]) <= 3


def steps_of(folder: Path) -> str:
    """How many the job has written down."""
    return (folder / "steps").read_text().split()[-1]
