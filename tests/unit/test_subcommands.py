"""What may come first on the command line, and what is said of a first word that is neither that nor a program."""

from __future__ import annotations

import pytest

from edriver.cli import run_flags
from edriver.cli.hints import hint_of
from edriver.cli.main import main
from edriver.cli.subcommands import SUBCOMMANDS


@pytest.mark.parametrize("name", SUBCOMMANDS)
def test_each_has_a_help_of_its_own(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["help", name], [name, "--help"]):
        with pytest.raises(SystemExit) as ended:
            main(words)
        assert ended.value.code == 0
        assert capsys.readouterr().out.startswith(f"usage: edriver {name}")


def test_the_help_names_them_before_the_flags(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["help"])
    assert ended.value.code == 0
    commands, flags, _ = capsys.readouterr().out.partition("\npositional arguments:\n")
    assert flags
    rows = [line for line in commands.splitlines() if line.startswith("  ")]
    assert [row.split()[0] for row in rows] == list(SUBCOMMANDS)
    assert len({row.index(SUBCOMMANDS[row.split()[0]].summary) for row in rows}) == 1, "they stand in one column"


def help_of(words: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("COLUMNS", "100")
    with pytest.raises(SystemExit):
        main(words)
    return capsys.readouterr().out


def test_the_help_shows_what_most_runs_need_and_that_of_run_all_flags(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    brief = help_of(["--help"], capsys, monkeypatch)
    assert len(brief.splitlines()) < 100
    assert max(map(len, brief.splitlines())) <= 100
    assert "edriver run --help lists all of them" in brief
    full = help_of(["run", "--help"], capsys, monkeypatch)
    flags = run_flags.all_flags()
    assert [flag.names for flag in flags if flag.names[-1] not in full] == []
    common = {flag.names for flag in flags if f"{flag.names[-1]} " in brief}
    assert len(common) < len(flags) / 3
    assert ("--name",) in common
    assert ("--worker-lease",) not in common
    known = {name for flag in flags for name in flag.names} | {"-h", "command"}
    assert known >= run_flags.COMMON_FLAGS, "each of them is a flag"


def test_run_may_stand_before_the_flags_of_a_run(capsys: pytest.CaptureFixture[str]) -> None:
    said = []
    for words in (["-np", "3"], ["run", "-np", "3"]):
        assert main([*words, "--explain", "true"]) == 0
        said.append(capsys.readouterr().out)
    assert said[0] == said[1]
    assert "3" in said[0]


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        pytest.param("statsu", "did you mean `edriver status`?", id="nearly-a-subcommand"),
        pytest.param("runn -np 2 true", "did you mean `edriver run`?", id="nearly-run"),
        pytest.param("sh train.sh -np 2", "first: `edriver -np 2 sh train.sh`", id="flag-behind-program"),
        pytest.param("sh -c x --num-proc 2 y", "`edriver --num-proc 2 sh -c x y`", id="the-long-flag"),
        pytest.param("sh train.sh", None, id="no-flag-at-all"),
        pytest.param("quite-another-word", None, id="nothing-alike"),
        pytest.param("./statsu", None, id="a-file"),
    ],
)
def test_mistakes_that_are_recognised(words: str, hint: str | None) -> None:
    said = hint_of(words.split())
    assert (said is None) if hint is None else (said is not None and hint in said)


def test_a_mistake_ends_with_the_code_of_bad_flags(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["statsu"])
    assert ended.value.code == 2
    assert "edriver status" in capsys.readouterr().err
