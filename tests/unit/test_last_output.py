"""The last lines of a worker's output beside its exception."""

from __future__ import annotations

import pytest

from edriver.text.last_output import own_last_lines

HEADER = "Traceback (most recent call last):"
RAISED = f"""{HEADER}
  File "loop.py", line 8, in run
  File "train.py", line 3, in train
ValueError: no"""
PRINTED = f"""{HEADER}
  File "train.py", line 9, in <module>
{RAISED.partition(chr(10))[2]}"""


@pytest.mark.parametrize(
    ("tail", "own"),
    [
        pytest.param(f"step 1\n\nstep 2\n{PRINTED}\n", ["step 1", "step 2"], id="before"),
        pytest.param(f"step 1\n{PRINTED}\ngoodbye", ["step 1", "goodbye"], id="before and after"),
        pytest.param(PRINTED.partition("\n")[2], [], id="its beginning has been left out"),
        pytest.param(f"{PRINTED.partition(chr(10))[2]}\ngoodbye", ["goodbye"], id="the same, and more after it"),
        pytest.param("step 1\nstep 2", ["step 1", "step 2"], id="nothing of it was printed"),
    ],
)
def test_the_exception_is_not_among_them(tail: str, own: list[str]) -> None:
    assert own_last_lines(tail, RAISED) == own


def test_without_an_exception_all_of_them_count() -> None:
    assert own_last_lines(PRINTED, "") == PRINTED.splitlines()
