"""`edriver --print-completion`: bash completes every word and flag, and files where a command may come."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from edriver.cli.completion import words_of_edriver
from edriver.cli.main import main
from edriver.cli.run_flags import flags_parser
from edriver.cli.subcommands import SUBCOMMANDS

ASK = """
source "$1"
COMP_WORDS=("${@:2}")
COMP_CWORD=$(($# - 2))
_shtab_edriver edriver "${COMP_WORDS[COMP_CWORD]}"
printf '%s\\n' "${COMPREPLY[@]}"
"""
"""What bash does on Tab. Arguments: the file with the completion, then the words of the command line."""


@pytest.fixture(scope="module")
def sourced(tmp_path_factory: pytest.TempPathFactory) -> Path:
    with pytest.MonkeyPatch.context() as patch, (tmp_path_factory.mktemp("completion") / "edriver").open("w") as file:
        patch.setattr("sys.stdout", file)
        assert main(["--print-completion", "bash"]) == 0
    return Path(file.name)


def completed(sourced: Path, *words: str, folder: Path | None = None) -> list[str]:
    asked = ["bash", "--norc", "-c", ASK, "bash", str(sourced), "edriver", *words]
    return subprocess.run(asked, cwd=folder, capture_output=True, text=True, check=True, timeout=60).stdout.split()


@pytest.mark.parametrize(
    ("words", "found"),
    [
        pytest.param(["dr"], ["drain"], id="word"),
        pytest.param(["-np", "2", "--elastic"], ["--elastic-timeout"], id="flag-after-a-value"),
        pytest.param(["drain", "--rea"], ["--reason"], id="flag-of-a-word"),
        pytest.param(["--print-completion", "b"], ["bash"], id="choice"),
        pytest.param(["-np", "2", "python", "tra"], [], id="command"),
    ],
)
def test_bash_completes(sourced: Path, words: list[str], found: list[str]) -> None:
    assert completed(sourced, *words) == found


def test_bash_completes_files_where_a_flag_takes_one(sourced: Path, tmp_path: Path) -> None:
    (tmp_path / "hosts.txt").touch()
    assert completed(sourced, "--hostfile", "ho", folder=tmp_path) == ["hosts.txt"]


def test_bash_completes_files_where_edriver_has_nothing_to_say(sourced: Path) -> None:
    """The words of the command to run."""
    registered = subprocess.run(
        ["bash", "--norc", "-c", 'source "$1"; complete -p edriver', "bash", str(sourced)],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert "-o default" in registered.stdout


def test_no_word_is_forgotten() -> None:
    assert {word for word, _ in words_of_edriver()} == {"run", *SUBCOMMANDS}


@pytest.mark.parametrize("shell", ["bash", "zsh"])
def test_every_flag_is_in_it(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--print-completion", shell]) == 0
    text = capsys.readouterr().out
    for action in flags_parser()._actions:
        assert all(flag in text for flag in action.option_strings)
