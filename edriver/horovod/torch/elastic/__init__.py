"""`horovod.torch.elastic`."""

from edriver.horovod.elastic import *  # noqa: F403
