"""The program of a worker of `edriver.launch`: `python -m edriver.worker.called`.

It enters an empty `edriver.run` first, so that a function that is not elastic has ranks and a group; one that calls
`edriver.run` itself enters the script's next run by that.
"""

from __future__ import annotations

import gc
import os
import sys
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from edriver.calls import parcels
from edriver.calls.exchange import RemoteParcelStore
from edriver.calls.parcels import (
    CALL,
    EXCHANGE_VARIABLE,
    FOLDER_VARIABLE,
    FolderParcelStore,
    Outcome,
    ParcelStore,
    PickledCall,
)
from edriver.common.join_config import JoinConfig
from edriver.worker import context
from edriver.worker.rounds.run import run
from edriver.worker.state.object_state import ObjectState
from edriver.worker.state.state import State
from edriver.worker.watch.not_called import refuse_result


@run
def meet(_state: State) -> None:
    """Wait for all workers: afterwards there are ranks and a group."""


def place_of(environ: Mapping[str, str]) -> ParcelStore:
    """Where the call is, and the outcome goes."""
    if EXCHANGE_VARIABLE in environ:
        return RemoteParcelStore(JoinConfig.from_json(environ[EXCHANGE_VARIABLE].encode()))
    return FolderParcelStore(Path(environ[FOLDER_VARIABLE]))


def main() -> None:
    """Call the function, and send its outcome."""
    place = place_of(os.environ)
    call: PickledCall = parcels.unpack(place.get(CALL))
    sys.path[:] = [*sys.path, *(entry for entry in call.path if entry not in sys.path)]
    call.show_sources()
    meet(ObjectState())
    name = f"outcome-{os.environ['EDRIVER_WORKER_ID']}"
    try:
        function, args, kwargs = parcels.unpack(call.pickled)
        result = function(*args, **kwargs)
        refuse_result(function, result, "edriver.launch")
        packed = parcels.pack(result, "the result")
    except Exception as error:  # noqa: BLE001  the caller raises it
        called = error.__traceback__ and error.__traceback__.tb_next  # without this frame
        text = "".join(traceback.format_exception(type(error), error, called))
        place.put(name, parcels.dump(Outcome(context.rank(), _packed(error), text)))
        sys.stderr.write(text)
        sys.exit(1)
    place.put(name, parcels.dump(Outcome(context.rank(), packed)))
    gc.freeze()  # the result has been sent, and a search of all of torch for garbage delays the caller's answer


def _packed(error: Exception) -> bytes:
    """An exception; empty: it cannot be pickled, or not be unpickled."""
    try:
        data = parcels.pack(error, "the exception")
        found: Any = parcels.unpack(data)
    except Exception:  # noqa: BLE001  __reduce__ and __init__ may raise anything; the traceback is sent as text
        return b""
    return data if isinstance(found, type(error)) else b""


if __name__ == "__main__":
    main()
