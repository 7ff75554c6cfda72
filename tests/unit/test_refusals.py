"""Flags of horovodrun and torchrun that edriver does not have are refused by name, with what to use instead."""

from __future__ import annotations

import re

import pytest

from edriver.cli import horovodrun_flags, main, torchrun_flags

INSTEAD = horovodrun_flags.INSTEAD | torchrun_flags.INSTEAD


@pytest.mark.parametrize("flag", sorted(INSTEAD))
def test_a_flag_of_another_launcher_is_no_flag_of_edriver(flag: str) -> None:
    assert flag not in main.parser()._option_string_actions


@pytest.mark.parametrize("flag", sorted(INSTEAD))
def test_what_is_named_instead_exists(flag: str) -> None:
    for named in re.findall(r"(?<![\w-])--[a-z-]+", INSTEAD[flag]):
        assert named in main.parser()._option_string_actions


@pytest.mark.parametrize(
    ("word", "text"),
    [
        pytest.param("--fusion-threshold-mb", "--fusion-threshold-mb is a flag of horovodrun", id="by name"),
        pytest.param("--timeline-filename=/t", "--timeline-filename is a flag of horovodrun", id="with a value"),
        pytest.param("--torus-allreduce", "--torus-allreduce is a flag of horovodrun", id="horovod 0.28"),
        pytest.param("--log-line-prefix-template=x", "-template is a flag of torchrun", id="torch 2.15"),
        pytest.param("--autotune-log-file", "nothing to tune", id="of a family"),
        pytest.param("--nproc_per_node=4", "--nproc_per_node is a flag of torchrun", id="of torchrun"),
        pytest.param("--max_restarts=3", "flag of edriver: write --max-restarts", id="underscores"),
        pytest.param("--nonsense", "--nonsense is not a flag of edriver", id="of no program"),
    ],
)
def test_a_flag_is_refused_with_what_to_use(word: str, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main.main(["-np", "1", word, "true"])
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


def test_each_flag_of_torchrun_is_one_of_edriver_or_refused_by_name() -> None:
    from torch.distributed.run import get_args_parser

    flags = {flag for flag in get_args_parser()._option_string_actions if "_" not in flag} - {"-h", "--help"}
    own = main.parser()._option_string_actions
    assert flags - own.keys() - torchrun_flags.INSTEAD.keys() == set()
