"""What causes of rounds and phases of recoveries are called, as they are shown and counted (status.proto)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from edriver.v1 import cause_pb2, status_pb2

CAUSE_NAMES: Final[Mapping[int, str]] = {
    status_pb2.ROUND_KIND_START: "start",
    status_pb2.ROUND_KIND_FAILURE: "failure",
    status_pb2.ROUND_KIND_PREEMPTION: "preemption",
    status_pb2.ROUND_KIND_RESIZE: "resize",
    status_pb2.ROUND_KIND_UNPROVEN: "unproven",
}
"""The kinds of a round's cause (RoundKind)."""

RUN_END_NAMES: Final[Mapping[int, str]] = {
    status_pb2.RUN_END_UNSPECIFIED: "ended",
    status_pb2.RUN_END_DONE: "done",
    status_pb2.RUN_END_STOPPED: "stopped",
    status_pb2.RUN_END_FAILED: "failed",
    status_pb2.RUN_END_LOST: "lost",
}
"""How a run has ended (RunEnd)."""

INTERRUPTION_NAMES: Final[Mapping[int, str]] = {
    status_pb2.INTERRUPTION_KIND_UNSPECIFIED: "interruption",
    status_pb2.INTERRUPTION_KIND_BOOT: "boot",
    status_pb2.INTERRUPTION_KIND_NEXT_RUN: "next run",
    status_pb2.INTERRUPTION_KIND_FAILURE: "failure",
    status_pb2.INTERRUPTION_KIND_PREEMPTION: "preemption",
    status_pb2.INTERRUPTION_KIND_RESIZE: "resize",
    status_pb2.INTERRUPTION_KIND_UNPROVEN: "unproven",
    status_pb2.INTERRUPTION_KIND_STALL: "stall",
}
"""What kept a run from making steps (InterruptionKind)."""

SCRIPT_WARNING_NAMES: Final[Mapping[int, str]] = {
    cause_pb2.CAUSE_KIND_NO_BOUNDARY: "no_boundary",
    cause_pb2.CAUSE_KIND_SAME_SAMPLES: "same_samples",
    cause_pb2.CAUSE_KIND_NOT_FINITE: "not_finite",
}
"""What looks like a mistake of a script (CauseKind)."""

UNPROVEN_CONNECTION: Final = "unproven connection"
"""What ended a round in which a connection did not lead to a member, as a noun beside failure and resize."""

RECOVERY_PHASES: Final = ("unnoticed", "detect", "abort", "wait", "rendezvous", "sync", "first_step")
"""The parts of a recovery (RecoveryPhases), in their order."""
