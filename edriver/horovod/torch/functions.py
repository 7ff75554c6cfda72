"""`horovod.torch.functions`."""

from edriver.horovod.collectives.objects import allgather_object as allgather_object
from edriver.horovod.collectives.objects import broadcast_object as broadcast_object
from edriver.horovod.functions import broadcast_optimizer_state as broadcast_optimizer_state
from edriver.horovod.functions import broadcast_parameters as broadcast_parameters
