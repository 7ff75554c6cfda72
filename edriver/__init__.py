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
    from edriver.worker.errors import HostsUpdatedInterrupt as HostsUpdatedInterrupt
    from edriver.worker.errors import PeerLostError as PeerLostError
    from edriver.worker.phases import phase as phase
    from edriver.worker.rounds.loop import run as run
    from edriver.worker.sampler.elastic_sampler import ElasticSampler as ElasticSampler
    from edriver.worker.state.handlers import StateHandler as StateHandler
    from edriver.worker.state.handlers import register_handler as register_handler
    from edriver.worker.state.state import ObjectState as ObjectState
    from edriver.worker.state.state import State as State
    from edriver.worker.state.torch_state import TorchState as TorchState
    from edriver.worker.topology import cross_rank as cross_rank
    from edriver.worker.topology import cross_size as cross_size
    from edriver.worker.topology import local_rank as local_rank
    from edriver.worker.topology import local_size as local_size
    from edriver.worker.topology import rank as rank
    from edriver.worker.topology import size as size

__version__ = release.VERSION

_HOMES = {
    "HostsUpdatedInterrupt": "errors",
    "PeerLostError": "errors",
    "StateHandler": "state.handlers",
    "register_handler": "state.handlers",
    "phase": "phases",
    "run": "rounds.loop",
    "ElasticSampler": "sampler.elastic_sampler",
    "ObjectState": "state.state",
    "State": "state.state",
    "cross_rank": "topology",
    "cross_size": "topology",
    "local_rank": "topology",
    "local_size": "topology",
    "rank": "topology",
    "size": "topology",
    "TorchState": "state.torch_state",
}

__all__ = [*sorted(_HOMES), "__version__"]


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'edriver' has no attribute {name!r}")
    import importlib

    value = getattr(importlib.import_module(f"edriver.worker.{_HOMES[name]}"), name)
    globals()[name] = value
    return value
