"""edriver: an elastic training driver for PyTorch.

    import edriver

    @edriver.run
    def train(state): ...

    train(edriver.TorchState(model=model, optimizer=optimizer, epoch=0))

Names are imported when they are first used: the driver and the agents are made of this package too, and importing
torch would cost each of them 2 s and 200 MB.
"""

from __future__ import annotations

from edriver.common import release

TYPE_CHECKING = False  # typing's own takes 10 ms to import, in which Ctrl-C would print a traceback
if TYPE_CHECKING:
    from edriver.calls.launch import LaunchError as LaunchError
    from edriver.calls.launch import launch as launch
    from edriver.worker.errors import HostsUpdatedInterrupt as HostsUpdatedInterrupt
    from edriver.worker.errors import PeerLostError as PeerLostError
    from edriver.worker.restart.checkpoint import checkpoint_requested as checkpoint_requested
    from edriver.worker.rounds.run import run as run
    from edriver.worker.sampler.elastic_sampler import ElasticSampler as ElasticSampler
    from edriver.worker.sampler.elastic_stream import ElasticStream as ElasticStream
    from edriver.worker.state.handlers import StateHandler as StateHandler
    from edriver.worker.state.handlers import register_handler as register_handler
    from edriver.worker.state.object_state import ObjectState as ObjectState
    from edriver.worker.state.state import State as State
    from edriver.worker.state.torch_state import TorchState as TorchState
    from edriver.worker.state.typed_state import TypedState as TypedState
    from edriver.worker.topology import cross_rank as cross_rank
    from edriver.worker.topology import cross_size as cross_size
    from edriver.worker.topology import local_rank as local_rank
    from edriver.worker.topology import local_size as local_size
    from edriver.worker.topology import rank as rank
    from edriver.worker.topology import size as size
    from edriver.worker.topology import worker_seed as worker_seed
    from edriver.worker.training_phase import phase as phase

__version__ = release.VERSION

_SUBMODULES = {
    "LaunchError": "calls.launch",
    "launch": "calls.launch",
    "HostsUpdatedInterrupt": "worker.errors",
    "PeerLostError": "worker.errors",
    "StateHandler": "worker.state.handlers",
    "register_handler": "worker.state.handlers",
    "phase": "worker.training_phase",
    "checkpoint_requested": "worker.restart.checkpoint",
    "run": "worker.rounds.run",
    "ElasticSampler": "worker.sampler.elastic_sampler",
    "ElasticStream": "worker.sampler.elastic_stream",
    "ObjectState": "worker.state.object_state",
    "State": "worker.state.state",
    "cross_rank": "worker.topology",
    "cross_size": "worker.topology",
    "local_rank": "worker.topology",
    "local_size": "worker.topology",
    "rank": "worker.topology",
    "size": "worker.topology",
    "worker_seed": "worker.topology",
    "TorchState": "worker.state.torch_state",
    "TypedState": "worker.state.typed_state",
}

__all__ = [*sorted(_SUBMODULES), "__version__"]


def __dir__() -> list[str]:
    """What a shell completes and help() lists: the names that are imported once they are used."""
    return sorted({*globals(), *__all__})


def __getattr__(name: str) -> object:
    if name not in _SUBMODULES:
        raise AttributeError(f"module 'edriver' has no attribute {name!r}")
    import importlib

    value = getattr(importlib.import_module(f"edriver.{_SUBMODULES[name]}"), name)
    globals()[name] = value
    return value
