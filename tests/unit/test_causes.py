"""Every cause has a name in the protocol, and words."""

from __future__ import annotations

from edriver.driver.core.cause import CauseKind
from edriver.text.cause_names import CAUSES, RUN_ENDS
from edriver.v1 import cause_pb2, status_pb2


def test_no_cause_is_without_a_name() -> None:
    known = set(status_pb2.RoundCause.values()) - {status_pb2.ROUND_CAUSE_UNSPECIFIED}
    assert set(CAUSES) == known


def test_no_end_of_a_run_is_without_a_name() -> None:
    assert set(RUN_ENDS) == set(status_pb2.RunEnd.values())


def test_the_protocol_knows_the_kinds_of_the_core_and_no_others() -> None:
    kinds = {name.removeprefix("CAUSE_KIND_") for name in cause_pb2.CauseKind.DESCRIPTOR.values_by_name}
    assert kinds - {"UNSPECIFIED"} == {kind.name for kind in CauseKind}
