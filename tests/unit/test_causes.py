"""Every cause has a name in the protocol, and a text."""

from __future__ import annotations

from edriver.model.cause import AgentFaultKind, CauseKind
from edriver.text.cause_names import CAUSE_NAMES, RUN_END_NAMES
from edriver.v1 import cause_pb2, status_pb2


def test_no_cause_is_without_a_name() -> None:
    known = set(status_pb2.RoundKind.values()) - {status_pb2.ROUND_KIND_UNSPECIFIED}
    assert set(CAUSE_NAMES) == known


def test_no_end_of_a_run_is_without_a_name() -> None:
    assert set(RUN_END_NAMES) == set(status_pb2.RunEnd.values())


def test_the_protocol_knows_what_can_be_wrong_with_an_agent() -> None:
    faults = {name.removeprefix("AGENT_FAULT_") for name in cause_pb2.AgentFault.DESCRIPTOR.values_by_name}
    assert faults - {"UNSPECIFIED"} == {kind.name for kind in AgentFaultKind}


def test_the_protocol_knows_the_kinds_of_the_core_and_no_others() -> None:
    kinds = {name.removeprefix("CAUSE_KIND_") for name in cause_pb2.CauseKind.DESCRIPTOR.values_by_name}
    assert kinds - {"UNSPECIFIED"} == {kind.name for kind in CauseKind}
