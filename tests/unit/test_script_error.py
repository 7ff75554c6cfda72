"""What makes two tracebacks the same error: the exception's type and the place in the user's own files."""

from __future__ import annotations

import signal
import subprocess
import sys
import textwrap
import traceback
from pathlib import Path

import pytest

from edriver.model.script_error import ScriptError, crash_place, script_error

PLAIN = """\
Traceback (most recent call last):
  File "/opt/venv/lib/python3.11/site-packages/edriver/worker/rounds/script_call.py", line 43, in perform
    result = function(state, *args, **kwargs)
             ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
  File "/home/me/train.py", line 17, in train
    check(labels)
  File "/home/me/my labels.py", line 3, in check
    raise ValueError(f"bad label {labels[0]}")
ValueError: bad label 17
"""

IN_A_LIBRARY = """\
Traceback (most recent call last):
  File "/home/me/train.py", line 20, in train
    loss.backward()
  File "/opt/venv/lib/python3.11/site-packages/torch/_tensor.py", line 581, in backward
    torch.autograd.backward(
torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.
GPU 0 has a total capacity of 79.10 GiB
"""

CHAINED = """\
Traceback (most recent call last):
  File "/home/me/train.py", line 5, in read
    return cache[key]
KeyError: 7

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "/home/me/train.py", line 20, in train
    read(7)
  File "/home/me/train.py", line 7, in read
    raise OSError("no such sample")
OSError: no such sample
"""

LOADER = """\
Traceback (most recent call last):
  File "/home/me/train.py", line 9, in train
    for batch in loader:
  File "/usr/lib/python3/dist-packages/torch/utils/data/dataloader.py", line 701, in __next__
    data = self._next_data()
IndexError: Caught IndexError in DataLoader worker process 3.
Original Traceback (most recent call last):
  File "/home/me/dataset.py", line 40, in __getitem__
    return self.rows[index]
IndexError: list index out of range
"""

UNCALLED = """\
Traceback (most recent call last):
  File "/opt/venv/lib/python3.11/site-packages/edriver/worker/state/state.py", line 90, in sync
    raise StateError
edriver.StateError
"""


@pytest.mark.parametrize(
    ("text", "error"),
    [
        pytest.param(PLAIN, ScriptError("ValueError", "/home/me/my labels.py", 3, "check"), id="plain"),
        pytest.param(
            IN_A_LIBRARY, ScriptError("torch.OutOfMemoryError", "/home/me/train.py", 20, "train"), id="in-a-library"
        ),
        pytest.param(CHAINED, ScriptError("OSError", "/home/me/train.py", 7, "read"), id="chained"),
        pytest.param(LOADER, ScriptError("IndexError", "/home/me/train.py", 9, "train"), id="in-a-data-loader"),
        pytest.param(
            UNCALLED,
            ScriptError(
                "edriver.StateError", "/opt/venv/lib/python3.11/site-packages/edriver/worker/state/state.py", 90, "sync"
            ),
            id="without-a-place-of-the-users",
        ),
        pytest.param("ValueError: bad label 17", ScriptError("ValueError: bad label 17", "", 0, ""), id="no-traceback"),
        pytest.param("", ScriptError("", "", 0, ""), id="nothing"),
    ],
)
def test_place(text: str, error: ScriptError) -> None:
    assert script_error(text) == error


def test_the_message_does_not_matter() -> None:
    assert script_error(PLAIN) == script_error(PLAIN.replace("bad label 17", "bad label 23\nat 0x7f00"))


@pytest.mark.parametrize(
    "changed",
    [
        pytest.param(PLAIN.replace("ValueError: bad", "TypeError: bad"), id="another-type"),
        pytest.param(PLAIN.replace("line 3, in check", "line 4, in check"), id="another-line"),
        pytest.param(PLAIN.replace("/home/me/my labels.py", "/home/me/other.py"), id="another-file"),
    ],
)
def test_type_and_place_do(changed: str) -> None:
    assert script_error(changed) != script_error(PLAIN)


def test_a_real_one_is_read_as_python_prints_it() -> None:
    source = textwrap.dedent("""\
        def inner(x):
            return 1 / x

        inner(0)
        """)
    try:
        exec(compile(source, "train.py", "exec"))
    except ZeroDivisionError:
        assert script_error(traceback.format_exc()) == ScriptError("ZeroDivisionError", "train.py", 2, "inner")


def test_in_words() -> None:
    assert str(script_error(CHAINED)) == "OSError at /home/me/train.py:7, in read"
    assert str(script_error("killed")) == "killed"


CRASH = """Fatal Python error: Aborted

Thread 0x00007f8af981d6c0 (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 982 in run
  File "/home/me/prefetch.py", line 4 in fill

Current thread 0x00007f8afa2b6b80 (most recent call first):
  File "/venv/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py", line 2810 in all_reduce
  File "/home/me/my train.py", line 14 in log_loss
  File "/home/me/my train.py", line 31 in train
  File "/venv/lib/python3.11/site-packages/edriver/worker/rounds/script_call.py", line 60 in perform
  File "/home/me/my train.py", line 40 in <module>

"""


def test_the_place_of_a_crash_is_that_of_the_training_thread() -> None:
    assert crash_place(CRASH) == ScriptError("", "/home/me/my train.py", 14, "log_loss")
    earlier = CRASH.replace("my train.py", "of a data loader's process.py")
    assert crash_place(earlier + CRASH) == crash_place(CRASH)
    assert crash_place("Fatal Python error: Aborted\n\n<no Python frame>\n") is crash_place("") is None


def test_the_place_of_a_real_crash(tmp_path: Path) -> None:
    script = tmp_path / "crashes.py"
    script.write_text("""\
import faulthandler, os, signal, threading
faulthandler.enable()
threading.Thread(target=threading.Event().wait, daemon=True).start()
def dies():
    os.kill(os.getpid(), signal.SIGABRT)
dies()
""")
    done = subprocess.run([sys.executable, str(script)], stderr=subprocess.PIPE, text=True)
    assert (done.returncode, crash_place(done.stderr)) == (-signal.SIGABRT, ScriptError("", str(script), 5, "dies"))
