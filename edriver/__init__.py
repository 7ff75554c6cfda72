"""edriver: an elastic training driver for PyTorch.

    import edriver

    @edriver.run
    def train(state): ...

    train(edriver.TorchState(model=model, optimizer=optimizer, epoch=0))

Names and submodules are imported when they are first used: the driver and the agents are made of this package too,
and importing torch would cost each of them 2 s and 200 MB.
"""

from __future__ import annotations

from edriver.common import release

TYPE_CHECKING = False  # typing's own takes 10 ms to import, in which Ctrl-C would print a traceback
if TYPE_CHECKING:  # type checkers read imports alone; tests/unit/test_public_names.py compares them with the list below
    from edriver import checkpoints as checkpoints
    from edriver import client as client
    from edriver import horovod as horovod
    from edriver import integrations as integrations
    from edriver import keras as keras
    from edriver import ray as ray
    from edriver.calls.launch import LaunchError as LaunchError
    from edriver.calls.launch import launch as launch
    from edriver.calls.parcels import ParcelError as ParcelError
    from edriver.worker.accumulation.global_batch import GlobalBatch as GlobalBatch
    from edriver.worker.accumulation.shares import accumulation_steps as accumulation_steps
    from edriver.worker.accumulation.shares import accumulation_weights as accumulation_weights
    from edriver.worker.context import cross_rank as cross_rank
    from edriver.worker.context import cross_size as cross_size
    from edriver.worker.context import local_rank as local_rank
    from edriver.worker.context import local_size as local_size
    from edriver.worker.context import rank as rank
    from edriver.worker.context import size as size
    from edriver.worker.context import worker_seed as worker_seed
    from edriver.worker.errors import CheckpointError as CheckpointError
    from edriver.worker.errors import HostsUpdatedInterrupt as HostsUpdatedInterrupt
    from edriver.worker.errors import PeerLostError as PeerLostError
    from edriver.worker.errors import SwallowedInterruptError as SwallowedInterruptError
    from edriver.worker.group.round_mesh import mesh as mesh
    from edriver.worker.restart.checkpoint import checkpoint_requested as checkpoint_requested
    from edriver.worker.rounds.run import run as run
    from edriver.worker.sampler.elastic_sampler import ElasticSampler as ElasticSampler
    from edriver.worker.sampler.elastic_stream import ElasticStream as ElasticStream
    from edriver.worker.state.handlers import StateHandler as StateHandler
    from edriver.worker.state.handlers import register_handler as register_handler
    from edriver.worker.state.object_state import ObjectState as ObjectState
    from edriver.worker.state.sharded_state import ShardedState as ShardedState
    from edriver.worker.state.state import State as State
    from edriver.worker.state.torch_state import TorchState as TorchState
    from edriver.worker.state.typed_state import TypedState as TypedState
    from edriver.worker.training_phase import phase as phase

__version__ = release.VERSION

_NAMES = {
    "calls.launch": ("LaunchError", "launch"),
    "calls.parcels": ("ParcelError",),
    "worker.accumulation.global_batch": ("GlobalBatch",),
    "worker.accumulation.shares": ("accumulation_steps", "accumulation_weights"),
    "worker.errors": ("CheckpointError", "HostsUpdatedInterrupt", "PeerLostError", "SwallowedInterruptError"),
    "worker.group.round_mesh": ("mesh",),
    "worker.restart.checkpoint": ("checkpoint_requested",),
    "worker.rounds.run": ("run",),
    "worker.sampler.elastic_sampler": ("ElasticSampler",),
    "worker.sampler.elastic_stream": ("ElasticStream",),
    "worker.state.handlers": ("StateHandler", "register_handler"),
    "worker.state.object_state": ("ObjectState",),
    "worker.state.sharded_state": ("ShardedState",),
    "worker.state.state": ("State",),
    "worker.state.torch_state": ("TorchState",),
    "worker.state.typed_state": ("TypedState",),
    "worker.context": ("cross_rank", "cross_size", "local_rank", "local_size", "rank", "size", "worker_seed"),
    "worker.training_phase": ("phase",),
}
"""The public names, by the module that has them."""

_MODULES = {name: module for module, names in _NAMES.items() for name in names}

_SUBMODULES = ("checkpoints", "client", "horovod", "integrations", "keras", "ray")
"""The public submodules. Not in __all__: `from edriver import *` would import them, and Keras with them."""

__all__ = ["__version__", *sorted(_MODULES)]


def __dir__() -> list[str]:
    """What a shell completes: what is public, imported yet or not, and nothing else."""
    return sorted({*__all__, *_SUBMODULES})


def __getattr__(name: str) -> object:
    import importlib

    if name in _SUBMODULES:
        try:
            return importlib.import_module(f"edriver.{name}")
        except ImportError as error:  # of Keras, say: what asks for all that dir() lists continues
            raise AttributeError(f"edriver.{name} cannot be imported: {error}") from error
    if name not in _MODULES:
        raise AttributeError(f"module 'edriver' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"edriver.{_MODULES[name]}"), name)
    globals()[name] = value
    return value
