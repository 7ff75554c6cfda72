"""What the parts of an ElasticTrainer ask of it: they are made by it, and do not know its class."""

from __future__ import annotations

from typing import Any, Protocol

from edriver.worker.sampler.elastic_sampler import ElasticSampler


class OwnerOfLoops(Protocol):
    """The trainer, to its loops."""

    @property
    def current_epoch(self) -> int:
        """The epoch that is next, or under way."""

    @property
    def sampler(self) -> ElasticSampler:
        """The state's."""

    def record_batch(self, batch_idx: int) -> None:
        """Count a batch's samples as done."""

    def pass_boundary(self) -> None:
        """Pass a boundary."""


class OwnerOfSteps(Protocol):
    """The trainer, to the steps that workers share; besides, Lightning's own attributes, of Lightning's own classes."""

    optimizers: list[Any]
    fit_loop: Any
    precision_plugin: Any
    lightning_module: Any
    _logger_connector: Any

    @property
    def steps(self) -> Any:
        """The current loader, a StepsOfEpoch."""


class OwnerOfStrategy(Protocol):
    """The trainer, to its strategy."""

    state: Any
    """Lightning's TrainerState."""

    @property
    def training(self) -> bool:
        """Whether it trains, and does not validate or test."""

    def take_place(self) -> None:
        """Adapt to the round: its rank is known, and its process group is there."""

    def leave_place(self) -> None:
        """Let go of what belongs to the round."""

    def put_back(self) -> None:
        """Set the loops, the metrics and the callbacks to the state."""

    def rest_of_epoch(self, loader: object) -> object:
        """The training loader, for the epoch that is next or under way."""


class OwnerOfParts(Protocol):
    """The trainer, to the parts of its state: Lightning's own attributes, of Lightning's own classes."""

    fit_loop: Any
    callbacks: list[Any]
    should_stop: bool
    strategy: Any
    lightning_module: Any
    _logger_connector: Any
