"""hvd.elastic for Keras: its state, and the callbacks that commit it and resume within an epoch. Start with `fit.py`.

It may import what `edriver.keras` may.
"""

from edriver.horovod.elastic.run import run as run
from edriver.horovod.errors import HorovodInternalError as HorovodInternalError
from edriver.keras.elastic.callbacks import CommitStateCallback as CommitStateCallback
from edriver.keras.elastic.callbacks import RecordBatchCallback as RecordBatchCallback
from edriver.keras.elastic.callbacks import UpdateBatchStateCallback as UpdateBatchStateCallback
from edriver.keras.elastic.callbacks import UpdateEpochStateCallback as UpdateEpochStateCallback
from edriver.keras.elastic.state import KerasState as KerasState
from edriver.worker.errors import HostsUpdatedInterrupt as HostsUpdatedInterrupt
from edriver.worker.sampler.elastic_sampler import ElasticSampler as ElasticSampler

__all__ = [
    "CommitStateCallback",
    "ElasticSampler",
    "HorovodInternalError",
    "HostsUpdatedInterrupt",
    "KerasState",
    "RecordBatchCallback",
    "UpdateBatchStateCallback",
    "UpdateEpochStateCallback",
    "run",
]
