"""`horovod.torch.elastic.state`."""

from edriver.horovod.elastic.state import ModelStateHandler as ModelStateHandler
from edriver.horovod.elastic.state import OptimizerStateHandler as OptimizerStateHandler
from edriver.horovod.elastic.state import SamplerStateHandler as SamplerStateHandler
from edriver.horovod.elastic.state import StateHandler as StateHandler
from edriver.horovod.elastic.state import TorchState as TorchState
from edriver.horovod.elastic.state import get_handler_registry as get_handler_registry
from edriver.horovod.elastic.state import set_handler_registry as set_handler_registry
