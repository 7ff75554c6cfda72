"""What a script raises can always be sent, and its type and place can be read from what was sent."""

from __future__ import annotations

import sys
from collections.abc import Callable

import pytest

from edriver.model.script_error import script_error
from edriver.text.wire_text import MAX_TEXT_LENGTH, wire_text
from edriver.v1 import notification_pb2 as pb
from edriver.worker.watch.traceback_text import traceback_text


@pytest.mark.parametrize(
    ("text", "sent"),
    [
        pytest.param("plain \u00e4 \U0001f600", "plain \u00e4 \U0001f600", id="as it is"),
        pytest.param("file \udcff.py", "file \\udcff.py", id="lone surrogate"),
        pytest.param("x" * 100, "x" * 100, id="as long as may be"),
    ],
)
def test_text_that_can_be_sent(text: str, sent: str) -> None:
    assert wire_text(text, 100) == sent


@pytest.mark.parametrize("text", ["a" + "x" * 5_000_000 + "z", "a" + "\udcff" * 99 + "z"], ids=["long", "escapes"])
def test_a_long_text_keeps_both_ends(text: str) -> None:
    sent = wire_text(text, 200)
    assert len(sent) <= 200
    assert "characters left out" in sent
    assert (sent[0], sent[-1]) == ("a", "z")


class UnprintableError(Exception):
    """Its str() raises."""

    def __str__(self) -> str:
        raise RuntimeError("no words")


class HostileError(Exception):
    """Its `__notes__` raises."""

    @property
    def __notes__(self) -> list[str]:  # type: ignore[override]
        raise RuntimeError("no notes")


def surrogate() -> None:
    raise ValueError("cannot read file \udcff\udcfe.png")


def large() -> None:
    raise ValueError("x" * 5_000_000)


def many_lines() -> None:
    raise ValueError("\n".join(["Traceback (most recent call last):", '  File "other.py", line 1, in f'] * 200_000))


def unprintable() -> None:
    raise UnprintableError


def hostile() -> None:
    raise HostileError("words")


def chained() -> None:
    try:
        large()
    except ValueError as error:
        raise KeyError("\udcff") from error


def large_at_the_end_of_a_chain() -> None:
    try:
        surrogate()
    except ValueError:
        raise ValueError("y" * 5_000_000) from None


def deep() -> None:
    def down(left: int) -> None:
        if left:
            down(left - 1)
        else:
            raise ValueError("z" * 200_000)

    down(300)


def group() -> None:
    raise ExceptionGroup("many", [ValueError("v" * 200_000), ValueError("\udcff"), *[KeyError(i) for i in range(3)]])


def small_group() -> None:
    raise ExceptionGroup("many", [ValueError("a"), ExceptionGroup("more", [KeyError(1)])])


def group_from_an_error() -> None:
    try:
        surrogate()
    except ValueError as error:
        raise ExceptionGroup("many", [error]) from error


def error_from_a_group() -> None:
    try:
        small_group()
    except ExceptionGroup as error:
        raise ValueError("after it") from error


@pytest.mark.parametrize(
    ("raise_it", "kind", "function"),
    [
        pytest.param(surrogate, "ValueError", "surrogate", id="surrogate"),
        pytest.param(large, "ValueError", "large", id="large"),
        pytest.param(many_lines, "ValueError", "many_lines", id="a-message-like-a-traceback"),
        pytest.param(unprintable, f"{__name__}.UnprintableError", "unprintable", id="str-raises"),
        pytest.param(hostile, f"{__name__}.HostileError", "hostile", id="notes-raise"),
        pytest.param(chained, "KeyError", "chained", id="chained"),
        pytest.param(large_at_the_end_of_a_chain, "ValueError", "large_at_the_end_of_a_chain", id="chained-large"),
        pytest.param(deep, "ValueError", "down", id="deep"),
        pytest.param(group, "ExceptionGroup", "group", id="group-large"),
        pytest.param(small_group, "ExceptionGroup", "small_group", id="group"),
        pytest.param(group_from_an_error, "ExceptionGroup", "group_from_an_error", id="group-chained"),
        pytest.param(error_from_a_group, "ValueError", "error_from_a_group", id="from-a-group"),
    ],
)
def test_type_and_place_of_whatever_is_raised_are_kept(raise_it: Callable[[], None], kind: str, function: str) -> None:
    with pytest.raises(Exception) as raised:
        raise_it()
    text = traceback_text(raised.value)
    assert len(text) <= MAX_TEXT_LENGTH
    sent = pb.Report.FromString(pb.Report(worker_failed=pb.WorkerFailed(traceback=text)).SerializeToString())
    found = script_error(sent.worker_failed.traceback)
    assert (found.kind, found.function) == (kind, function)
    assert found.file == __file__
    assert found.line > 0


def test_a_recursion_without_end() -> None:
    def down() -> None:
        down()

    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(300)
    try:
        with pytest.raises(RecursionError) as raised:
            down()
    finally:
        sys.setrecursionlimit(limit)
    found = script_error(traceback_text(raised.value))
    assert (found.kind, found.function) == ("RecursionError", "down")
