"""ElasticStrategy: DistributedDataParallel over edriver's process group, which lives for one round.

The module, its optimizers and what they hold stay where they are from round to round. Lightning's own strategy moves
them to the CPU when it is torn down, makes new optimizers when it is set up, and seeds the random number generators.
"""

from __future__ import annotations

import os
from typing import Any

import torch
import torch.distributed as dist
from lightning.fabric.plugins.environments import ClusterEnvironment
from lightning.pytorch.strategies import DDPStrategy
from lightning.pytorch.trainer.states import TrainerFn
from lightning.pytorch.utilities.rank_zero import rank_zero_only
from lightning_utilities.core.rank_zero import rank_zero_only as utilities_rank_zero_only

from edriver.integrations.lightning.back_references import OwnerOfStrategy
from edriver.model.stall_limits import Phase
from edriver.worker import context
from edriver.worker.training_phase import phase


class RoundEnvironment(ClusterEnvironment):
    """Answers Lightning from this worker's place in the round."""

    @property
    def creates_processes_externally(self) -> bool:
        """True: edriver starts them."""
        return True

    @property
    def main_address(self) -> str:
        """Of no use: edriver makes the process group."""
        return ""

    @property
    def main_port(self) -> int:
        """The same."""
        return 0

    @staticmethod
    def detect() -> bool:
        """Never picked on its own."""
        return False

    def world_size(self) -> int:
        """The round's size; 1 before the first one."""
        return context.size() if _has_place() else 1

    def global_rank(self) -> int:
        """The round's rank; 0 before the first one."""
        return context.rank() if _has_place() else 0

    def local_rank(self) -> int:
        """The rank on this host; 0 before the first round."""
        return context.local_rank() if _has_place() else 0

    def node_rank(self) -> int:
        """This host's place among the hosts of the round; 0 before the first one."""
        return context.assignment().host_rank if _has_place() else 0

    def set_world_size(self, size: int) -> None:
        """Do nothing: the driver decides it."""

    def set_global_rank(self, rank: int) -> None:
        """Do nothing: the driver decides it."""


def _has_place() -> bool:
    return context.in_round() or "EDRIVER_WORKER_ID" not in os.environ


def speak_as(rank: int) -> None:
    """Have Lightning's messages printed on rank 0 alone."""
    rank_zero_only.rank = utilities_rank_zero_only.rank = rank


class ElasticStrategy(DDPStrategy):
    """DistributedDataParallel in rounds of edriver; ElasticTrainer's.

    Args:
        options: DistributedDataParallel's, such as find_unused_parameters=True.
    """

    trainer: OwnerOfStrategy

    def __init__(self, **options: Any) -> None:
        super().__init__(cluster_environment=RoundEnvironment(), **{"init_sync": False, **options})

    @property
    def root_device(self) -> torch.device:
        """The one device that a worker has."""
        device: torch.device = self.parallel_devices[0]
        return device

    @property
    def num_nodes(self) -> int:
        """How many hosts the round has; 1 before the first one."""
        return context.assignment().host_count if _has_place() else 1

    @num_nodes.setter
    def num_nodes(self, num_nodes: int) -> None:
        """Do nothing: the driver decides it."""

    @property
    def distributed_sampler_kwargs(self) -> dict[str, int]:
        """What a script's own DistributedSampler needs; hosts may differ in their numbers of workers."""
        return {"num_replicas": self.world_size, "rank": self.global_rank}

    def set_world_ranks(self) -> None:
        """Say which worker prints; before the first round it is the run's first, so that newcomers print nothing."""
        first = os.environ.get("EDRIVER_WORKER_ID", "1") == "1"
        speak_as(self.global_rank if _has_place() else 1 - first)

    def _configure_launcher(self) -> None:
        """Do nothing: edriver starts the processes."""

    def setup_distributed(self) -> None:
        """Use the round's existing group.

        Raises:
            RuntimeError: called outside of a round.
        """
        if not dist.is_initialized():
            raise RuntimeError(
                "there is no process group: call trainer.fit inside the function that edriver.run wraps, or after it"
            )
        self.set_world_ranks()
        self.trainer.take_place()

    def setup(self, trainer: OwnerOfStrategy) -> None:
        """Wrap the module for this round, and put back what Lightning has reset."""
        self.accelerator.setup(trainer)
        if trainer.state.fn == TrainerFn.FITTING:
            self.configure_ddp()
            self.setup_precision_plugin()
            trainer.put_back()

    def process_dataloader(self, dataloader: object) -> object:
        """Wrap the training loader; others are left as they are."""
        return self.trainer.rest_of_epoch(dataloader) if self.trainer.training else dataloader

    def save_checkpoint(self, *args: Any, **kwargs: Any) -> None:
        """Write a checkpoint, which may take longer than a step."""
        with phase(Phase.SAVE):
            super().save_checkpoint(*args, **kwargs)

    def teardown(self) -> None:
        """Let go of the round's wrapper and its process group; nothing is moved."""
        self.trainer.leave_place()
        self.model = self.lightning_module
