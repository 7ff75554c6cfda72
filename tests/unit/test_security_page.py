"""SECURITY.md names a test for each promise: each of them is there."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "SECURITY.md").read_text()

TESTS = sorted(set(re.findall(r"`(tests/\S+\.py::\w+)`", PAGE)))


@pytest.mark.parametrize("test", TESTS)
def test_each_test_that_is_named_is_there(test: str) -> None:
    path, _, name = test.partition("::")
    found = ROOT / path
    there = found.exists() and name in {
        node.name for node in ast.walk(ast.parse(found.read_text())) if isinstance(node, ast.FunctionDef)
    }
    assert there


def test_each_promise_names_one() -> None:
    promises = PAGE.partition("## What is promised to whom")[2].partition("## What is not promised")[0]
    rows = [line for line in promises.splitlines() if line.startswith("|")][2:]
    assert len(rows) > 30
    assert [row for row in rows if not re.search(r"`tests/\S+::test_\w+` \|$|`tests/\S+::test_\w+`, `tests", row)] == []


def test_it_is_linked() -> None:
    assert "(SECURITY.md)" in (ROOT / "README.md").read_text()
    assert "(../SECURITY.md)" in (ROOT / "docs" / "architecture.md").read_text()
