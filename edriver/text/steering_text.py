"""Texts for an operator whose request the driver has accepted, on the command line and on the page."""

from __future__ import annotations

from typing import Final

from google.protobuf.duration_pb2 import Duration

from edriver.text.phrases import count_text
from edriver.text.progress_text import time_text
from edriver.v1 import control_pb2
from edriver.wire.conversion import span_seconds

STOPPED_TEXT: Final = "it is being stopped"


def drained_text(place: str, slots_left: int) -> str:
    """After a drain of a host, or of HOST:SLOT."""
    return f"{place} is being drained; there will be {count_text(slots_left, 'slot')} to use"


def drain_preview_text(preview: control_pb2.PreviewDrainResponse) -> str:
    """What a drain does to the workers that train."""
    leaving, replaced, left = preview.leaving, preview.replaced, count_text(preview.left, "worker")
    boot = _about(preview.boot) if preview.HasField("boot") else ""
    starts_anew = "; all processes start anew, from the script's last checkpoint" if preview.restarts else ""
    match preview.outcome:
        case control_pb2.DRAIN_OUTCOME_UNUSED:
            return "no worker trains there"
        case control_pb2.DRAIN_OUTCOME_MOVES:
            known = f"; a boot takes {boot}" if boot else ""
            others = f"until {replaced} others are ready{known}" if replaced > 1 else f"until another is ready{known}"
            verb = "trains" if leaving == 1 else "train"
            return (
                f"{count_text(leaving, 'worker')} {verb} on there {others}; then they change places at one step, "
                f"without a pause for the boot{starts_anew}"
            )
        case control_pb2.DRAIN_OUTCOME_PAUSES:
            spell = _about(preview.pause) if preview.HasField("pause") else "as long as a boot takes"
            return f"training pauses for {spell}: {left} left, fewer than --min-np, until replacements have booted"
        case control_pb2.DRAIN_OUTCOME_SHRINKS:
            short = f"only {count_text(replaced, 'free slot')} elsewhere" if replaced else "no free slot elsewhere"
            if replaced == leaving:
                short = f"too little time for a boot, which takes {boot}" if boot else "no time for a boot"
            leave = f"{count_text(leaving, 'worker')} {'leaves' if leaving == 1 else 'leave'}"
            return f"{leave}, {left} train on without a pause: {short}{starts_anew}"
    return "this release does not know what it does"


def _about(span: Duration) -> str:
    return f"about {time_text(max(1.0, round(span_seconds(span))))}"


def undrained_text(place: str) -> str:
    """After an undrain of the same."""
    return f"{place} may be used again"


def resized_text(size: int) -> str:
    """After a resize."""
    return f"at most {count_text(size, 'worker')} from now on"
