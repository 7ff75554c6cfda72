"""`hvd.run` has the arguments of horovod.run, by their new and their old names."""

from __future__ import annotations

from typing import Any

import pytest

import edriver
from edriver.cli.main import flags_parser


@pytest.mark.parametrize(
    ("given", "sizes", "flags"),
    [
        pytest.param({}, (1, None, None), [], id="one worker"),
        pytest.param({"num_proc": 2, "min_num_proc": 1, "max_num_proc": 4}, (2, 1, 4), [], id="new names"),
        pytest.param({"np": 2, "min_np": 1, "max_np": 4}, (2, 1, 4), [], id="old names"),
        pytest.param(
            {"slots": 2, "reset_limit": 3, "start_timeout": 9},
            (1, None, None),
            ["--slots-per-host", "2", "--reset-limit", "3", "--start-timeout", "9"],
            id="flags",
        ),
        pytest.param(
            {"cooldown_range": (1, 2), "verbose": 2},
            (1, None, None),
            ["--blacklist-cooldown-range", "1", "2", "--verbose"],
            id="other flags",
        ),
    ],
)
def test_arguments(
    monkeypatch: pytest.MonkeyPatch, given: dict[str, Any], sizes: tuple[object, ...], flags: list[str]
) -> None:
    import edriver.horovod as hvd

    asked: dict[str, Any] = {}

    def launch(*_: object, **options: Any) -> list[int]:
        asked.update(options)
        return [7]

    monkeypatch.setattr(edriver, "launch", launch)
    assert hvd.run(len, ("x",), hosts="localhost:2", **given) == [7]
    assert (asked["np"], asked["min_np"], asked["max_np"], asked["hosts"]) == (*sizes, "localhost:2")
    assert asked["flags"] == flags
    assert flags_parser().parse_known_args(flags)[1] == []
