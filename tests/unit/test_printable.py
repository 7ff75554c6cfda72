"""Text that is printed to a terminal."""

from __future__ import annotations

import os

import pytest

from edriver.driver.observe.console.output import Output
from edriver.text.printable import printable

EVIL = "a\x1b[2J\x1b]0;title\a\r\x9b\u202eb"
SHOWN = r"a\x1b[2J\x1b]0;title\x07\r\x9b\u202eb"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        pytest.param("plain, ü 日本 🙂", "plain, ü 日本 🙂", id="printable"),
        pytest.param("two\n\tlines", "two\n\tlines", id="lines-and-tabs"),
        pytest.param(EVIL, SHOWN, id="control-characters"),
        pytest.param("\ud800", r"\ud800", id="lone-surrogate"),
    ],
)
def test_control_characters_are_written_out(text: str, shown: str) -> None:
    assert printable(text) == shown


def test_the_drivers_own_lines_have_none() -> None:
    read, write = os.pipe()
    output = Output(stdout=write, stderr=write)
    output.say(f"host {EVIL.replace(chr(13), '')} is lost")
    output.close()
    os.close(write)
    with os.fdopen(read, "rb") as printed:
        assert printed.read() == f"edriver: host {SHOWN.replace(chr(92) + 'r', '')} is lost\n".encode()
