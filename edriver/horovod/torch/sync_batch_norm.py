"""`horovod.torch.sync_batch_norm`."""

from edriver.horovod.sync_batch_norm import SyncBatchNorm as SyncBatchNorm
