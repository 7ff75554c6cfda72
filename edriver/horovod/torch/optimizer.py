"""`horovod.torch.optimizer`."""

from edriver.horovod.optimizer import DistributedOptimizer as DistributedOptimizer
