"""A run's name: one process has it, and it leads to the latest run."""

from __future__ import annotations

from pathlib import Path

import pytest

from edriver.cli.resuming.supervise import driver_arguments
from edriver.driver.journal.run_name import NAMES_FOLDER, RunName, RunNameTakenError, check_run_name


def test_one_process_has_a_name_and_it_leads_to_the_latest_run(tmp_path: Path) -> None:
    name = RunName(tmp_path, "nightly")
    assert name.run_id == ""
    name.give_to("5d2f01aa")
    name.give_to("5d2f01ab")
    assert name.run_id == "5d2f01ab"
    with pytest.raises(RunNameTakenError, match="run nightly already has a driver"):
        RunName(tmp_path, "nightly")
    assert RunName(tmp_path, "weekly").run_id == ""


def test_a_file_that_a_crash_has_left_names_no_run(tmp_path: Path) -> None:
    (tmp_path / NAMES_FOLDER).mkdir()
    (tmp_path / NAMES_FOLDER / "nightly").write_text("5d2f")
    assert RunName(tmp_path, "nightly").run_id == ""


@pytest.mark.parametrize("name", ["", ".hidden", "../up", "a/b", "a b", "n" * 101, "-np"])
def test_what_is_no_name(name: str) -> None:
    with pytest.raises(ValueError, match="is not a name for a run"):
        check_run_name(name)


def test_every_driver_of_a_supervisor_has_the_same_run() -> None:
    given = ["-np", "2", "--supervise", "train", "--supervise"]
    first, *rest = driver_arguments(given, named=False)
    assert (first, rest[1:]) == ("--run", ["-np", "2", "train", "--supervise"])
    assert driver_arguments(["--run", "a", *given], named=True) == ["--run", "a", "-np", "2", "train", "--supervise"]
