"""What the members of a run (its workers and checkpoint servers) show one another, as files: the ssl module reads keys
from nothing else.
"""

from __future__ import annotations

import os
import ssl
from pathlib import Path
from typing import Final

import grpc

from edriver.common.join_config import MEMBER_NAME
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


def member_context(protocol: ssl._SSLMethod, place: Path) -> ssl.SSLContext:
    """What a member's connections are made with that are not gRPC's: both ends show the run's certificates.

    Args:
        protocol: ssl.PROTOCOL_TLS_SERVER or PROTOCOL_TLS_CLIENT.
        place: the folder that `write_tls_files` returned.

    Raises:
        OSError: the credentials cannot be read (ssl.SSLError: they are invalid).
    """
    context = ssl.SSLContext(protocol)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_verify_locations(place / AUTHORITY_FILE)
    context.load_cert_chain(place / MEMBER_FILE)
    return context


def member_channel(target: str, place: Path | None, options: tuple[tuple[str, int], ...]) -> grpc.Channel:
    """A channel to another member: with TLS, in which both ends show their certificates, or to a unix socket.

    Args:
        target: HOST:PORT, or unix:PATH.
        place: the folder that `write_tls_files` returned; None: the run has no credentials.
        options: the channel's.

    Raises:
        OSError: the credentials cannot be read.
        ValueError: there are no credentials, and it is not a unix socket: anyone may be there.
    """
    if target.startswith("unix:"):
        return grpc.insecure_channel(target, options=options)
    if place is None:
        raise ValueError(f"{target} cannot be trusted: the run has no credentials")
    authority, member = _texts(place)
    credentials = grpc.ssl_channel_credentials(authority, member, member)
    return grpc.secure_channel(target, credentials, (*options, ("grpc.ssl_target_name_override", MEMBER_NAME)))


def member_server_credentials(place: Path) -> grpc.ServerCredentials:
    """For a port that only members of the run get through.

    Raises:
        OSError: the credentials cannot be read.
    """
    authority, member = _texts(place)
    return grpc.ssl_server_credentials([(member, member)], authority, require_client_auth=True)


def _texts(place: Path) -> tuple[bytes, bytes]:
    return (place / AUTHORITY_FILE).read_bytes(), (place / MEMBER_FILE).read_bytes()
