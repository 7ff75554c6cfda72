"""What can go wrong between a client and a run's driver."""

from __future__ import annotations

import grpc
import grpc.aio


class RunError(Exception):
    """A request to a run failed; the message is one sentence for the caller.

    Attributes:
        code: gRPC's status code of the call; None: the driver was not called.
        details: gRPC's own message, for debugging; may be empty.
    """

    __module__ = "edriver.client"  # programs import it from there, so a traceback should name that

    def __init__(self, sentence: str, code: grpc.StatusCode | None = None, details: str = "") -> None:
        super().__init__(sentence)
        self.code = code
        self.details = details


def error_of(run_id: str, error: grpc.RpcError) -> RunError:
    """Describe a failed call as a RunError."""
    assert isinstance(error, grpc.aio.AioRpcError | grpc.Call)
    code, details = error.code(), error.details() or "it gave no reason"
    if code is grpc.StatusCode.UNAVAILABLE:
        sentence = f"run {run_id}: its driver does not answer: it has ended, or cannot be reached from here"
        return RunError(sentence, code, details)
    return RunError(f"run {run_id}: {details}", code)
