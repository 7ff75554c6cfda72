"""`horovod.torch.mpi_ops`: init, ranks and collectives."""

from edriver.horovod import *  # noqa: F403
