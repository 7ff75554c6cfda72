"""What the workers of a run show one another, as files: the ssl module reads keys from nothing else."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from edriver.v1 import agent_pb2

AUTHORITY_FILE: Final = "authority.pem"
MEMBER_FILE: Final = "member.pem"
"""The authority's certificate; the members' certificate and its key."""


def write_tls_files(credentials: agent_pb2.WorkerCredentials, folder: Path) -> Path:
    """Write them into a separate folder below this one, for this user's eyes only; returns that.

    Raises:
        OSError: that cannot be done.
    """
    place = folder / "tls"
    place.mkdir(mode=0o700)
    texts = {AUTHORITY_FILE: credentials.ca_certificate, MEMBER_FILE: credentials.certificate + credentials.private_key}
    for name, text in texts.items():
        with os.fdopen(os.open(place / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(text)
    return place
