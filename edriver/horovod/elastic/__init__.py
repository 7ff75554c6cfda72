"""hvd.elastic: states, the sampler, and `run`, with Horovod's signatures over edriver's rounds. Start with `run.py`."""

from edriver.horovod.elastic.run import run as run
from edriver.horovod.elastic.sampler import ElasticSampler as ElasticSampler
from edriver.horovod.elastic.state import HostUpdateResult as HostUpdateResult
from edriver.horovod.elastic.state import ObjectState as ObjectState
from edriver.horovod.elastic.state import State as State
from edriver.horovod.elastic.state import TorchState as TorchState
from edriver.horovod.errors import HorovodInternalError as HorovodInternalError
from edriver.worker.errors import HostsUpdatedInterrupt as HostsUpdatedInterrupt

__all__ = [
    "ElasticSampler",
    "HorovodInternalError",
    "HostUpdateResult",
    "HostsUpdatedInterrupt",
    "ObjectState",
    "State",
    "TorchState",
    "run",
]
