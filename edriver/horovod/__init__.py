"""Horovod's PyTorch interface over torch.distributed and edriver's rounds.

    import edriver.horovod as hvd

takes the place of `import horovod.torch as hvd` in a script. `basics.py` says where a process stands; `collectives`
are what members do together; `optimizer.py`, `reducer.py` and `buckets.py` are the DistributedOptimizer, and `elastic`
makes scripts elastic.
"""

from edriver.horovod import elastic as elastic
from edriver.horovod.basics import ccl_built as ccl_built
from edriver.horovod.basics import cross_rank as cross_rank
from edriver.horovod.basics import cross_size as cross_size
from edriver.horovod.basics import cuda_built as cuda_built
from edriver.horovod.basics import ddl_built as ddl_built
from edriver.horovod.basics import gloo_built as gloo_built
from edriver.horovod.basics import gloo_enabled as gloo_enabled
from edriver.horovod.basics import is_homogeneous as is_homogeneous
from edriver.horovod.basics import is_initialized as is_initialized
from edriver.horovod.basics import local_rank as local_rank
from edriver.horovod.basics import local_size as local_size
from edriver.horovod.basics import mpi_built as mpi_built
from edriver.horovod.basics import mpi_enabled as mpi_enabled
from edriver.horovod.basics import mpi_threads_supported as mpi_threads_supported
from edriver.horovod.basics import nccl_built as nccl_built
from edriver.horovod.basics import rank as rank
from edriver.horovod.basics import rocm_built as rocm_built
from edriver.horovod.basics import size as size
from edriver.horovod.basics import start_timeline as start_timeline
from edriver.horovod.basics import stop_timeline as stop_timeline
from edriver.horovod.collectives.handles import poll as poll
from edriver.horovod.collectives.handles import synchronize as synchronize
from edriver.horovod.collectives.joining import join as join
from edriver.horovod.collectives.movements import allgather as allgather
from edriver.horovod.collectives.movements import allgather_async as allgather_async
from edriver.horovod.collectives.movements import alltoall as alltoall
from edriver.horovod.collectives.movements import alltoall_async as alltoall_async
from edriver.horovod.collectives.movements import barrier as barrier
from edriver.horovod.collectives.movements import broadcast as broadcast
from edriver.horovod.collectives.movements import broadcast_ as broadcast_
from edriver.horovod.collectives.movements import broadcast_async as broadcast_async
from edriver.horovod.collectives.movements import broadcast_async_ as broadcast_async_
from edriver.horovod.collectives.movements import grouped_allgather as grouped_allgather
from edriver.horovod.collectives.movements import grouped_allgather_async as grouped_allgather_async
from edriver.horovod.collectives.objects import allgather_object as allgather_object
from edriver.horovod.collectives.objects import broadcast_object as broadcast_object
from edriver.horovod.collectives.reductions import Adasum as Adasum
from edriver.horovod.collectives.reductions import Average as Average
from edriver.horovod.collectives.reductions import Max as Max
from edriver.horovod.collectives.reductions import Min as Min
from edriver.horovod.collectives.reductions import Product as Product
from edriver.horovod.collectives.reductions import ReduceOp as ReduceOp
from edriver.horovod.collectives.reductions import Sum as Sum
from edriver.horovod.collectives.reductions import allreduce as allreduce
from edriver.horovod.collectives.reductions import allreduce_ as allreduce_
from edriver.horovod.collectives.reductions import allreduce_async as allreduce_async
from edriver.horovod.collectives.reductions import allreduce_async_ as allreduce_async_
from edriver.horovod.collectives.reductions import grouped_allreduce as grouped_allreduce
from edriver.horovod.collectives.reductions import grouped_allreduce_ as grouped_allreduce_
from edriver.horovod.collectives.reductions import grouped_allreduce_async as grouped_allreduce_async
from edriver.horovod.collectives.reductions import grouped_allreduce_async_ as grouped_allreduce_async_
from edriver.horovod.collectives.reductions import grouped_reducescatter as grouped_reducescatter
from edriver.horovod.collectives.reductions import grouped_reducescatter_async as grouped_reducescatter_async
from edriver.horovod.collectives.reductions import reducescatter as reducescatter
from edriver.horovod.collectives.reductions import reducescatter_async as reducescatter_async
from edriver.horovod.collectives.sparse import sparse_allreduce_async as sparse_allreduce_async
from edriver.horovod.compression import Compression as Compression
from edriver.horovod.compression import Compressor as Compressor
from edriver.horovod.errors import HorovodInternalError as HorovodInternalError
from edriver.horovod.errors import MismatchError as MismatchError
from edriver.horovod.functions import broadcast_optimizer_state as broadcast_optimizer_state
from edriver.horovod.functions import broadcast_parameters as broadcast_parameters
from edriver.horovod.initialization import init as init
from edriver.horovod.initialization import shutdown as shutdown
from edriver.horovod.launching import run as run
from edriver.horovod.optimizer import DistributedOptimizer as DistributedOptimizer
from edriver.horovod.process_sets import ProcessSet as ProcessSet
from edriver.horovod.process_sets import add_process_set as add_process_set
from edriver.horovod.process_sets import global_process_set as global_process_set
from edriver.horovod.process_sets import remove_process_set as remove_process_set
from edriver.horovod.sync_batch_norm import SyncBatchNorm as SyncBatchNorm
from edriver.worker.errors import HostsUpdatedInterrupt as HostsUpdatedInterrupt
