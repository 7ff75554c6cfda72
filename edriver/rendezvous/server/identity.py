"""By what clients know the server of a rendezvous: an authority and a token, which stay, and a renewed certificate."""

from __future__ import annotations

import datetime
import logging
import os
import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from cryptography.x509.oid import ExtendedKeyUsageOID

from edriver.common.join_config import SERVER_NAME, JoinConfig
from edriver.rendezvous.address import CREDENTIALS_FILE
from edriver.system.private_files import open_private, sync_folder
from edriver.wire.certificate_authority import CERTIFICATE_LIFETIME, Root, end_of

_log = logging.getLogger("edriver.rendezvous")

SERVER_FILE: Final = "server.pem"
"""The server's certificate and key."""

AUTHORITY_FILE: Final = "authority.pem"
"""The certificate and key of what signs the server's."""

AUTHORITY_LIFETIME: Final = datetime.timedelta(days=3660)
"""How long the credentials of clients are valid."""

RENEWAL_AGE: Final = CERTIFICATE_LIFETIME / 2
"""A server that starts makes a new certificate when the last one is valid for less than this."""

WARNING_PERIOD: Final = datetime.timedelta(days=30)
"""How long before its certificate ends a server warns each day; one that starts renews its authority, too."""


@dataclass(frozen=True, slots=True, repr=False)
class Identity:
    """What clients know the server by.

    Attributes:
        token: what they show.
        authority: the certificate by which they know the server's, in PEM.
        certificate: the server's, in PEM,
        key: and its key.
    """

    token: str
    authority: str
    certificate: bytes
    key: bytes

    def warning(self, now: datetime.datetime) -> str:
        """What the operator should know about its end; empty: that is far away."""
        end = min(end_of(self.certificate), end_of(self.authority.encode()))
        if end - now > WARNING_PERIOD:
            return ""
        return (
            f"this server's certificate expires at {end:%Y-%m-%d %H:%M} UTC, and no client can connect after that: "
            "restart the server before then to renew it"
        )


def identity(folder: Path, now: datetime.datetime) -> Identity:
    """The server's identity: that of an earlier start as far as it is valid for long enough, else a new one.

    Args:
        folder: the server's.
        now: the time, with its zone.

    Raises:
        OSError: what is new cannot be written.
    """
    found = _earlier(folder)
    root = _root(folder, found)
    if found is not None and end_of(found.authority.encode()) - now > WARNING_PERIOD:
        if end_of(found.certificate) - now > RENEWAL_AGE or root is None:
            return found
        authority, token = found.authority, found.token
    else:
        if (folder / CREDENTIALS_FILE).exists():  # else there are no clients that have an earlier one
            _log.warning("this server has a new certificate authority: give all clients the new %s", CREDENTIALS_FILE)
        root = Root.new("edriver rendezvous", now, AUTHORITY_LIFETIME)
        _write_pair(folder / AUTHORITY_FILE, root.certificate, root.key)
        authority, token = root.certificate.decode(), found.token if found else secrets.token_urlsafe(32)
    key, certificate = root.sign(SERVER_NAME, (ExtendedKeyUsageOID.SERVER_AUTH,), now)
    _write_pair(folder / SERVER_FILE, certificate, key)
    return Identity(token, authority, certificate, key)


def write_private(path: Path, data: bytes) -> None:
    """Replace a file by one that only this user can read; a power cut leaves the one or the other.

    Raises:
        OSError: it cannot be written.
    """
    new = path.with_suffix(".new")
    new.unlink(missing_ok=True)
    with os.fdopen(open_private(new), "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    new.replace(path)
    sync_folder(path.parent)


def _write_pair(path: Path, certificate: bytes, key: bytes) -> None:
    write_private(path, certificate + b"\n\n" + key)


def _read_pair(path: Path) -> tuple[bytes, bytes]:
    certificate, _, key = path.read_bytes().partition(b"\n\n")
    return certificate + b"\n", key.lstrip()


def _earlier(folder: Path) -> Identity | None:
    """The identity of an earlier start; None if there was none, or its files are damaged."""
    try:
        before = JoinConfig.from_json((folder / CREDENTIALS_FILE).read_bytes())
        certificate, key = _read_pair(folder / SERVER_FILE)
        end_of(certificate), end_of(before.authority.encode())
    except (OSError, ValueError):
        return None
    return Identity(before.token, before.authority, certificate, key)


def _root(folder: Path, found: Identity | None) -> Root | None:
    """What has signed the certificate of an earlier start; None: servers of then kept no key of it."""
    try:
        certificate, key = _read_pair(folder / AUTHORITY_FILE)
    except OSError:
        return None
    return Root(certificate, key) if found is not None and certificate.decode() == found.authority else None
