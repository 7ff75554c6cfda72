"""Horovod's Keras interface over edriver's rounds, for Keras 3 with its torch backend.

    import edriver.keras as hvd

takes the place of `import horovod.tensorflow.keras as hvd` in a script. `optimizer.py` averages gradients,
`callbacks.py` has Horovod's callbacks, and `elastic` makes model.fit elastic: its state, and the callbacks that commit
it and resume within an epoch. rank, size and the collectives are `edriver.horovod`'s.

It may import `edriver.horovod` and `edriver.worker`, and is the one room that imports keras; no other room imports it.
"""

from edriver.keras import backend as backend  # first: it raises a clear error if keras has another backend

# isort: split
from edriver.horovod.basics import cross_rank as cross_rank
from edriver.horovod.basics import cross_size as cross_size
from edriver.horovod.basics import is_homogeneous as is_homogeneous
from edriver.horovod.basics import is_initialized as is_initialized
from edriver.horovod.basics import local_rank as local_rank
from edriver.horovod.basics import local_size as local_size
from edriver.horovod.basics import rank as rank
from edriver.horovod.basics import size as size
from edriver.horovod.collectives.movements import allgather as allgather
from edriver.horovod.collectives.movements import barrier as barrier
from edriver.horovod.collectives.movements import broadcast as broadcast
from edriver.horovod.collectives.objects import allgather_object as allgather_object
from edriver.horovod.collectives.objects import broadcast_object as broadcast_object
from edriver.horovod.collectives.reductions import Average as Average
from edriver.horovod.collectives.reductions import Sum as Sum
from edriver.horovod.collectives.reductions import allreduce as allreduce
from edriver.horovod.compression import Compression as Compression
from edriver.horovod.elastic.run import run as run
from edriver.horovod.errors import HorovodInternalError as HorovodInternalError
from edriver.horovod.initialization import init as init
from edriver.horovod.initialization import shutdown as shutdown
from edriver.keras import callbacks as callbacks
from edriver.keras import elastic as elastic
from edriver.keras.optimizer import DistributedOptimizer as DistributedOptimizer
from edriver.worker.errors import HostsUpdatedInterrupt as HostsUpdatedInterrupt
