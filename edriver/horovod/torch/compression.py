"""`horovod.torch.compression`."""

from edriver.horovod.compression import Compression as Compression
from edriver.horovod.compression import Compressor as Compressor
