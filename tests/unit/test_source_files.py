"""The source that a worker has loaded: which files count, and what is said of one that differs."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from edriver.driver.agents.agent_messages import MAX_LOADED, AgentMessages
from edriver.driver.agents.fault_log import FaultLog
from edriver.driver.observe.warnings import Sources
from edriver.model import events
from edriver.model.events import SourceFile, SourcesLoaded
from edriver.v1 import agent_pb2, notification_pb2

LOOK = """
import json
import sys
from edriver.worker.watch.source_files import SourceFiles
looks = SourceFiles()
import beside
import package.inner
import os
os.chdir("/")
first = [file.name for file in looks.new()]
again = [file.name for file in looks.new()]
import later
import threading
found, seen = [], threading.Event()
looks.look(lambda files: (found.extend(file.name for file in files), seen.set()))
assert seen.wait(60)
print(json.dumps([sorted(first), again, found]))
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    (folder / "package").mkdir(parents=True)
    (folder / "venv" / "site-packages").mkdir(parents=True)
    for name in ("beside.py", "later.py", "unused.py", "package/__init__.py", "venv/site-packages/installed.py"):
        (folder / name).touch()
    (folder / "package" / "inner.py").write_text("import elsewhere, installed")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "elsewhere.py").touch()
    (folder / "script.py").write_text(LOOK)
    (folder / "package" / "script.py").write_text(LOOK)
    (tmp_path / "link").symlink_to(folder)
    return folder


@pytest.mark.parametrize(
    ("words", "script"),
    [
        pytest.param(["script.py"], "script.py", id="a-file"),
        pytest.param(["../link/script.py"], "script.py", id="a-file-by-a-link"),
        pytest.param(["-m", "package.script"], "package/script.py", id="a-module"),
        pytest.param(
            ["-c", "import runpy; runpy.run_path('script.py', run_name='__main__')"], "script.py", id="run-by-another"
        ),
    ],
)
def test_the_script_and_what_it_has_imported_from_beside_it(project: Path, words: list[str], script: str) -> None:
    root = Path(__file__).parents[2]
    path = [str(project / "venv" / "site-packages"), str(project.parent / "elsewhere"), str(root)]
    path += [str(project)] if words[0] == "-c" else []
    environ = {"PYTHONPATH": ":".join(path), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, *words]
    printed = subprocess.run(command, cwd=project, env=environ, stdout=subprocess.PIPE, check=True).stdout
    expected = ["beside.py", "package/__init__.py", "package/inner.py", script]
    assert json.loads(printed) == [sorted(expected), [], ["later.py"]]


def loaded(worker_id: int, **digests: str) -> SourcesLoaded:
    files = (SourceFile(f"{name}.py", digest.encode(), 1e9 + at) for at, (name, digest) in enumerate(digests.items()))
    return SourcesLoaded(worker_id, tuple(files))


def test_a_file_that_differs_from_the_first_is_named_with_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    sources = Sources()
    assert sources.differing(loaded(1, a="1", b="1")) == ""
    assert sources.differing(loaded(2, a="1", c="1")) == ""
    text = sources.differing(loaded(3, a="1", b="2"))
    assert text.startswith("b.py (changed at 2001-09-")
    assert sources.differing(loaded(4, c="2")).startswith("c.py (")
    assert sources.differing(loaded(5, a="1", b="1")) == ""
    assert sources.differing(loaded(6, b="2")) == "", "it has been said"
    assert sources.differing(loaded(6, b="3"))


def test_what_another_worker_has_reported_is_no_event() -> None:
    """By content: a host's copy may have been made at another time."""
    messages = AgentMessages(agent_pb2.Welcome(), lambda _: None, lambda _: None, FaultLog())
    peer: Any = SimpleNamespace(identity=SimpleNamespace(workers={1, 2, 3}))

    def event(worker_id: int, digest: bytes, also: bytes = b"", at: int = 5) -> events.Event | None:
        loaded = notification_pb2.SourcesLoaded()
        for name, content in (("a.py", digest), *([("b.py", also)] if also else [])):
            loaded.files.add(name=name, digest=content).modify_time.FromSeconds(at)
        report = notification_pb2.Report(sources_loaded=loaded)
        sent = agent_pb2.WorkerReport(worker_id=worker_id, report=report)
        taken, _ = messages.taken(peer, agent_pb2.ConnectRequest(worker_report=sent))
        return taken

    assert event(1, b"1") == SourcesLoaded(1, (SourceFile("a.py", b"1", 5.0),))
    assert event(2, b"1", at=6) is None
    assert event(2, b"1", also=b"1") == SourcesLoaded(2, (SourceFile("b.py", b"1", 5.0),))
    assert event(3, b"2") == SourcesLoaded(3, (SourceFile("a.py", b"2", 5.0),))
    for number in range(MAX_LOADED):
        assert event(1, b"other %d" % number)
    assert event(1, b"1") == SourcesLoaded(1, (SourceFile("a.py", b"1", 5.0),))


def test_many_files_are_counted_and_the_latest_is_named_first() -> None:
    sources = Sources()
    names = "abcde"
    sources.differing(loaded(1, **dict.fromkeys(names, "1")))
    text = sources.differing(loaded(2, **dict.fromkeys(names, "2")))
    assert text.startswith("e.py (")
    assert text.endswith(", 2 more")
    odd = SourcesLoaded(3, (SourceFile("a.py", b"3", 1e300),))
    assert sources.differing(odd) == "a.py (changed at an unknown time)"
