"""How a watch goes on that was cut off: the driver is dialled again, for a while, from the last event that came."""

from __future__ import annotations

import time
from typing import Final, TypedDict

import grpc
import grpc.aio
import tenacity
from tenacity.retry import retry_base
from tenacity.stop import stop_base
from tenacity.wait import wait_base

REDIAL_BOUND: Final = 30.0
"""Seconds for which a watcher that was cut off tries to reach the driver again."""


class Patience(stop_base):
    """Ends for a watcher that has heard nothing for too long."""

    def __init__(self) -> None:
        self.heard()

    def heard(self) -> None:
        """Something has come: it begins anew."""
        self._last = time.monotonic()

    def __call__(self, _state: tenacity.RetryCallState) -> bool:
        """Whether it has ended."""
        return time.monotonic() - self._last > REDIAL_BOUND


class Policy(TypedDict):
    """Tenacity's arguments."""

    retry: retry_base
    wait: wait_base
    stop: stop_base
    reraise: bool


def policy(patience: Patience) -> Policy:
    """How to dial again."""
    return Policy(
        retry=tenacity.retry_if_exception(is_cut_off), wait=tenacity.wait_random(0.05, 0.5), stop=patience, reraise=True
    )


def is_cut_off(error: BaseException) -> bool:
    """Whether a call failed because there is no connection."""
    return isinstance(error, grpc.aio.AioRpcError | grpc.Call) and error.code() is grpc.StatusCode.UNAVAILABLE
