"""Walks the cases: the core must answer each block of events with the actions that stand under it.

After a deliberate change of the core, `python -m tests.script --rewrite` writes what it answers now.
"""

from __future__ import annotations

import typing
from pathlib import Path

import pytest

from edriver.model.actions import Action
from edriver.model.events import Event
from tests.script.case import CASES, NOTHING, format_case, parse_case
from tests.script.interpreter import Interpreter

PATHS = sorted(CASES.glob("*.txt"))


@pytest.mark.parametrize("path", PATHS, ids=[path.stem for path in PATHS])
def test_case(path: Path) -> None:
    interpreter = Interpreter()
    for block in parse_case(path.read_text()):
        answer = [line for command in block.commands for line in interpreter.perform(command)]
        assert str(block.answered(answer)) == str(block)


@pytest.mark.parametrize("path", PATHS, ids=[path.stem for path in PATHS])
def test_a_case_says_what_it_shows_and_is_written_as_a_rewrite_would(path: Path) -> None:
    text = path.read_text()
    assert text.startswith("# ")
    assert format_case(parse_case(text)) == text


def test_the_cases_show_every_event_and_every_action() -> None:
    interpreters = []
    for path in PATHS:
        interpreter = Interpreter()
        interpreters.append(interpreter)
        for block in parse_case(path.read_text()):
            for command in block.commands:
                interpreter.perform(command)
    assert set().union(*(i.shown for i in interpreters)) == set(typing.get_args(Action))
    assert set().union(*(i.received for i in interpreters)) == set(typing.get_args(Event))


@pytest.mark.parametrize(
    ("text", "trouble"),
    [
        pytest.param("hosts a:2\n", "no ----", id="no-dashes"),
        pytest.param("hosts a:2\n----\n", "actions after it", id="nothing-expected"),
        pytest.param("# why\n----\n(nothing)\n", "commands stand before", id="no-commands"),
        pytest.param("hosts a:2\n----\n(nothing)\n\n# and then\n", "ends with a comment", id="dangling-comment"),
    ],
)
def test_a_malformed_case_is_refused(text: str, trouble: str) -> None:
    with pytest.raises(ValueError, match=trouble):
        parse_case(text)


@pytest.mark.parametrize("command", ["explode 1", "", "Hosts a:2"])
def test_an_unknown_command_is_refused(command: str) -> None:
    with pytest.raises(ValueError, match="no command"):
        Interpreter().perform(command)


def test_a_wrong_answer_differs_from_the_case() -> None:
    (block,) = parse_case("run np=1 min-np=1 max-np=1\nhosts a:1\n----\nstart agent 2 on a\n")
    interpreter = Interpreter()
    answer = [line for command in block.commands for line in interpreter.perform(command)]
    assert block.answered(answer).expected == (
        "start agent 1 on a",
        "explain: workers-awaited found=0 needed=1",
    )
    assert block.answered([]).expected == (NOTHING,)
