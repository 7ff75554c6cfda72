"""What `edriver.launch` sends beside the function, and how a notebook shows the progress."""

from __future__ import annotations

import functools
import linecache
import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from edriver.calls import PROGRESS_MARK
from edriver.calls.launch import inherited
from edriver.calls.notebook import progress_display
from edriver.calls.parcels import MAX_CALL_NAME_LENGTH, PickledCall, dump, pack_call, unpack
from edriver.driver.observe.console.output import Output

CELL = "/tmp/ipykernel_7/1234.py"
SOURCE = """
def share(count):
    return 12 / count  # of a cell

def train(count):
    return share(count)
"""


@pytest.fixture
def cell(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The names of a notebook in which a cell was executed: it is in no file."""
    lines = SOURCE.splitlines(keepends=True)
    monkeypatch.setitem(linecache.cache, CELL, (len(SOURCE), None, lines, CELL))
    names: dict[str, Any] = {"__name__": "__main__"}
    exec(compile(SOURCE, CELL, "exec"), names)
    monkeypatch.setattr(sys.modules["__main__"], "train", names["train"], raising=False)
    monkeypatch.setattr(sys.modules["__main__"], "share", names["share"], raising=False)
    return names


def packed(function: Callable[..., Any], *args: Any) -> PickledCall:
    return pack_call(function, args, {}, ["", "/lib"], "the function with its arguments")


def test_a_worker_shows_the_lines_of_a_cell_that_it_has_no_file_of(
    cell: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    call = unpack(dump(packed(cell["train"], 0)))
    assert call.sources == {CELL: SOURCE}
    monkeypatch.setattr(linecache, "cache", {})  # another process
    call.show_sources()
    function, args, kwargs = unpack(call.pickled)
    with pytest.raises(ZeroDivisionError) as caught:
        function(*args, **kwargs)
    shown = "".join(traceback.format_exception(caught.value))
    assert f'File "{CELL}", line 6, in train\n    return share(count)\n' in shown
    assert f'File "{CELL}", line 3, in share\n    return 12 / count  # of a cell\n' in shown


def test_no_source_is_sent_of_what_workers_import() -> None:
    assert packed(os.path.join, "a", "b").sources == {}


def test_relative_entries_of_the_path_are_below_the_callers_folder() -> None:
    assert packed(print).path == [str(Path.cwd()), "/lib"]


class Trainer:
    def fit(self) -> None:
        """Do nothing."""

    def __call__(self) -> None:
        """Do nothing."""


@pytest.mark.parametrize(
    ("function", "name"),
    [
        (Trainer().fit, "Trainer.fit"),
        (Trainer(), "Trainer"),
        (functools.partial(functools.partial(print, 1), 2), "print"),
        (lambda: None, "<lambda>"),
    ],
)
def test_a_call_has_the_name_of_its_function(function: Callable[..., Any], name: str) -> None:
    assert packed(function).name == name


def test_a_local_function_has_its_own_name_which_is_not_too_long() -> None:
    def train() -> None:
        """Do nothing."""

    assert packed(train).name == "train"
    train.__qualname__ = "x" * 1000
    assert len(packed(train).name) == MAX_CALL_NAME_LENGTH


class Shown:
    """Stands for IPython: remembers its displays, each with what was shown in it."""

    def __init__(self, kernel: object) -> None:
        self.outputs: list[list[str]] = []
        self.display = SimpleNamespace(display=self._display)
        self._shell = SimpleNamespace(kernel=kernel)

    def get_ipython(self) -> object:
        return self._shell

    def _display(self, data: dict[str, str], *, raw: bool, display_id: bool) -> object:
        assert raw
        assert display_id
        output = [data["text/plain"]]
        self.outputs.append(output)
        return SimpleNamespace(update=lambda data, *, raw: output.append(data["text/plain"]))


def ipython(monkeypatch: pytest.MonkeyPatch, kernel: object) -> Shown:
    shown = Shown(kernel)
    monkeypatch.setitem(sys.modules, "IPython", shown)
    monkeypatch.setitem(sys.modules, "IPython.display", shown.display)
    return shown


def test_a_call_inside_a_worker_of_another_call_has_nothing_of_that() -> None:
    of_others = {"EDRIVER_CALL": "/f", "EDRIVER_CALL_EXCHANGE": "{}", "EDRIVER_CALL_PROGRESS": "1", "PET_NNODES": "2"}
    assert inherited({**of_others, "PATH": "/bin"}) == {"PATH": "/bin"}


def test_a_notebook_shows_the_progress_in_one_output(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = ipython(monkeypatch, kernel=object())
    show = progress_display()
    assert show is not None
    assert shown.outputs == []
    for line in ("step 1", "step 2", "step 3"):
        show(line)
    assert shown.outputs == [["step 1", "step 2", "step 3"]]


def test_only_a_notebook_has_a_display(monkeypatch: pytest.MonkeyPatch) -> None:
    ipython(monkeypatch, kernel=None)  # a shell
    assert progress_display() is None
    monkeypatch.delitem(sys.modules, "IPython")
    assert progress_display() is None


def test_a_progress_line_is_one_line_whatever_a_script_has_named(capfd: pytest.CaptureFixture[str]) -> None:
    output = Output()
    output.progress("step 1\n\x1estep 2")
    output.close()
    assert capfd.readouterr().err == f"{PROGRESS_MARK}step 1\\n\\x1estep 2\n"
