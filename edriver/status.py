"""`edriver status`: how a run stands, in words."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path

from edriver.driver.words import count_text
from edriver.run_channel import ANSWER_BOUND, UnansweredError, run_elsewhere, run_here
from edriver.v1 import status_pb2, status_pb2_grpc


def parser() -> argparse.ArgumentParser:
    """The flags."""
    made = argparse.ArgumentParser(
        prog="edriver status", description="Tells how a run stands that goes on.", allow_abbrev=False
    )
    made.add_argument("--run", metavar="ID", help="which run, if there are several on this machine")
    made.add_argument(
        "--credentials",
        metavar="FILE",
        type=Path,
        help="of a run elsewhere: what its driver has written for --status-credentials",
    )
    made.add_argument("--driver", metavar="HOST:PORT", help="with --credentials: where it is (default: as FILE says)")
    return made


def status(arguments: Sequence[str]) -> str:
    """Ask, and put the answer into words.

    Raises:
        UnansweredError: there is no answer.
    """
    flags = parser().parse_args(arguments)
    if flags.driver is not None and flags.credentials is None:
        raise UnansweredError("--driver is for a run elsewhere: give the --credentials that its driver has written")
    way = run_here(flags.run) if flags.credentials is None else run_elsewhere(flags.credentials, flags.driver)
    with way as (_, channel):
        stub = status_pb2_grpc.StatusServiceStub(channel)
        return "\n".join(lines(stub.GetRun(status_pb2.GetRunRequest(), timeout=ANSWER_BOUND).run))


def lines(run: status_pb2.Run) -> Iterator[str]:
    """A run in words: itself, its hosts, its workers."""
    yield f"run {run.run_id}, {run.now - run.began:.0f} s: {run.doing}"
    for host in run.hosts:
        words = host.obstacle or ("is used" if host.connected else "has not answered yet")
        yield f"host {host.name} ({count_text(host.slots, 'slot')}) {words}"
    for worker in run.workers:
        state = status_pb2.WorkerState.Name(worker.state).removeprefix("WORKER_STATE_").lower()
        rank = f", rank {worker.rank}" if worker.HasField("rank") else ""
        yield f"worker {worker.worker_id} ({worker.host}:{worker.slot}{rank}) {state}"
