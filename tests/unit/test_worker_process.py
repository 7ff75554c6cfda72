"""A process that the worker's script starts is not the worker. multiprocessing imports these scripts in its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from edriver.calls import worker_process

ROOT = Path(__file__).parents[2]

SCRIPT = """
import multiprocessing, os
import edriver, edriver.calls.worker_process
{before}
def work(): print("worked")
def train():
    child = multiprocessing.get_context("{method}").Process(target={target})
    child.start()
    child.join()
{top}
"""

CALLS = {
    "run": "edriver.run(print)(edriver.ObjectState())",
    "launch": "edriver.launch(print, np=1)",
    "init": "import edriver.horovod as hvd; hvd.init()",
}


def ended(folder: Path, source: str, **environ: str) -> subprocess.CompletedProcess[str]:
    (folder / "t.py").write_text(source)
    everything = {**os.environ, "PYTHONPATH": str(ROOT), **environ}
    return subprocess.run(
        [sys.executable, "t.py"], cwd=folder, env=everything, capture_output=True, text=True, timeout=300
    )


@pytest.mark.parametrize(("call", "method"), [("run", "forkserver"), ("init", "spawn"), ("launch", "spawn")])
def test_a_script_that_is_imported_again_is_told_so(tmp_path: Path, call: str, method: str) -> None:
    again = f"if __name__ == '__mp_main__':\n    {CALLS[call]}\nelse:\n    train()"
    child = ended(tmp_path, SCRIPT.format(before="", method=method, target="work", top=again))
    assert 'put the code that trains under `if __name__ == "__main__":`' in child.stderr, child.stderr


def test_a_process_that_the_worker_starts_is_told_which_one_the_worker_is(tmp_path: Path) -> None:
    top = f"def calls():\n    {CALLS['run']}\nif __name__ == '__main__':\n    train()"
    before = "if __name__ == '__main__':\n    edriver.calls.worker_process.claim(); print(os.getpid())"
    child = ended(
        tmp_path, SCRIPT.format(before=before, method="spawn", target="calls", top=top), EDRIVER_WORKER_ID="1"
    )
    assert f"but process {child.stdout.strip()} is this worker" in child.stderr, child.stderr


def test_the_worker_is_the_process_that_has_claimed_to_be() -> None:
    environ: dict[str, str] = {}
    assert worker_process.owner(environ) is None
    worker_process.claim(environ)
    assert worker_process.owner(environ) is None
    assert worker_process.owner({worker_process.WORKER_PID_VARIABLE: "1"}) == 1
