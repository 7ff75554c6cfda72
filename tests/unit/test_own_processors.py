"""What names the processors that a process may use."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from edriver.system import proc_stat
from edriver.system.proc_stat import own_processors


def test_it_is_the_same_for_all_processes_that_share_them(monkeypatch: pytest.MonkeyPatch) -> None:
    named = own_processors()
    assert 0 < len(named) <= 64
    usable = os.sched_getaffinity(0)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: usable)
    assert own_processors() == named
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {*usable, 4711})
    assert own_processors() != named


def test_other_machines_have_other_ones(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    named = own_processors()
    boot = tmp_path / "boot_id"
    monkeypatch.setattr(proc_stat, "_BOOT_ID", boot)
    assert own_processors() == ""
    boot.write_text("another\n")
    assert own_processors() not in ("", named)
