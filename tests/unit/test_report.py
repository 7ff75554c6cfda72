"""A run as one HTML file."""

from __future__ import annotations

import json
import os
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from edriver.client import RunError
from edriver.commands.report import report
from edriver.dashboard import assets
from edriver.dashboard.assets import INSTALL_COMMAND, PAGE_SCRIPTS, filled, plotly_script
from edriver.dashboard.report import facts, html_report, page_data, recorded_run, script_safe, text_summary
from edriver.history.records import Records
from edriver.wire.conversion import timestamp
from tests.made_runs import MadeRun

HOSTILE = "</script><script>alert(1)</script><!-- <b onclick=x>&amp;"
T = 1700000000.0


def at(time: float) -> str:
    return timestamp(T + time).ToJsonString()


def line(seq: int, time: float, text: str = "", **kind: object) -> str:
    return json.dumps({"seq": seq, "time": at(time), "text": text, **kind}) + "\n"


def round_id(n: int) -> dict[str, int]:
    return {"incarnation": 1, "n": n}


def one_kill(name: str = "a") -> str:
    """Two workers; 2 is killed at 20; 30 is the end."""
    members = [{"worker_id": 1, "host": name}, {"worker_id": 2, "host": name, "slot": 1}]
    first = {
        "round_id": round_id(1),
        "cause": {"kind": "CAUSE_KIND_RUN_BEGAN", "text": "the run began"},
        "kind": "ROUND_KIND_START",
        "assign_time": at(10),
    }
    under_way = {**first, "first_step_time": at(11), "phases": {"sync": "0.5s", "first_step": "0.5s"}}
    second = {
        "round_id": round_id(2),
        "cause": {"kind": "CAUSE_KIND_ENDED", "text": f"worker 2 ({name}:1) has ended"},
        "kind": "ROUND_KIND_FAILURE",
        "previous_end_time": at(20),
        "assign_time": at(20.5),
        "steps_lost": 3,
    }
    ended, killed = {"kind": "CAUSE_KIND_ENDED"}, {"kind": "CAUSE_KIND_KILLED"}
    gone = {"worker_id": 2, "host": name, "slot": 1}
    lost = {**under_way, "end_time": at(20)}
    phases = {"unnoticed": "0.25s", "detect": "0.1s", "abort": "0.25s", "wait": "0.15s", "first_step": "1s"}
    boot = {
        "kind": "INTERRUPTION_KIND_BOOT",
        "start_time": at(0),
        "duration": "10.500s",
        "round_id": round_id(1),
        "size": 2,
    }
    recovery = {
        "kind": "INTERRUPTION_KIND_FAILURE",
        "start_time": at(19.75),
        "duration": "0.750s",
        "round_id": round_id(2),
        "cause": second["cause"],
        "phases": phases,
        "steps_lost": "3",
        "size": 1,
        "failed_rounds": 1,
    }
    run_ended = {
        "end": "RUN_END_DONE",
        "progress": {"steps": 115, "reported": {"loss": 0.125}},
        "time_spent": {
            "booting": "10.500s",
            "training": "18s",
            "repeating": "0.500s",
            "recovering": "0.750s",
            "ending": "0.250s",
            "until": at(30),
            "goodput": 0.6,
        },
        "recoveries": {"count": 1, "median": "0.750s", "longest": "0.750s"},
        "failures": 1,
    }
    return (
        line(1, 0, "waiting: 0 of 2 workers are ready", remark={})
        + line(2, 10, f"round 1.1: 2 workers on {name}", round={**first, "members": members})
        + line(3, 11, round={**under_way, "members": members})
        + line(4, 11, interruption=boot)
        + json.dumps({"time": at(12), "progress": {"steps": 40, "step_rate": 10.0, "reported": {"loss": 0.25}}})
        + "\n"
        + line(
            5,
            20,
            f"round 1.1 ended: worker 2 ({name}:1) has ended",
            round=lost,
            cause=ended,
        )
        + line(6, 20.5, "round 1.2: 1 worker", round={**second, "members": members[:1]})
        + line(
            7,
            21.5,
            round={
                **second,
                "first_step_time": at(21.5),
                "phases": phases,
            },
        )
        + line(8, 21.5, interruption=recovery)
        + line(
            9,
            22,
            f"worker 2 ({name}:1) was killed by SIGKILL",
            worker=gone,
            cause=killed,
        )
        + line(10, 30, "all workers are done", run_ended=run_ended)
    )


class Outline(HTMLParser):
    """The elements of a page, and the texts of those with an id."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.scripts: list[dict[str, str | None]] = []
        self.events: list[str] = []
        self.texts: list[str] = []
        self.data = ""
        self._in_data = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.events += [name for name, _ in attrs if name.startswith("on")]
        if tag == "script":
            self.scripts.append(dict(attrs))
            self._in_data = dict(attrs).get("id") == "data"

    def handle_endtag(self, tag: str) -> None:
        self._in_data = False

    def handle_data(self, data: str) -> None:
        if self._in_data:
            self.data += data
        else:
            self.texts.append(data)


def test_what_is_said_of_a_run(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    path.write_text(one_kill())
    summary = text_summary(recorded_run(Records(path, {"command": ["python", "my train.py"]})))
    message = dict(re.split(r"  +", reported, maxsplit=1) for reported in summary.splitlines())
    assert message["command"] == "python 'my train.py'"
    assert message["time"].endswith(", 30 s")
    assert message["end"] == "done: all workers are done"
    assert message["size"].startswith("1 to 2 workers")
    assert message["goodput"] == "60.0 % of wall time in steps that count"
    assert message["time spent"] == (
        "training 18.0 s, repeating 500 ms, recovering 750 ms, booting 10.5 s, ending 250 ms"
    )
    assert message["rounds"] == "2: 1 failure, 0 preemptions, 0 resizes"
    assert message["lost"] == "3 steps had to be made again"
    assert message["recovery"] == "750 ms after a failure (median), 750 ms at worst"
    assert re.fullmatch(
        r"\S+ round 1\.1 ended: worker 2 \(a:1\) has ended, then \S+ worker 2 \(a:1\) was killed by SIGKILL",
        message["first loss"],
    )
    assert "failed first" not in message
    assert message["reached"] == "step 115; loss 0.125"


def test_of_a_run_that_failed_the_first_loss_is_what_failed_first(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    path.write_text(one_kill().replace("RUN_END_DONE", "RUN_END_FAILED"))
    words = dict(facts(recorded_run(Records(path))))
    assert "first loss" not in words
    assert words["failed first"].endswith("worker 2 (a:1) was killed by SIGKILL")


def test_what_was_started_where_and_by_whom(tmp_path: Path) -> None:
    """The summary and the page have the same of it; records of an earlier release have the commit alone."""
    path = tmp_path / "events.jsonl"
    path.write_text(one_kill())
    origin = {"user": "ada", "host": "login1", "directory": "/home/ada", "commit": "c0ffee", "changed": True}
    origin |= {"edriver": "1.2.3", "python": "3.11.2", "torch": "2.13.0"}
    run: dict[str, object] = {"command": ["python", "train.py"], "tags": {"lr": "1e-3"}, "origin": origin}
    expected = [
        ("command", "python train.py"),
        ("tags", "lr=1e-3"),
        ("commit", "c0ffee, with changes"),
        ("directory", "/home/ada"),
        ("started by", "ada on login1"),
        ("versions", "edriver 1.2.3, Python 3.11.2, torch 2.13.0"),
    ]
    recorded = recorded_run(Records(path, run))
    assert list(facts(recorded))[: len(expected)] == expected
    assert page_data(recorded, "r")["head"]["about"] == expected
    earlier = recorded_run(Records(path, {"git": {"commit": "c0ffee", "changed": False}}))
    assert page_data(earlier, "r")["head"]["about"] == [("commit", "c0ffee")]
    spoilt = recorded_run(Records(path, {"origin": {"user": [1]}, "tags": 7, "command": 1.5, "git": "x"}))
    assert page_data(spoilt, "r")["head"]["about"] == [("command", "1.5")]


def test_what_is_said_of_a_run_in_restart_mode(tmp_path: Path) -> None:
    """It sees no steps, so it claims nothing of them: neither that they count, nor that none was lost."""
    path = tmp_path / "events.jsonl"
    elastic = one_kill()
    restart = re.sub(r'"training": "18s", "repeating": "0.500s"', '"unknown": "18.5s"', elastic)
    path.write_text(re.sub(r', "goodput": 0.6|"steps_lost": "?3"?, ', "", restart))
    recorded = recorded_run(Records(path, {"mode": "restart"}))
    message = dict(facts(recorded))
    assert message["goodput"] == "not known: edriver sees no steps in restart mode"
    assert message["time spent"] == "unknown 18.5 s, recovering 750 ms, booting 10.5 s, ending 250 ms"
    assert "lost" not in message
    outline = Outline()
    outline.feed(html_report(recorded, "r"))
    texts = [text.strip() for text in outline.texts if text.strip()]
    row = texts.index("failure", texts.index("Every interruption, with its phases (2)"))
    assert texts[row + 11] == "–"


def test_what_checkpoints_in_memory_tell_of_a_run_in_restart_mode(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    restart = re.sub(r'"training": "18s", "repeating": "0.500s"', '"unknown": "18.5s"', one_kill())
    places = (("MEMORY", 40, {"bytes": "2097152", "save_time": "0.250s"}), ("DISK", 20, {"delay": "2s"}))
    newest = [
        {"place": f"CHECKPOINT_PLACE_{place}", "step": str(step), "time": at(step / 2), **more}
        for place, step, more in places
    ]
    assert '"failures": 1' in restart
    path.write_text(restart.replace('"failures": 1', f'"failures": 1, "checkpoints": {json.dumps(newest)}'))
    recorded = recorded_run(Records(path, {"mode": "restart"}))
    message = dict(facts(recorded))
    assert message["lost"] == "3 steps had to be made again"
    assert message["checkpoint"] == (
        "step 40, 10 s old, 2.0 MiB, saved in 250 ms; that of step 20, 20 s old, is on disk, 2.0 s after its save"
    )
    assert page_data(recorded, "r")["head"]["steps_lost"] == 3


def test_what_is_said_of_a_run_that_made_no_step(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    path.write_text(line(1, 0, "waiting: 0 of 2 workers are ready", remark={}))
    message = dict(facts(recorded_run(Records(path))))
    assert message["goodput"] == "no step was made"
    assert message.keys().isdisjoint({"time spent", "recovery"})


@pytest.mark.parametrize(
    ("lives", "said"),
    [
        (None, "not recorded: it is running, or its driver was lost; last: "),
        (True, "none yet: it is running; last: "),
        (False, "lost: its driver recorded no end, and is not running on this machine; last: "),
    ],
)
def test_what_is_said_of_a_run_that_has_no_end(tmp_path: Path, lives: bool | None, said: str) -> None:
    path = tmp_path / "events.jsonl"
    path.write_text("".join(one_kill().splitlines(keepends=True)[:-1]))
    message = dict(facts(recorded_run(Records(path), lives)))
    assert message["end"].startswith(said)
    assert message["goodput"] == "no step was made"  # none is recorded
    assert message["recovery"] == "750 ms after a failure (median), 750 ms at worst"  # from the interruptions


def test_the_page_has_a_table_of_interruptions(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    path.write_text(one_kill())
    outline = Outline()
    outline.feed(html_report(recorded_run(Records(path)), "r"))
    texts = [text.strip() for text in outline.texts if text.strip()]
    first = texts.index("Every interruption, with its phases (2)")
    row = texts.index("failure", first)
    assert texts[row : row + 4] == ["failure", "750 ms", "1.2", "1"]
    assert texts[row + 4 : row + 11] == ["250 ms", "100 ms", "250 ms", "150 ms", "0 ms", "0 ms", "1.0 s"]
    assert texts[row + 11 : row + 13] == ["3", "worker 2 (a:1) has ended; 1 round failed on the way"]
    row = texts.index("boot", first)
    assert texts[row : row + 4] == ["boot", "10.5 s", "1.1", "2"]
    assert set(texts[row + 4 : row + 11]) == {"–"}


def test_lines_that_cannot_be_read_are_left_out_and_counted(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    first, *rest = one_kill().splitlines(keepends=True)
    path.write_text(first + "\0\0\0\n" + "".join(rest[:-1]) + '{"seq": 7, "time": 5}\n' + rest[-1])
    torn = dict(facts(recorded_run(Records(path))))
    path.write_text(one_kill())
    whole = dict(facts(recorded_run(Records(path))))
    left_out = torn.pop("left out")
    assert left_out.startswith("2 lines of the event log, which cannot be read; first line 2: ")
    assert torn == whole


def test_a_strangers_connection_is_no_failure(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    records = one_kill().replace("KIND_FAILURE", "KIND_UNPROVEN").replace('"failures": 1', '"unproven": 1')
    path.write_text(records.replace('"recoveries": {"count": 1', '"recoveries": {"count": 0'))
    message = dict(facts(recorded_run(Records(path))))
    assert message["rounds"] == "2: 0 failures, 0 preemptions, 0 resizes, 1 unproven connection"
    assert "recovery" not in message


def test_a_last_round_that_an_unproven_connection_ended_is_counted_without_a_successor(tmp_path: Path) -> None:
    records = one_kill().replace('"failures": 1', '"failures": 1, "unproven": 1')
    path = tmp_path / "events.jsonl"
    path.write_text(records)
    found = dict(facts(recorded_run(Records(path))))
    assert found["rounds"] == "2: 1 failure, 0 preemptions, 0 resizes, 1 unproven connection"


def test_a_page_of_hostile_names_has_only_our_scripts(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    path.write_text(one_kill(HOSTILE).replace('"loss"', json.dumps(HOSTILE)))
    page = html_report(recorded_run(Records(path, {"command": [HOSTILE], "np": 2})), HOSTILE)
    outline = Outline()
    outline.feed(page)
    assert [script.get("id") for script in outline.scripts] == ["data", *[None] * (1 + len(PAGE_SCRIPTS))]
    assert outline.events == []
    assert any(HOSTILE in text for text in outline.texts)
    data = json.loads(outline.data)
    assert data["head"]["run_id"] == HOSTILE
    assert {lane["host"] for lane in data["lanes"]["lanes"]} == {HOSTILE}
    (policy,) = re.findall(r'Content-Security-Policy" content="([^"]+)"', page)
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    assert policy.count("sha256-") == 1 + len(PAGE_SCRIPTS)
    assert "unsafe-eval" not in policy


def test_plotly_can_stand_in_a_page() -> None:
    script = plotly_script().read_text(encoding="utf-8").lower()
    assert "</script" not in script
    assert not ("<!--" in script and "<script" in script)


def test_data_that_ends_no_element() -> None:
    reported = {"a": "</script>", "b": "<!--", "c": "]]>&"}
    text = script_safe(reported)
    assert not set("<>&") & set(text)
    assert json.loads(text) == reported


def test_a_frame_is_filled_once() -> None:
    assert filled("<p><!--a--></p><!--b-->", a="<!--b-->", b="x") == "<p><!--b--></p>x"


def test_the_last_of_several_runs_in_one_log(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    path.write_text(one_kill("a") + one_kill("b"))
    history = recorded_run(Records(path)).history
    assert {host for host, _ in history.lanes.of_slots} == {"b"}


def test_a_report_is_written_and_its_path_is_printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "edriver" / "abcd"
    folder.mkdir(parents=True)
    (folder / "events.jsonl").write_text(one_kill())
    (folder / "run.json").write_text('{"run_id": "abcd", "np": 2, "min_np": 1, "max_np": 2, "command": ["python"]}')
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    MadeRun("abcd").write_output(tmp_path / "edriver", (0, "the last words of rank 0"))
    assert report(["abcd"]).splitlines()[-1] == "edriver-abcd.html"
    assert "the last words of rank 0" in (tmp_path / "edriver-abcd.html").read_text(encoding="utf-8")
    assert "<h1>Run abcd</h1>" in (tmp_path / "edriver-abcd.html").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("lines", "words", "sentence"),
    [
        pytest.param("", [], "records no run: it is empty", id="empty"),
        pytest.param("{}\n", [], r"line 1 is not an event \(it has no number\)", id="nonsense"),
        pytest.param(line(1, 0, "a", remark={}), ["--output", "no/where.html"], "No such file", id="no-folder"),
    ],
)
def test_what_cannot_be_reported(tmp_path: Path, lines: str, words: list[str], sentence: str) -> None:
    path = tmp_path / "events.jsonl"
    path.write_text(lines)
    with pytest.raises(RunError, match=sentence):
        report([str(path), *words])


def test_without_plotly_the_error_names_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(assets, "find_spec", lambda name: None)
    with pytest.raises(RunError, match=re.escape(INSTALL_COMMAND)):
        plotly_script()


@pytest.mark.parametrize(
    "run_id", ["a\0b", "../../x", "\ud800", "", 7], ids=["nul", "path", "surrogate", "empty", "number"]
)
def test_a_run_json_with_a_strange_id_is_reported_by_its_folders_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run_id: object
) -> None:
    folder = tmp_path / "abcd"
    folder.mkdir()
    (folder / "events.jsonl").write_text(one_kill())
    (folder / "run.json").write_text(json.dumps({"run_id": run_id, "command": ["a\0b", "\ud800"]}))
    monkeypatch.chdir(tmp_path)
    before = os.umask(0)
    try:
        assert report(["abcd"]).splitlines()[-1] == "edriver-abcd.html"
    finally:
        os.umask(before)
    assert (tmp_path / "edriver-abcd.html").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("text", ["\0", '{"run_id": "a', "[" * 100_000, "[]"], ids=["nul", "torn", "deep", "a-list"])
def test_an_invalid_run_json_is_reported(tmp_path: Path, text: str) -> None:
    (tmp_path / "events.jsonl").write_text(one_kill())
    (tmp_path / "run.json").write_text(text)
    with pytest.raises(RunError, match=r"run\.json is not (JSON|an object)"):
        report([str(tmp_path)])


def test_a_path_with_a_nul_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text(one_kill())
    with pytest.raises(RunError, match=r"--output .*null (byte|character)"):
        report([str(path), "--output", "a\0b"])
