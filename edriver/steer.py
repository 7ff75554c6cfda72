"""`edriver drain` and `edriver undrain`: what an operator tells a run that goes on."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from edriver.driver.words import count_text
from edriver.run_channel import ANSWER_BOUND, UnansweredError, run_here
from edriver.v1 import control_pb2, control_pb2_grpc


def parser(verb: str) -> argparse.ArgumentParser:
    """The flags of one verb."""
    what = {
        "drain": "Have a host, or one slot of it, left at the next agreed step and not used again: nothing is lost.",
        "undrain": "Let a host, or one slot of it, be used again.",
    }
    made = argparse.ArgumentParser(prog=f"edriver {verb}", description=what[verb], allow_abbrev=False)
    made.add_argument("place", metavar="HOST[:SLOT]", help="as discovery names the host; slots count from 0")
    made.add_argument("--run", metavar="ID", help="which run, if there are several on this machine")
    if verb == "drain":
        made.add_argument("--reason", default="", metavar="TEXT", help="said in the run's output")
    return made


def steer(verb: str, arguments: Sequence[str]) -> str:
    """Carry out one command; returns what to tell the operator.

    Raises:
        UnansweredError: it was not done.
    """
    flags = parser(verb).parse_args(arguments)
    host, slot = _place(flags.place)
    with run_here(flags.run) as (run_id, channel):
        stub = control_pb2_grpc.ControlServiceStub(channel)
        if verb == "undrain":
            stub.Undrain(control_pb2.UndrainRequest(host=host, slot=slot), timeout=ANSWER_BOUND)
            return f"run {run_id}: {flags.place} may be used again"
        request = control_pb2.DrainRequest(host=host, slot=slot, reason=flags.reason)
        answer = stub.Drain(request, timeout=ANSWER_BOUND)
    return f"run {run_id}: {flags.place} is being drained; there will be {count_text(answer.slots_left, 'slot')} to use"


def _place(text: str) -> tuple[str, int | None]:
    host, colon, slot = text.rpartition(":")
    if not colon:
        return text, None
    if not host or not slot.isdecimal():
        raise UnansweredError(f"{text!r} is no HOST or HOST:SLOT")
    return host, int(slot)
