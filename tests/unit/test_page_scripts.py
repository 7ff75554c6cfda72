"""The scripts of a page share one scope: a name that two of them declare keeps the second from running at all."""

from __future__ import annotations

import re
from collections import Counter

import pytest

from edriver.dashboard.assets import COMPARE_SCRIPTS, LIST_SCRIPTS, PAGE_SCRIPTS, STEERING_SCRIPT, page_file


@pytest.mark.parametrize("scripts", [(*PAGE_SCRIPTS, STEERING_SCRIPT), COMPARE_SCRIPTS, LIST_SCRIPTS])
def test_no_two_scripts_of_a_page_declare_the_same_name(scripts: tuple[str, ...]) -> None:
    declared = Counter(
        name
        for script in scripts
        for name in re.findall(r"^(?:const|let|class|async function|function) (\w+)", page_file(script), re.MULTILINE)
    )
    assert [name for name, count in declared.items() if count > 1] == []
