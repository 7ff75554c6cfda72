"""The state of a host (HostStatus of status.proto), as shown after its name."""

from __future__ import annotations

import time
from typing import Final

from edriver.text.phrases import count_text
from edriver.v1 import cause_pb2, status_pb2
from edriver.wire.conversion import epoch_seconds

TROUBLED: Final = frozenset(
    {
        status_pb2.HOST_STATE_LEAVING,
        status_pb2.HOST_STATE_QUARANTINED,
        status_pb2.HOST_STATE_UNREACHABLE,
    }
)
"""States of hosts that an operator should look at."""


def host_state_name(state: status_pb2.HostState.ValueType) -> str:
    """A state as it is shown and counted: partly used."""
    return status_pb2.HostState.Name(state).removeprefix("HOST_STATE_").lower().replace("_", " ")


def host_text(host: status_pb2.HostStatus) -> str:
    """The state of a host: is used in 2 slots; has 2 slots idle: the run may use 6 workers (--max-np)."""
    until = f" until {_clock(host)}" if host.HasField("quarantine_end_time") else ""
    return host_words(host, until)


def host_words(host: status_pb2.HostStatus, until: str = "") -> str:
    """The same; how long a quarantine lasts is given.

    Args:
        host: the host.
        until: what follows "is quarantined".
    """
    reasons = [cause.text for cause in host.obstacles if cause.kind != cause_pb2.CAUSE_KIND_HOST_QUARANTINED]
    match host.state:
        case status_pb2.HOST_STATE_USED:
            return "; ".join(["is used", *reasons])
        case status_pb2.HOST_STATE_PARTLY_USED:
            return "; ".join([f"is used in {count_text(host.workers, 'slot')}", *reasons])
        case status_pb2.HOST_STATE_QUARANTINED:
            going_on = [f"still has {count_text(host.workers, 'worker')}"] if host.workers else []
            return "; ".join([f"is quarantined{until}", *going_on, *reasons])
        case status_pb2.HOST_STATE_LEAVING:
            return "; ".join([*reasons, f"still has {count_text(host.workers, 'worker')}"])
        case status_pb2.HOST_STATE_STARTING:
            return "; ".join([*reasons, "has not answered yet"])
        case status_pb2.HOST_STATE_UNSPECIFIED:  # of records that an earlier release has written
            texts = "; ".join(cause.text for cause in host.obstacles)
            return texts or ("is used" if host.connected else "has not answered yet")
    return "; ".join(reasons) or f"is {host_state_name(host.state)}"


def _clock(host: status_pb2.HostStatus) -> str:
    return time.strftime("%H:%M:%S", time.localtime(epoch_seconds(host.quarantine_end_time)))
