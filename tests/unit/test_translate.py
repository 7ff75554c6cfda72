"""The events that an agent's messages become."""

from __future__ import annotations

import pytest

from edriver.driver.core import events
from edriver.driver.core.cause import Cause, CauseKind, Exit, WorkerName
from edriver.driver.core.losses import loss_of
from edriver.driver.rpc.translate import exit_reason_of
from edriver.v1 import agent_pb2, cause_pb2

WORKER = WorkerName(1, "a", 0, 0)


@pytest.mark.parametrize(
    ("message", "lost"),
    [
        pytest.param(None, Cause(CauseKind.KILLED, WORKER, detail=Exit(-9)), id="nothing"),
        pytest.param(
            cause_pb2.Cause(kind=cause_pb2.CAUSE_KIND_OUT_OF_MEMORY, memory_limit=7),
            Cause(CauseKind.OUT_OF_MEMORY, WORKER, detail=Exit(-9, memory_limit=7)),
            id="out-of-memory",
        ),
        pytest.param(
            cause_pb2.Cause(kind=cause_pb2.CAUSE_KIND_MAYBE_OUT_OF_MEMORY),
            Cause(CauseKind.MAYBE_OUT_OF_MEMORY, WORKER, detail=Exit(-9)),
            id="perhaps",
        ),
        pytest.param(
            cause_pb2.Cause(kind=cause_pb2.CAUSE_KIND_NOT_STARTED, detail="no such file"),
            Cause(CauseKind.NOT_STARTED, WORKER, detail=Exit(-9, "no such file")),
            id="not-started",
        ),
        pytest.param(
            cause_pb2.Cause(kind=cause_pb2.CAUSE_KIND_SUCCESS, detail="trust me"),
            Cause(CauseKind.KILLED, WORKER, detail=Exit(-9)),
            id="what-no-agent-can-know",
        ),
    ],
)
def test_what_an_agent_knows_of_an_exit_is_its_cause(message: cause_pb2.Cause | None, lost: Cause) -> None:
    reason = exit_reason_of(agent_pb2.WorkerExited(worker_id=1, code=-9, cause=message))
    assert loss_of(events.WorkerExited(1, -9, reason=reason), WORKER) == lost
