"""`edriver drain` and `edriver undrain`: what an operator tells a run that goes on."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Final

import grpc

from edriver.driver.runs import living_runs
from edriver.v1 import control_pb2, control_pb2_grpc

ANSWER_BOUND: Final = 10.0
"""Seconds that the driver may take to answer."""


class SteeringError(Exception):
    """It cannot be done; the message is one sentence for the operator."""


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
        SteeringError: it was not done.
    """
    flags = parser(verb).parse_args(arguments)
    host, slot = _place(flags.place)
    run_id, socket_path = _run(flags.run)
    with grpc.insecure_channel(f"unix:{socket_path}") as channel:
        stub = control_pb2_grpc.ControlServiceStub(channel)
        try:
            if verb == "undrain":
                stub.Undrain(control_pb2.UndrainRequest(host=host, slot=slot), timeout=ANSWER_BOUND)
                return f"run {run_id}: {flags.place} may be used again"
            request = control_pb2.DrainRequest(host=host, slot=slot, reason=flags.reason)
            answer = stub.Drain(request, timeout=ANSWER_BOUND)
        except grpc.RpcError as error:
            raise SteeringError(f"run {run_id}: {error.details()}") from None
    return f"run {run_id}: {flags.place} is being drained; {answer.slots_left} slots are left"


def _place(text: str) -> tuple[str, int | None]:
    host, colon, slot = text.rpartition(":")
    if not colon:
        return text, None
    if not host or not slot.isdecimal():
        raise SteeringError(f"{text!r} is no HOST or HOST:SLOT")
    return host, int(slot)


def _run(wanted: str | None) -> tuple[str, str]:
    runs = living_runs()
    if wanted is None and len(runs) == 1:
        wanted = next(iter(runs))
    if wanted in runs:
        return wanted, str(runs[wanted])
    if not runs:
        raise SteeringError("no run of yours is on this machine: it is steered where its driver runs")
    names = ", ".join(runs)
    if wanted is None:
        raise SteeringError(f"there are several runs, say which by --run: {names}")
    raise SteeringError(f"there is no run {wanted!r} of yours here; there is {names}")
