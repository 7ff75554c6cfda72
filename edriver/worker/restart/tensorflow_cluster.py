"""TF_CONFIG, from which TensorFlow's MultiWorkerMirroredStrategy learns the members of a round.

Its form is documented at https://www.tensorflow.org/guide/distributed_training, "Setting up the TF_CONFIG environment
variable". Each worker publishes its address in the round's store, and reads those of the others only when its script
imports TensorFlow: where one rank alone does, for TensorBoard, it waits for no import of the others.

Where TensorFlow is installed, a worker binds a port, without listening there, before its script begins; that is the
address. It lets the port go, and sets TF_CONFIG, when the script first imports TensorFlow: nothing tells beforehand
which ranks will.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import sys
from collections.abc import Callable, Iterator, MutableMapping, Sequence
from datetime import timedelta
from importlib.machinery import ModuleSpec
from typing import Final, Protocol

from edriver.common.join_config import at_port
from edriver.model.plan import Assignment
from edriver.system.own_addresses import bound_at

PACKAGE: Final = "tensorflow"

PUBLISH_TIMEOUT: Final = timedelta(seconds=60)
"""How long the others may take to publish their addresses. They do so before their scripts begin."""


class Store(Protocol):
    """The part of torch's Store that is used here."""

    def set(self, key: str, value: str, /) -> None:
        """Set a key's value."""

    def wait(self, keys: list[str], timeout: timedelta, /) -> None:
        """Wait until all keys are there; raises an error after the timeout."""

    def get(self, key: str, /) -> bytes:
        """A key's value."""


@contextlib.contextmanager
def member(
    place: Assignment, connect: Callable[[], Store], address: str, environ: MutableMapping[str, str]
) -> Iterator[None]:
    """A context for the script in which it is a member of the round's TensorFlow cluster, if TensorFlow is installed.

    TF_CONFIG is set when the script imports TensorFlow, or at once if a standby has imported it before. Until then the
    port is kept free for TensorFlow's server.

    Args:
        place: the worker's place in the round.
        connect: connects to the round's store.
        address: this host's address, as the others know it.
        environ: the environment in which TF_CONFIG is set.

    Raises:
        OSError: the address is not an address of this host.
        torch.distributed.DistError: the round's store cannot be reached.
    """
    if importlib.util.find_spec(PACKAGE) is None:
        yield
        return
    store = connect()
    with bound_at(address) as reserved:
        store.set(_key(place.rank), at_port(address, reserved.getsockname()[1]))

        def set_config() -> None:
            keys = [_key(rank) for rank in range(place.size)]
            store.wait(keys, PUBLISH_TIMEOUT)
            environ["TF_CONFIG"] = config([store.get(key).decode() for key in keys], place.rank)
            reserved.close()  # TensorFlow's server shares it with no other socket

        if PACKAGE in sys.modules:
            set_config()
        else:
            sys.meta_path.insert(0, _BeforeImport(PACKAGE, set_config))
        yield


def config(workers: Sequence[str], index: int) -> str:
    """The value of TF_CONFIG.

    Args:
        workers: host and port of each worker, by rank.
        index: this worker's rank.
    """
    return json.dumps({"cluster": {"worker": list(workers)}, "task": {"type": "worker", "index": index}})


def _key(rank: int) -> str:
    return f"edriver/tensorflow/{rank}"


class _BeforeImport:
    """A finder (importlib.abc.MetaPathFinder) that finds nothing, and calls back before a package's first import."""

    def __init__(self, package: str, call: Callable[[], None]) -> None:
        self._package = package
        self._call = call

    def find_spec(self, fullname: str, *_: object) -> ModuleSpec | None:
        if fullname == self._package:
            sys.meta_path.remove(self)
            self._call()
        return None
