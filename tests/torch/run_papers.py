"""The papers of a run, as an agent keeps them for its workers."""

from __future__ import annotations

import datetime
from pathlib import Path

from edriver.common.tls_files import keep_papers
from edriver.driver.rpc.certificate_authority import Authority
from edriver.v1 import agent_pb2


def papers(folder: Path, run_id: str = "run") -> Path:
    """Make an authority for a run, and its papers in a new folder; answers where a worker finds them."""
    made = Authority.of_run(run_id, datetime.datetime.now(datetime.UTC))
    folder.mkdir()
    return keep_papers(
        agent_pb2.Papers(
            authority=made.certificate, member_certificate=made.member_certificate, member_key=made.member_key
        ),
        folder,
    )
