"""ElasticTrainer: one Trainer for all rounds of a process, whose `fit` is called in each of them.

It lives as long as its process, so loggers, callbacks and optimizers do, too. A round that ends leads out of `fit` by
one of edriver's exceptions, past Lightning's handling of failures: callbacks are not asked to save what is left, and
no experiment is marked as failed.

Counters of the loop are part of the state, and are set before the loop begins (progress.py): Lightning's own way of
resuming is made for checkpoints at the end of an epoch. Its handling of failures would end the loggers and the group.
"""

from __future__ import annotations

from typing import Any

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import BaseFinetuning, ModelSummary, StochasticWeightAveraging, WeightAveraging
from lightning.pytorch.trainer.states import TrainerStatus

from edriver.integrations.lightning.loggers import take_over
from edriver.integrations.lightning.loops import ElasticEpochLoop, ElasticFitLoop, RestOfEpoch
from edriver.integrations.lightning.progress import Callbacks, Counters, Metrics, TrainerPart
from edriver.integrations.lightning.step_results import StepResults
from edriver.integrations.lightning.steps import StepOptimization, StepsOfEpoch, micro_batches_of, refuse_other_loops
from edriver.integrations.lightning.strategy import ElasticStrategy
from edriver.worker.backend.peer_loss import looks_like_peer_loss
from edriver.worker.errors import HostsUpdatedInterrupt
from edriver.worker.sampler.elastic_sampler import ElasticSampler
from edriver.worker.state.torch_state import TorchState

_RESTART = "use restart mode, in which a script needs no change: edriver --mode restart"

_STRATEGIES: dict[str, dict[str, Any]] = {
    "auto": {},
    "ddp": {},
    "ddp_find_unused_parameters_true": {"find_unused_parameters": True},
}

_CALLBACKS = (BaseFinetuning, StochasticWeightAveraging, WeightAveraging)
"""They keep copies of the model, or change its optimizers, in ways that no state_dict of theirs has."""


class ElasticTrainer(Trainer):
    """A Lightning Trainer whose training continues in the same process when workers come and go.

        trainer = ElasticTrainer(max_epochs=3)
        state = trainer.elastic_state(model, sampler)

        @edriver.run
        def train(state):
            trainer.fit(model, DataLoader(dataset, batch_size=8, sampler=sampler))

    `fit` passes a boundary after each batch, after each validation and at the end of each epoch: a script must not
    call `state.commit()` or `state.check_host_updates()` itself.

    Args:
        global_batch: whether `accumulate_grad_batches` is the number of micro-batches, of the loader's batch size, in a
            step of all workers together, which share them: each step then has the same samples, whatever the number
            of workers. To Lightning, a batch is then a step.
        strategy: "auto", "ddp", "ddp_find_unused_parameters_true", or an ElasticStrategy.
        devices: do not set it: each worker has one device, and edriver's -np sets the number of workers.
        num_nodes: do not set it.
        use_distributed_sampler: do not set it: the ElasticSampler splits the training data.
        options: other options of Trainer.

    Raises:
        ValueError: an option contradicts these rules, or has no use in elastic mode; the message names the alternative.
    """

    fit_loop: ElasticFitLoop

    def __init__(
        self,
        *,
        global_batch: bool = False,
        strategy: str | ElasticStrategy = "auto",
        devices: Any = "auto",
        num_nodes: int = 1,
        use_distributed_sampler: bool = False,
        **options: Any,
    ) -> None:
        if use_distributed_sampler:
            raise ValueError(
                "use_distributed_sampler=True would make Lightning replace the ElasticSampler with a "
                "DistributedSampler, so samples would be repeated and missed when workers come or go: leave it out"
            )
        if num_nodes != 1 or devices not in ("auto", -1, "-1", 1, "1", [0]):
            raise ValueError(
                f"devices={devices!r} and num_nodes={num_nodes!r}: each worker has one device; leave both out, and set "
                "the number of workers and their hosts with edriver's -np and -H"
            )
        self._micro_batches = micro_batches_of(options) if global_batch else None
        self._parts: dict[str, TrainerPart] = {}
        self._elastic: TorchState | None = None
        self._loader: RestOfEpoch | None = None
        self._ended_by: BaseException | None = None
        own = _strategy(strategy)
        own.trainer = self
        own.set_world_ranks()  # so that one worker prints what the constructor says
        super().__init__(strategy=own, devices=1, use_distributed_sampler=False, **options)
        limits, steps = self.fit_loop, self.fit_loop.epoch_loop
        self.fit_loop = ElasticFitLoop(self, min_epochs=limits.min_epochs, max_epochs=limits.max_epochs)
        self.fit_loop.epoch_loop = ElasticEpochLoop(self, min_steps=steps.min_steps, max_steps=steps.max_steps)
        if global_batch:
            self.fit_loop.epoch_loop.automatic_optimization = StepOptimization(self)
            self.fit_loop.epoch_loop._results = StepResults()
        # Lightning's handler of SIGTERM has all workers end where one gets it.
        self._signal_connector.register_signal_handlers = lambda: None

    def elastic_state(self, model: LightningModule, sampler: ElasticSampler, **more: Any) -> TorchState:
        """Make the state: everything that training continues from. Call it once, before `edriver.run`.

        It moves the model to its device, and calls its `configure_model` and `configure_optimizers`, which no `fit`
        calls again.

        Args:
            model: with all its parameters: what `setup` adds later is not in the state.
            sampler: what the training DataLoader draws from.
            more: attributes of the script's own, as `edriver.TorchState` takes them.

        Returns:
            A state with the attributes model, optimizer, sampler, and others of this class.

        Raises:
            ValueError: a callback cannot work in elastic mode, or the model cannot be trained with `global_batch`.
            TypeError: something cannot be kept, and why.
        """
        callbacks = [*self.callbacks, *_list(model.configure_callbacks())]
        for callback in callbacks:
            if isinstance(callback, _CALLBACKS):
                raise ValueError(f"{type(callback).__name__} cannot be carried from worker to worker: {_RESTART}")
        model.trainer = self
        self.strategy.connect(model)
        model.configure_model()
        if self.strategy._layer_sync is not None:  # sync_batchnorm=True: before the optimizers take the parameters
            self.strategy._layer_sync.apply(model)
        self.strategy.precision_plugin.convert_module(model)
        self.strategy.model_to_device()
        self.strategy.setup_optimizers(self)
        if self._micro_batches is not None:
            refuse_other_loops(model, callbacks, self.strategy.optimizers)
        optimizers = {f"optimizer_{i}": each for i, each in enumerate(self.strategy.optimizers[1:], 1)}
        schedulers = {f"scheduler_{i}": c.scheduler for i, c in enumerate(self.strategy.lr_scheduler_configs)}
        scaler = getattr(self.precision_plugin, "scaler", None)
        self._parts = {"counters": Counters(self), "metrics": Metrics(self), "callback_states": Callbacks(self)}
        parts: dict[str, Any] = {**self._parts}
        self._elastic = TorchState(
            model,
            self.strategy.optimizers[0] if self.strategy.optimizers else None,
            **optimizers,
            **schedulers,
            **({} if scaler is None else {"scaler": scaler}),
            sampler=sampler,
            **parts,
            **more,
        )
        return self._elastic

    def fit(self, model: LightningModule, *data: Any, ckpt_path: Any = None, **options: Any) -> None:
        """Train from the current state on. Call it inside the function that `edriver.run` wraps.

        Args:
            model: the state's model.
            data: as for Trainer.fit: the training loader, validation loaders, or a data module.
            ckpt_path: a checkpoint from the end of an epoch; only a run's first round loads it.
            options: other options of Trainer.fit.

        Raises:
            RuntimeError: called before `elastic_state` or outside of a round.
            ValueError: the model is not the state's.
            TypeError: the training loader does not draw from the state's sampler.
            Exception: any exception that ends the round or the training.
        """
        if self._elastic is None:
            raise RuntimeError(
                "call trainer.elastic_state(model, sampler) before edriver.run, and trainer.fit after it"
            )
        if self._elastic.model is not model:
            raise ValueError("trainer.fit was given another model than trainer.elastic_state")
        for part in self._parts.values():
            if ckpt_path is None or self._begun:
                part.hold()
            else:
                part.waiting = None
        super().fit(model, *data, ckpt_path=None if self._begun else ckpt_path, **options)
        if self._ended_by is not None:
            try:
                raise self._ended_by
            finally:
                self._ended_by = None  # its traceback refers to the round's wrapper and process group

    def _fit_impl(self, *args: Any, **kwargs: Any) -> None:
        try:
            super()._fit_impl(*args, **kwargs)
        except BaseException as error:
            if self.validating or self.sanity_checking:
                self.fit_loop.epoch_loop.val_loop._module_mode.restore(self.lightning_module)
            # Where DistributedDataParallel raised before it came to the module, the way there is still patched.
            self.lightning_module.__dict__.pop("forward", None)
            if not isinstance(error, HostsUpdatedInterrupt) and not looks_like_peer_loss(error):
                raise
            self._ended_by = error
            self._teardown()
            self.state.status, self.state.stage = TrainerStatus.INTERRUPTED, None

    @property
    def estimated_stepping_batches(self) -> int | float:
        """Return max_steps, because the number of steps of an epoch depends on the number of workers.

        Raises:
            ValueError: max_steps is not set.
        """
        if self.max_steps == -1 and self.max_epochs != -1:
            why = (
                "an epoch has more steps with fewer workers"
                if self._micro_batches is None
                else "configure_optimizers is called before fit is given the loader"
            )
            raise ValueError(
                f"trainer.estimated_stepping_batches is not known in elastic mode, because {why}: give ElasticTrainer "
                "max_steps, or give the scheduler a number of steps"
            )
        return float("inf") if self.max_steps == -1 else self.max_steps

    @property
    def sampler(self) -> ElasticSampler:
        """The state's sampler."""
        assert self._elastic is not None, "fit checks that"
        sampler: ElasticSampler = self._elastic.sampler
        return sampler

    @property
    def _begun(self) -> bool:
        """Whether the run has passed a boundary of this training."""
        return self._parts["counters"].state_dict()["at"] is not None

    def take_place(self) -> None:
        """Adapt to the round: its rank is known, and its process group is there."""
        if self._elastic is None:
            return
        take_over(self.loggers, self.strategy, self._begun)
        if self._begun:
            for callback in self.callbacks:
                if isinstance(callback, ModelSummary):
                    callback._max_depth = 0  # it was printed in the first round

    def leave_place(self) -> None:
        """Let go of what belongs to the round."""
        if self._loader is not None:
            self._loader.close()
            self._loader = None

    def put_back(self) -> None:
        """Set the loops, the metrics and the callbacks to the state."""
        for part in self._parts.values():
            part.put_back()

    def rest_of_epoch(self, loader: object) -> RestOfEpoch:
        """The training loader, for the epoch that is next or under way."""
        epoch = self.fit_loop.epoch_loop
        done = epoch.batch_progress.current.ready if epoch.mid_epoch else 0
        if self._micro_batches is None:
            self._loader = RestOfEpoch(loader, self.sampler, done)
        else:
            zero_grad = epoch.automatic_optimization.zero_grad
            self._loader = StepsOfEpoch(loader, self.sampler, done, self.strategy.model, self._micro_batches, zero_grad)
        return self._loader

    @property
    def steps(self) -> StepsOfEpoch:
        """The loader that is being trained on, with `global_batch`."""
        assert isinstance(self._loader, StepsOfEpoch)
        return self._loader

    def record_batch(self, batch_idx: int) -> None:
        """Count a batch's samples as done."""
        assert self._loader is not None, "it yielded the batch"
        self._loader.record(batch_idx)

    def pass_boundary(self) -> None:
        """Pass a boundary."""
        assert self._elastic is not None, "fit checks that"
        self._elastic.check_host_updates()

    def _run_sanity_check(self) -> None:
        """Only where training begins."""
        if not self._begun:
            super()._run_sanity_check()


def _strategy(given: object) -> ElasticStrategy:
    if isinstance(given, ElasticStrategy):
        return given
    if isinstance(given, str) and given.lower() in _STRATEGIES:
        return ElasticStrategy(**_STRATEGIES[given.lower()])
    name = given if isinstance(given, str) else type(given).__name__
    raise ValueError(
        f"strategy={name!r} cannot be elastic: a worker must hold the whole state, in a process that edriver starts; "
        f"leave it out for DistributedDataParallel, or {_RESTART}"
    )


def _list(given: Any) -> list[Any]:
    return list(given) if isinstance(given, list | tuple) else [given]
