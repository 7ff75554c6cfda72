"""What `-np auto` comes to, and what another driver of the run reads of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from edriver.cli.all_slots import with_counted_slots
from edriver.cli.main import parser
from edriver.driver.config.options import RunOptions, options_of, takes_all_slots
from edriver.driver.config.usage_error import UsageError


def counted(line: str) -> tuple[RunOptions, list[str]]:
    words = line.split()
    flags, _ = parser().parse_known_args(words)
    found, arguments = with_counted_slots(flags, options_of(flags), words)
    return options_of(found), arguments


@pytest.mark.parametrize(
    ("line", "np", "limits", "ours"),
    [
        pytest.param("-np auto sh", 3, (3, 3), "-np 3 -H localhost:3", id="this-machine"),
        pytest.param("-np auto --max-np 8 sh", 3, (3, 8), "-np 3 -H localhost:3", id="below-the-maximum"),
        pytest.param("-np auto --max-np 2 sh", 2, (2, 2), "-np 2 -H localhost:3", id="above-the-maximum"),
        pytest.param("-np auto --min-np 1 sh", 3, (1, 3), "-np 3 -H localhost:3", id="minimum"),
        pytest.param("--nproc-per-node 4 sh", 4, (4, 4), "-np 4 -H localhost:4", id="a-number-a-host"),
        pytest.param("-np auto -H localhost:gpu,127.0.0.2:2 sh", 5, (5, 5), "-np 5", id="hosts"),
        pytest.param(
            "-np auto --mode restart --replica-size 2 -H localhost:5,127.0.0.2:1 sh", 4, (4, 4), "-np 4", id="replicas"
        ),
        pytest.param("-np auto --replica-size 4 -H localhost:5,a:2,b:1,c:1 sh", 8, (8, 8), "-np 8", id="positions"),
        pytest.param("--slots-per-host gpu --host-discovery-script ./s sh", 6, (6, 65536), "-np 6", id="script"),
    ],
)
def test_as_many_workers_as_slots(
    line: str, np: int, limits: tuple[int, int], ours: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("run")
    (folder / "s").write_text("#!/bin/sh\necho localhost; echo 127.0.0.2\n")
    (folder / "s").chmod(0o755)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CUDA_VISIBLE_DEVICES", "2,5,7")
        patch.chdir(folder)
        options, arguments = counted(line)
        assert (options.settings.np, options.settings.min_np, options.settings.max_np) == (np, *limits)
        assert arguments == [*ours.split(), *line.split()]
        again, _ = parser().parse_known_args(arguments)
        assert not takes_all_slots(again)
        assert options_of(again).settings == options.settings, "for a driver that takes the run over"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        pytest.param("-np auto -H localhost:gpu sh", "host localhost is not used: it has no NVIDIA GPU", id="no-gpu"),
        pytest.param("-np auto --launcher none -H a:gpu sh", "--launcher: 'none' is not installed", id="launcher"),
        pytest.param("-np auto --host-discovery-script true sh", "no host has been found yet", id="no-hosts"),
        pytest.param("-np auto --host-discovery-script /no/such sh", "(-np auto): host disc", id="no-script"),
        pytest.param(
            "-np auto --mode restart --replica-size 4 -H a:3,b:2 sh",
            "-H gives 2 hosts, 5 slots, of which 0 slots can be used in replicas of 4; the run needs 4 slots",
            id="replicas",
        ),
        pytest.param(
            "-np auto --mode restart --replica-size 4 --host-discovery-script ./three sh",
            "-np auto: of 1 host, 3 slots none can be used in replicas of 4",
            id="replicas-of-a-script",
        ),
        pytest.param(
            "--slots-per-host 2 --min-np 4 sh", "--slots-per-host gives 1 host, 2 slots; the run needs 4", id="too-few"
        ),
        pytest.param("-np auto --min-np 5000 sh", "--min-np is 5000: it must lie between 1 and", id="minimum"),
    ],
)
def test_what_cannot_be_counted_is_named(
    line: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "three").write_text("#!/bin/sh\necho a:3\n")
    (tmp_path / "three").chmod(0o755)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")
    with pytest.raises(UsageError) as raised:
        counted(line)
    assert message in str(raised.value)
