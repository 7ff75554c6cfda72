"""Every cause of a round has a name."""

from __future__ import annotations

from edriver.text.cause_names import CAUSES
from edriver.v1 import status_pb2


def test_no_cause_is_without_a_name() -> None:
    known = set(status_pb2.RoundCause.values()) - {status_pb2.ROUND_CAUSE_UNSPECIFIED}
    assert set(CAUSES) == known
