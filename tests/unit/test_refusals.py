"""Flags of horovodrun and torchrun that edriver does not have are refused by name, with what to use instead."""

from __future__ import annotations

import argparse
import re

import pytest

from edriver.cli import horovodrun_flags, main, torchrun_flags
from edriver.cli.subcommands import SUBCOMMANDS
from edriver.model.hosts import Devices

INSTEAD = horovodrun_flags.INSTEAD | torchrun_flags.INSTEAD


@pytest.mark.parametrize("flag", sorted(INSTEAD))
def test_a_flag_of_another_launcher_is_no_flag_of_edriver(flag: str) -> None:
    assert flag not in main.parser()._option_string_actions


NAMED_INSTEAD = [(flag, each) for flag in sorted(INSTEAD) for each in re.findall(r"(?<![\w-])--[a-z-]+", INSTEAD[flag])]


@pytest.mark.parametrize(("flag", "named"), NAMED_INSTEAD)
def test_what_is_named_instead_exists(flag: str, named: str) -> None:
    assert named in main.parser()._option_string_actions, INSTEAD[flag]


def test_most_flags_of_other_launchers_have_one_in_their_place() -> None:
    assert len({flag for flag, _ in NAMED_INSTEAD}) > len(INSTEAD) // 3


@pytest.mark.parametrize(
    ("word", "text"),
    [
        pytest.param("--fusion-threshold-mb", "--fusion-threshold-mb is a flag of horovodrun", id="by name"),
        pytest.param("--timeline-filename=/t", "--timeline-filename is a flag of horovodrun", id="with a value"),
        pytest.param("--torus-allreduce", "--torus-allreduce is a flag of horovodrun", id="horovod 0.28"),
        pytest.param("--log-line-prefix-template=x", "-template is a flag of torchrun", id="torch 2.15"),
        pytest.param("--autotune-log-file", "nothing to tune", id="of a family"),
        pytest.param("--rdzv-backend=c10d", "--rdzv-backend is a flag of torchrun", id="of torchrun"),
        pytest.param("--rdzv_backend=c10d", "--rdzv_backend is a flag of torchrun", id="underscores"),
        pytest.param("--nonsense", "--nonsense is not a flag of edriver (see", id="of no program"),
        pytest.param("--min-mp", "--min-mp is not a flag of edriver: did you mean --min-np?", id="mistyped"),
        pytest.param("--min_mp=1", "did you mean --min-np?", id="mistyped, with underscores and a value"),
        pytest.param("--slurm-partion", "did you mean --slurm-partition?", id="mistyped, of a cluster"),
    ],
)
def test_a_flag_is_refused_with_what_to_use(word: str, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main.main(["-np", "1", word, "true"])
    assert text in capsys.readouterr().err


@pytest.mark.parametrize("word", sorted(SUBCOMMANDS))
def test_a_mistyped_flag_of_a_subcommand_is_answered_with_the_flag(
    word: str, capsys: pytest.CaptureFixture[str]
) -> None:
    made = SUBCOMMANDS[word].parser()
    for action in made._actions:  # what it needs beside flags is not what is tested here
        action.required = False
    for group in made._mutually_exclusive_groups:
        group.required = False
    flag = max(made._option_string_actions, key=len)
    with pytest.raises(SystemExit) as ended:
        made.parse_args([f"{flag}x"])
    assert ended.value.code == 2
    assert f"{flag}x is not a flag of {made.prog}: did you mean {flag}?" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("line", "text"),
    [
        pytest.param(
            "status trial-a", "edriver status does not expect 'trial-a': did you mean --run trial-a?", id="run"
        ),
        pytest.param("runs trial-a", "edriver runs does not expect 'trial-a'\n", id="without --run"),
        pytest.param("top --zzz", "edriver top: error: --zzz is not a flag of edriver top\n", id="nothing alike"),
    ],
)
def test_a_word_that_a_subcommand_does_not_take(line: str, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main.main(line.split())
    assert text in capsys.readouterr().err


@pytest.mark.parametrize(
    "flags",
    [
        ["-np", "2", "--min-np", "1", "--max-np", "4"],
        ["--num-proc", "2", "--min-num-proc", "1", "--max-num-proc", "4"],
        ["-np", "2", "-H", "a:1,b:1", "-p", "2222", "-i", "key", "--network-interface", "eth0"],
        ["-np", "2", "--hostfile", "hosts", "--output-filename", "out", "--start-timeout", "9", "--verbose"],
        ["-np", "2", "--host-discovery-script", "s", "--slots-per-host", "2", "--elastic-timeout", "5"],
        ["-np", "2", "--reset-limit", "3", "--blacklist-cooldown-range", "1", "2"],
    ],
    ids=lambda flags: " ".join(flags[2:4]),
)
def test_flags_of_horovodrun_are_flags_of_edriver(flags: list[str]) -> None:
    _, unknown = main.parser().parse_known_args([*flags, "python", "train.py"])
    assert unknown == []


def torchruns_flags() -> dict[str, argparse.Action]:
    """The flags of the installed torchrun, written with dashes."""
    from torch.distributed.run import get_args_parser

    flags = get_args_parser()._option_string_actions
    return {flag: flags[flag] for flag in flags if "_" not in flag and flag not in ("-h", "--help")}


def shared_flags() -> dict[str, argparse.Action]:
    """Those that edriver has, too, and that torchrun reads from a variable: all but 2.15's --print-completion."""
    from torch.distributed.argparse_util import check_env, env

    own = main.parser()._option_string_actions
    return {
        flag: action
        for flag, action in torchruns_flags().items()
        if flag in own and isinstance(action, (env, check_env))
    }


def test_flags_of_torchrun_may_be_written_with_underscores() -> None:
    own = main.parser()
    assert "--nproc-per-node" in shared_flags()
    for flag in shared_flags():
        action = own._option_string_actions[flag]
        values = [] if action.nargs == 0 else ["2"]
        with_underscores = flag[:2] + flag[2:].replace("-", "_")
        found = [own.parse_known_args([word, *values, "cmd", "--a_b", "1"]) for word in (flag, with_underscores)]
        assert found[0] == found[1]
        assert found[0][1] == []
        assert found[0][0].command == ["cmd", "--a_b", "1"]
    flags, _ = own.parse_known_args(["--max_restarts=3", "sh", "--max_restarts=4"])
    assert (flags.reset_limit, flags.command) == (3, ["sh", "--max_restarts=4"])


def test_each_flag_of_torchrun_that_is_one_of_edriver_has_its_variable() -> None:
    own = main.parser()._option_string_actions
    expected = {own[flag].dest: f"PET_{action.dest.upper()}" for flag, action in shared_flags().items()}
    assert expected == torchrun_flags.VARIABLES


@pytest.mark.parametrize(
    ("environ", "words", "name", "value"),
    [
        pytest.param({"PET_NPROC_PER_NODE": "gpu"}, [], "slots_per_host", Devices.GPU, id="gpu"),
        pytest.param({"PET_NPROC_PER_NODE": "8"}, [], "slots_per_host", 8, id="number"),
        pytest.param({"PET_NPROC_PER_NODE": "8"}, ["--nproc-per-node", "2"], "slots_per_host", 2, id="flag-wins"),
        pytest.param({"PET_NPROC_PER_NODE": ""}, [], "slots_per_host", None, id="empty"),
        pytest.param({"PET_MAX_RESTARTS": "3"}, [], "reset_limit", 3, id="restarts"),
        pytest.param({"PET_TEE": "3"}, [], "tee", "3", id="text"),
        pytest.param({"PET_NO_PYTHON": "1"}, [], "no_python", True, id="switch"),
        pytest.param({"PET_MODULE": "0"}, [], "module", False, id="switch-off"),
    ],
)
def test_variables_of_torchrun(environ: dict[str, str], words: list[str], name: str, value: object) -> None:
    assert getattr(main.parser(environ).parse_known_args([*words, "sh"])[0], name) == value


@pytest.mark.parametrize("variable", ["PET_NPROC_PER_NODE", "PET_MAX_RESTARTS", "PET_MODULE"])
def test_a_variable_that_cannot_be_read_is_named(variable: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main.parser({variable: "many"})
    assert f"the variable {variable} cannot be used as --" in capsys.readouterr().err


def test_variables_of_torchrun_without_effect_are_known() -> None:
    environ = {"PET_NNODES": "2", "PET_RDZV_ENDPOINT": "a:1", "PET_NODE_RANK": "", "PET_TEE": "3", "PET_CAT": "Tom"}
    assert torchrun_flags.ignored_variables(environ) == ["PET_NNODES", "PET_RDZV_ENDPOINT"]


def test_each_flag_of_torchrun_is_one_of_edriver_or_refused_by_name() -> None:
    own = main.parser()._option_string_actions
    assert torchruns_flags().keys() - own.keys() - torchrun_flags.INSTEAD.keys() == set()
