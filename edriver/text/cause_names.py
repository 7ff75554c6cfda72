"""What causes of rounds and phases of recoveries are called, for whoever shows or counts them (status.proto)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from edriver.v1 import status_pb2

CAUSES: Final[Mapping[int, str]] = {
    status_pb2.ROUND_CAUSE_START: "start",
    status_pb2.ROUND_CAUSE_FAILURE: "failure",
    status_pb2.ROUND_CAUSE_PREEMPTION: "preemption",
    status_pb2.ROUND_CAUSE_RESIZE: "resize",
    status_pb2.ROUND_CAUSE_UNPROVEN: "unproven",
}
"""The kinds of a round's cause (RoundCause)."""

RUN_ENDS: Final[Mapping[int, str]] = {
    status_pb2.RUN_END_UNSPECIFIED: "ended",
    status_pb2.RUN_END_DONE: "done",
    status_pb2.RUN_END_STOPPED: "stopped",
    status_pb2.RUN_END_FAILED: "failed",
}
"""How a run has ended (RunEnd)."""

UNPROVEN: Final = "unproven connection"
"""What ended a round in which a connection between members led to a stranger, as a noun beside failure and resize."""

PHASES: Final = ("detect", "abort", "rendezvous", "sync", "first_step")
"""The parts of a recovery (RecoveryPhases), in their order."""
