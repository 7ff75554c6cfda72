"""`edriver --etcd`: what the flags must have, and what agents read of where the drivers are."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest

from edriver.agent.dial_in import join_config_of
from edriver.cli.main import main, parser
from edriver.cli.resuming.etcd_run import journal_in_etcd
from edriver.common.join_config import JoinConfig
from edriver.driver.journal.etcd_client import EtcdAddress, EtcdClient


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("--etcd http://127.0.0.1:1", "--etcd keeps the run under a name: give --run NAME, too"),
        ("--run a --etcd http://127.0.0.1:1 --no-journal", "leave out --no-journal"),
        ("--run a/b --etcd http://127.0.0.1:1", "--run: 'a/b' is not a name for a run"),
        ("--run a --etcd 127.0.0.1:1", "--etcd: '127.0.0.1:1' are not URLs of etcd"),
        ("--run a --etcd http://10.0.0.1:1,http://127.0.0.1:1", "which http:// shows to the network"),
        ("--run a --etcd http://127.0.0.1:1", r"etcd \(127.0.0.1:1\) cannot be read: 127.0.0.1:1: "),
        ("--standby", "--standby is for drivers that share a journal: give --etcd, too"),
        ("--run a --etcd http://127.0.0.1:1 --driver-addresses a", "--driver-addresses: 'a' is not HOST:PORT"),
    ],
)
def test_what_cannot_work_is_a_sentence(line: str, sentence: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(shlex.split(f"{line} -np 1 true"))
    assert ended.value.code == 2
    assert re.search(sentence, capsys.readouterr().err)


@pytest.mark.parametrize(
    ("more", "address"),
    [
        pytest.param("--etcd http://10.0.0.1:1 --insecure", ("10.0.0.1:1", False), id="asked-for"),
        pytest.param("--etcd https://10.0.0.1", ("10.0.0.1:2379", True), id="encrypted"),
        pytest.param("--etcd http://127.0.0.1:1", ("127.0.0.1:1", False), id="on-this-machine"),
    ],
)
def test_what_does_not_show_the_journal_to_strangers(
    more: str, address: tuple[str, bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[tuple[str, bool]] = []

    class Client(EtcdClient):
        def __init__(self, address: EtcdAddress) -> None:
            super().__init__(address)
            opened.extend((member, address.secure) for member in address.members)

    monkeypatch.setattr("edriver.cli.resuming.etcd_run.EtcdClient", Client)
    journal_in_etcd(parser().parse_args(shlex.split(f"--run a {more} -np 1 true")), {}).close()
    assert opened == [address]


@pytest.mark.parametrize(
    ("driver", "drivers", "others"),
    [
        ([], ("a:1",), ("b:1",)),
        (["--driver", "c:2"], ("c:2",), ()),
        (["--driver", "c:2,d:3,[::1]:4"], ("c:2",), ("d:3", "[::1]:4")),
    ],
)
def test_where_agents_look(
    tmp_path: Path, driver: list[str], drivers: tuple[str, ...], others: tuple[str, ...]
) -> None:
    credentials = tmp_path / "run.json"
    credentials.touch(mode=0o600)
    credentials.write_bytes(JoinConfig("5d2f01aa", "", 0, ("a:1",), "pem", "token", other_drivers=("b:1",)).to_json())
    found = join_config_of(["--credentials", str(credentials), *driver])
    assert (found.drivers, found.other_drivers) == (drivers, others)


def test_credentials_without_an_address(tmp_path: Path) -> None:
    credentials = tmp_path / "run.json"
    credentials.touch(mode=0o600)
    credentials.write_bytes(JoinConfig("5d2f01aa", "", 0, (), "pem", "token").to_json())
    with pytest.raises(ValueError, match="does not contain the driver's address: give --driver HOST:PORT"):
        join_config_of(["--credentials", str(credentials)])


def test_credentials_of_an_older_driver(tmp_path: Path) -> None:
    found = json.loads(JoinConfig("5d2f01aa", "", 0, ("a:1",)).to_json())
    del found["other_drivers"]
    assert JoinConfig.from_json(json.dumps(found).encode()).other_drivers == ()
