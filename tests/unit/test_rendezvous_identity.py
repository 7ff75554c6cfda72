"""By what clients know a rendezvous server, across its starts and over the years."""

from __future__ import annotations

import datetime
from collections.abc import Iterable
from pathlib import Path

import pytest
from cryptography import x509

from edriver.common.join_config import JoinConfig
from edriver.rendezvous.address import CREDENTIALS_FILE
from edriver.rendezvous.server.identity import AUTHORITY_FILE, SERVER_FILE, Identity, identity, write_private
from edriver.rendezvous.server.serve import serve
from edriver.system.private_files import OwnFolder
from edriver.wire.certificate_authority import Authority, end_of
from edriver.wire.guarded_server import GuardedServer

START = datetime.datetime(2030, 1, 1, tzinfo=datetime.UTC)


def start(folder: Path, days: float) -> Identity:
    """A start of the server so many days later."""
    found = identity(folder, START + datetime.timedelta(days=days))
    shown = JoinConfig("rendezvous", "", 0, ("host:1",), found.authority, found.token)
    write_private(folder / CREDENTIALS_FILE, shown.to_json())
    return found


def test_it_stays_across_starts(tmp_path: Path) -> None:
    first, second = start(tmp_path, 0), start(tmp_path, 100)
    assert (first.token, first.authority, first.certificate) == (second.token, second.authority, second.certificate)
    assert {path.stat().st_mode & 0o777 for path in tmp_path.iterdir()} == {0o600}


def test_a_certificate_is_renewed_at_a_start_and_clients_keep_their_credentials(tmp_path: Path) -> None:
    first, later = start(tmp_path, 0), start(tmp_path, 360)
    assert (first.token, first.authority) == (later.token, later.authority)
    assert end_of(later.certificate) > START + datetime.timedelta(days=700)
    root, renewed = (x509.load_pem_x509_certificate(each) for each in (later.authority.encode(), later.certificate))
    renewed.verify_directly_issued_by(root)
    assert start(tmp_path, 370).certificate == later.certificate


def test_a_server_that_runs_on_warns_before_its_certificate_ends(tmp_path: Path) -> None:
    found = start(tmp_path, 0)
    assert found.warning(START + datetime.timedelta(days=300)) == ""
    warning = found.warning(START + datetime.timedelta(days=340))
    assert "expires at 2031-01-02 00:00 UTC" in warning
    assert "restart the server" in warning


def test_an_authority_that_ends_is_renewed_and_the_token_stays(tmp_path: Path) -> None:
    first, later = start(tmp_path, 0), start(tmp_path, 3650)
    assert first.authority != later.authority
    assert first.token == later.token
    assert later.warning(START + datetime.timedelta(days=3651)) == ""


def test_a_server_whose_authority_kept_no_key_goes_on_until_that_ends(tmp_path: Path) -> None:
    old = Authority.of_run("rendezvous", START)
    shown = JoinConfig("rendezvous", "", 0, ("host:1",), old.certificate.decode(), "token")
    write_private(tmp_path / CREDENTIALS_FILE, shown.to_json())
    write_private(tmp_path / SERVER_FILE, old.driver_certificate + b"\n\n" + old.driver_key)
    assert start(tmp_path, 300).certificate == old.driver_certificate
    later = start(tmp_path, 360)
    assert later.token == "token"
    assert end_of(later.authority.encode()) > START + datetime.timedelta(days=3000)
    assert (tmp_path / AUTHORITY_FILE).exists()


def test_a_server_that_lost_its_certificate_says_that_clients_need_new_credentials(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    start(tmp_path, 0)
    assert not caplog.messages
    (tmp_path / SERVER_FILE).write_bytes(b"")
    start(tmp_path, 1)
    message = f"this server has a new certificate authority: give all clients the new {CREDENTIALS_FILE}"
    assert caplog.messages == [message]


def test_a_server_uses_the_folder_that_it_has_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another account, which owns the folder above, puts one of its own in its place right after the look."""
    folder, looked_at = tmp_path / "server", tmp_path / "moved"
    really = OwnFolder.check

    def check(own: OwnFolder, names: Iterable[str]) -> None:
        really(own, names)
        if not looked_at.exists():
            folder.rename(looked_at)
            folder.mkdir()

    async def refuse(_server: GuardedServer, _address: str, _port: int) -> int:
        raise OSError("the test ends here")

    monkeypatch.setattr(OwnFolder, "check", check)
    monkeypatch.setattr(GuardedServer, "open", refuse)
    assert serve(folder, "127.0.0.1", 0) == 1
    assert list(folder.iterdir()) == []
    assert {"server.pem", "authority.pem", "journal.sqlite3"} <= {path.name for path in looked_at.iterdir()}
