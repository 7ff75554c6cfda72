"""`horovod.common.exceptions`."""

from edriver.horovod.errors import HorovodInternalError as HorovodInternalError
from edriver.worker.errors import HostsUpdatedInterrupt as HostsUpdatedInterrupt
