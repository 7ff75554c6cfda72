"""The TLS credentials of a run, as an agent keeps them for its workers."""

from __future__ import annotations

import datetime
from pathlib import Path

from edriver.v1 import agent_pb2
from edriver.wire.certificate_authority import Authority
from edriver.wire.tls_files import write_tls_files


def tls_credentials(folder: Path, run_id: str = "run") -> Path:
    """Make an authority for a run, and its credentials in a new folder; returns their paths for a worker."""
    folder.mkdir()
    return write_tls_files(worker_credentials(run_id), folder)


def worker_credentials(run_id: str = "run") -> agent_pb2.WorkerCredentials:
    """Make an authority for a run; returns what its driver would tell an agent."""
    made = Authority.of_run(run_id, datetime.datetime.now(datetime.UTC))
    return agent_pb2.WorkerCredentials(
        ca_certificate=made.certificate, certificate=made.member_certificate, private_key=made.member_key
    )
