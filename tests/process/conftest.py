"""What several tests of real processes share."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests import needs
from tests.process.chromium import CHROMIUM, FLAGS

if TYPE_CHECKING:
    from playwright.sync_api import Browser

MEMORY = Path("/sys/fs/cgroup/memory")


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    from playwright.sync_api import expect, sync_playwright  # which few tests need

    from tests.process.dashboards import WAIT

    needs.require(needs.CHROMIUM)
    expect.set_options(timeout=WAIT)
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield chromium
        chromium.close()


@pytest.fixture
def small_cgroup() -> Iterator[Path]:
    """A cgroup whose processes may use 600 MiB together; the test makes and removes it."""
    mount = MEMORY if (MEMORY / "memory.limit_in_bytes").exists() else Path("/sys/fs/cgroup")
    v1 = mount == MEMORY
    folder = mount / f"edriver-test-{os.getpid()}"
    try:
        folder.mkdir()
        (folder / ("memory.limit_in_bytes" if v1 else "memory.max")).write_text(str(600 << 20))
    except OSError:
        if folder.exists():
            folder.rmdir()
        if os.environ.get("CI") and os.geteuid() == 0 and v1:
            raise
        needs.lack(needs.CGROUPS)
    yield folder
    folder.rmdir()
