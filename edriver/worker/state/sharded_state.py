"""ShardedState: a model that fully_shard shards over the workers of a replica, and its optimizer.

Workers of the same position hold the same shards, and can take one another's places. A round has a mesh of its own, of
whole replicas. The model and its optimizer are made once, for the mesh of this worker's first round, and bound to that
of each later one (backend/fsdp2.py); where torch has changed so that this cannot be done, they are made anew, and given
the shards.

Positions reduce their gradients apart from each other, so a loss could find some a step ahead of others, and nobody
could undo an optimizer's step. Hence the seal: a collective over all members, after the last one that gradients need
and before the step, or before a boundary that has none. A worker that leaves it knows that all have their gradients.
Where the seal breaks, this worker keeps its gradients, with which it can make the step alone: whether it does depends
on what the next round continues from (BoundaryListener.seal_broken).

The norm of all gradients needs a collective, too. `clip_grad_norm_` makes one of both: the seal carries the norm. A
worker whose seal has broken does not know it; it gets it from one that has left the seal, with the next round's
version. torch's own clipping reduces the norm within each replica, so a worker that has it knows of its own replica
alone, and the seal is still due.

A worker that boots while others train makes its model before it is ready, on a mesh without peers
(backend/offline_group.py); its values do not count, for it receives others. The first workers of a run make theirs in
their first round, from the random numbers that the same script draws alone. Elements that several workers of a replica
have, such as those of a LayerNorm along "tensor", are made equal before the first sync, count once in the norm, and are
written once.

What no seal can help is refused at the run's first boundary: several steps of the optimizer between two boundaries, and
a collective between a step and its boundary. Seen later on, as in an evaluation now and then, it is logged, and the
state commits now and then.

Writes to parameters outside of an optimizer's step tear the state, as those to a TorchState do. Torch counts none that
a `torch._foreach_` function makes to a DTensor (2.13), so such a write outside of a step is not seen.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import logging
import math
import os
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from edriver.model.plan import SINGLE_WORKER, Assignment
from edriver.model.shards import HeldShards
from edriver.worker import context
from edriver.worker.backend import fsdp2, offline_group, tensors, torch_groups
from edriver.worker.backend.interpreter import without_collections
from edriver.worker.backend.local_steps import step_on_shards
from edriver.worker.backend.mesh_objects import MeshObjects
from edriver.worker.backend.nested_steps import is_nested
from edriver.worker.backend.process_modes import without_tensor_modes
from edriver.worker.copies.random_states import RandomStates
from edriver.worker.copies.snapshot import TakeOver
from edriver.worker.errors import NoRankError, PeerLostError
from edriver.worker.group.round_mesh import REPLICATE, RoundMesh, offline_mesh
from edriver.worker.sampler.sample_share import SampleDimensions, sample_share
from edriver.worker.state import seals
from edriver.worker.state.elastic_shards import ElasticShards
from edriver.worker.state.first_look import tensors_in
from edriver.worker.state.handlers import GradScalerHandler, StateHandler, refuse_wrapped_shards, refuse_zero
from edriver.worker.state.object_state import check_names
from edriver.worker.state.optimizer_attributes import refuse_hidden_state, refuse_other_optimizers, refuse_untwinned
from edriver.worker.state.resharding import sharded_columns, sharded_values
from edriver.worker.state.seals import power_sum, power_sum_of_shards, total_norm
from edriver.worker.state.sharded_handlers import ShardedModuleHandler, ShardedOptimizerHandler
from edriver.worker.state.step_watch import come_first
from edriver.worker.state.torch_state import TorchState
from edriver.worker.state.wishes import Wishes

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.fsdp import FSDPModule

    from edriver.worker.checkpoints.shard_planners import ShardPlace
    from edriver.worker.state.sharded_checkpoints import ShardedCheckpoints

logger = logging.getLogger("edriver.worker")

BUILD: Final = "build"
MODEL: Final = "model"
OPTIMIZER: Final = "optimizer"
SCHEDULER: Final = "scheduler"

_RANDOM: Final = "edriver/random"
"""Of the keys in a round's store."""

NORM_EPSILON: Final = 1e-6
"""Added to a norm that is divided by, as torch.nn.utils.clip_grad_norm_ does."""
SEVERAL_STEPS: Final = (
    "an optimizer makes several steps between two boundaries (call state.check_host_updates() after each of them)"
)
COMMUNICATES: Final = (
    "`build` or `optimizer` communicates with other workers, and a worker that joins later calls it alone. "
    "parallelize_module and distribute_tensor send each worker its part of a parameter: give them src_data_rank=None, "
    "so that it takes its part of its own. Load weights before fully_shard"
)
OWN_GROUPS: Final = (
    "`build` or `optimizer` makes process groups, and a worker that joins later calls it alone: make those in the "
    "training function, from edriver.mesh(). fully_shard makes some if reshard_after_forward is a number of workers: "
    "give True or False"
)
ONE_OF_EACH: Final = (
    "A ShardedState has one model and one optimizer, which `build` and `optimizer` make. What is to be sharded as they "
    "are, such as an average of the weights, can be a frozen part of the model. Write to it with lerp_ or copy_: what "
    "torch._foreach_ functions write is not seen"
)
LATE_COLLECTIVE: Final = (
    "a collective runs between an optimizer's step and the boundary (reduce metrics and evaluate the model before "
    "optimizer.step(), or after state.check_host_updates())"
)
"""What a seal cannot help: a worker that has made a step, and has to meet others before its boundary."""


class ShardedState(TorchState):
    """A state whose model is sharded over the workers of a replica (FSDP2), and replicated over the replicas (HSDP).

        def build(mesh):
            model = Net()
            for block in model.blocks:
                fully_shard(block, mesh=mesh)
            return fully_shard(model, mesh=mesh)

        state = edriver.ShardedState(
            build=build, optimizer=lambda model: torch.optim.AdamW(model.parameters()), sampler=sampler, epoch=0
        )

    Start the run with `--replica-size S`: a round then has whole replicas of S workers, and each worker keeps its
    position in a replica for life. The training function finds `state.model` and `state.optimizer` as they were at the
    last boundary, and calls neither fully_shard nor DistributedDataParallel. Take them from the state inside the
    function: they are the same objects in each round, except with a version of torch in which edriver cannot bind them
    to another mesh, as it logs.

    With `--replica-size all` all workers of a round are one replica, whatever their number: the mesh is of (1, size)
    workers, the shards are cut anew in each round, and each worker keeps a copy of another's shard up to date, to which
    it makes the same steps. So the loss of a worker costs no step. That takes twice the memory for parameters and
    optimizer, and an optimizer that keeps values of its parameters' shapes, or none, as torch's AdamW and SGD do.

    A step's gradients have to be complete when the optimizer's step begins. From there to the boundary nothing may
    communicate, and there is one step of the optimizer: reduce a loss before it, or after the boundary.

    With `replica_mesh`, the mesh has several dimensions inside a replica, such as `{"shard": 2, "tensor": 4}`: `build`
    gives parallelize_module the mesh's "tensor", with src_data_rank=None, and fully_shard `mesh["replicate", "shard"]`.

    With `checkpoint`, one worker of each position saves its shards into the memory of its host, every few seconds. The
    hosts copy them to one another, and at longer intervals write them to disk, into a folder that all of them share. A
    run that has lost all workers of a position goes back to the newest checkpoint, in memory or on disk, and a new run
    continues from that on disk, with any number of replicas, of any size. The folder is that of a TorchState: either
    kind of state loads what the other has written, if models, optimizers and attributes are the same.

    Args:
        build: called once, with a mesh of the dimensions "replicate" and "shard"; returns the model, of which
            fully_shard has sharded modules over that mesh. A worker that comes to a run that trains calls it before its
            first round, so that the others do not wait for it: with a mesh in which nothing can be sent. So it may not
            communicate, nor make process groups. If it asks for its rank, it is called again, in that round. With
            `--replica-size all` the mesh is then of the workers that train, so of another size than that round's; and
            it is called again if that round goes on from a checkpoint. With `replica_mesh` the mesh has its dimensions
            in the place of "shard".
        optimizer: called once, with the model; returns its optimizer.
        scheduler: called once, with the optimizer; returns its learning-rate scheduler. None: there is none.
        replica_mesh: the dimensions of a replica, by name, outermost first, with the number of workers in each; their
            product is the replica size. Workers have the same parameters along a dimension that a parameter is not
            sharded over, except along one named "pipeline" or "pp". None: one dimension, "shard".
        checkpoint: the folder for checkpoints: a path, or a URL that fsspec supports; None: there are none.
        every: the interval between two checkpoints on disk: a timedelta, or a number of steps.
        every_memory: the interval between two in memory; None: as often as takes 1 % of the time.
        keep: the number of complete checkpoints to keep on disk.
        from_rank_0: see ObjectState.
        objects: all other values, by name: samplers, plain data. No models, no other optimizers.

    Attributes:
        model: the model; None before it is made.
        optimizer: its optimizer; None before it is made.
        scheduler: the optimizer's scheduler, if there is one.

    Raises:
        TypeError: `build`, `optimizer` or `scheduler` is no function, or a value cannot be kept. In the first round:
            the model or the optimizer cannot be trained in this way; the message says what can.
        ValueError: a name starts with an underscore or is an attribute of this class; `every`, `every_memory` or `keep`
            is not positive; `replica_mesh` has no dimension, one called "replicate" or one of no workers. In the first
            round: its sizes do not make up a replica.
    """

    _optimizer_remedy = "Have the optimizer that `optimizer` makes train them, too"

    def __init__(
        self,
        build: Callable[[DeviceMesh], torch.nn.Module],
        optimizer: Callable[[Any], Optimizer],
        *,
        scheduler: Callable[[Any], Any] | None = None,
        replica_mesh: Mapping[str, int] | None = None,
        checkpoint: str | os.PathLike[str] | None = None,
        every: timedelta | int = timedelta(minutes=10),
        every_memory: timedelta | int | None = None,
        keep: int = 3,
        from_rank_0: Iterable[str] = (),
        **objects: Any,
    ) -> None:
        makers = {BUILD: build, OPTIMIZER: optimizer, **({} if scheduler is None else {SCHEDULER: scheduler})}
        for name, maker in makers.items():
            if isinstance(maker, torch.nn.Module | Optimizer) or not callable(maker):
                raise TypeError(
                    f"{name}= takes a function, and was given a {type(maker).__name__}: what depends on the mesh is "
                    "made in this worker's first round"
                )
        if replica_mesh is not None:
            _check_dimensions(replica_mesh, checkpoint is not None)
        if checkpoint is not None:
            objects = {**objects, "steps_made": 0}
        made = dict.fromkeys((MODEL, OPTIMIZER, *([] if scheduler is None else [SCHEDULER])))
        self._hold({**made, **objects}, from_rank_0)
        self._makers = makers
        self._makes = False
        self._modules: list[FSDPModule] = []
        self._replica_mesh = None if replica_mesh is None else dict(replica_mesh)
        self._mesh: DeviceMesh | None = None
        self._mesh_objects: MeshObjects | None = None
        self._looked = False
        self._binds = True
        self._commit_due = False
        self._collectives = 0
        self._communicates = False
        self._sealed_after = 0  # the collectives begun when clipping had sealed a step
        self._unsealed = ""
        self._parts: ShardedCheckpoints | None = None
        if checkpoint is not None:
            from edriver.worker.state.sharded_checkpoints import ShardedCheckpoints  # what it imports takes a second

            self._parts = ShardedCheckpoints(self, self._handlers, checkpoint, every, keep, every_memory)
            self._disk = self._parts
        self._shards: ElasticShards | None = None

    def __setattr__(self, name: str, value: Any) -> None:
        maker = {MODEL: BUILD, OPTIMIZER: OPTIMIZER}.get(name)
        if maker and value is not None and not self._makes and value is not vars(self).get(name):
            raise TypeError(
                f"state.{name} is what `{maker}` makes, here as in newcomers, and nothing else can take its place"
            )
        super().__setattr__(name, value)

    def prepare(self) -> None:
        """Make the model, unless a rehearsal has, and have memory for what a sync brings: see TorchState.prepare."""
        self._make_ahead()
        super().prepare()

    def _make_ahead(self) -> None:
        """Make the model on a mesh without peers: the first round binds it to its own, as all later ones do."""
        place = context.place_in_replica()
        if place is None or self.model is not None or dist.is_initialized():
            return
        before = RandomStates()
        before.keep()
        with contextlib.ExitStack() as stack:
            try:
                mesh = stack.enter_context(offline_mesh(*place, self._replica_mesh))
                if trouble := fsdp2.trouble_on(mesh):
                    raise RuntimeError(trouble)
            except Exception as error:  # noqa: BLE001  any change of torch can show in any way
                logger.info("the model is made in this worker's first round, for which the others wait: %s", error)
                return
            try:
                with torch_groups.none_made(OWN_GROUPS):
                    self._make(mesh)
                self._look_at_mesh(mesh)
            except NoRankError as error:
                before.bring_back()
                logger.info(
                    "`build` is called again in this worker's first round, for which the others wait: %s", error
                )
            except RuntimeError as error:
                if offline_group.needs_peers(error):
                    raise TypeError(COMMUNICATES) from error
                raise

    def reset(self) -> None:
        """Bind the model and the optimizer to this round's mesh, or make them; split samplers again."""
        if context.assignment().sharding is None:
            self._enter_mesh()
        super().reset()

    def sync(self) -> bool:
        """Send this worker's shards to the receivers of its position, or receive them: see ObjectState.sync.

        Where a round's workers are one replica, cut the shards anew.
        """
        if self._parts is not None:
            self._parts.enter()
        if context.assignment().sharding is not None:
            self._sync_shards()
            return True
        self._enter_mesh()
        if self._replica_mesh is not None and context.assignment().first_sync:
            assert self._mesh is not None, "there are no guests in a first round"
            fsdp2.make_copies_equal(self.model, self._mesh)
        if self._replica_mesh is not None and not context.assignment().is_guest:
            self._share_random_states()
        return super().sync()

    def half_done(self) -> bool:
        """Whether gradients have been accumulated since the optimizer's last step, reduced or not."""
        return super().half_done() or (self._mesh is not None and fsdp2.holds_unreduced(self.model))

    def first_boundary(self) -> None:
        """Check again what the training function has made of the model, and whether the optimizer communicates."""
        fsdp2.reshard(self.model)
        if self._mesh_objects is not None and not self._looked:
            self._mesh_objects.look()  # for those that the first step has made
            self._looked, self._binds = True, self._binds and self._can_bind()
        if not self._looked_around:
            refuse_other_optimizers(self.optimizer)
        super().first_boundary()
        self._refuse_sharded_attributes()
        self._refuse_scaler()
        if self._communicates:
            raise TypeError(
                f"{type(self.optimizer).__name__} communicates in its step, so a loss there would leave workers at "
                "unequal steps: use an optimizer whose step works on each shard alone, as torch's AdamW does, or train "
                "in restart mode, with edriver.checkpoints in memory"
            )
        if self._unsealed and context.assignment().first_sync:  # later on, a warning does less harm than the end
            raise TypeError(f"{self._unsealed}, where a loss finds workers that can neither go back nor go on")

    def _refuse_sharded_attributes(self) -> None:
        """Refuse attributes that could neither be sent to another worker nor be bound to another round's mesh."""
        for name in (name for name in self._names if name not in self._handlers):
            if any(map(fsdp2.is_sharded, tensors_in(getattr(self, name)))):
                raise TypeError(f"the state's attribute {name!r} cannot be kept: it has DTensors. {ONE_OF_EACH}")

    def _refuse_scaler(self) -> None:
        """Refuse a GradScaler where workers compute a step together: torch reduces what it has found over the mesh of
        the first gradient alone (torch/distributed/tensor/_dispatch.py, found_inf_reduce_handler, 2.13).
        """
        over = fsdp2.sharded_over(self.model)
        apart = [name for name, size in (self._replica_mesh or {}).items() if size > 1 and name not in over]
        scalers = [handler.value for handler in self._handlers.values() if isinstance(handler, GradScalerHandler)]
        if apart and any(scaler.is_enabled() for scaler in scalers):
            raise TypeError(
                f"a GradScaler may not see all infinite gradients of workers along {', '.join(apart)}, which would "
                "skip a step that others make: train in bfloat16, without one"
            )

    def load_checkpoint(self) -> None:
        """Load the newest whole checkpoint from disk, in a process that trains alone.

        Raises:
            CheckpointError: there is none that can be loaded.
        """
        self._enter_mesh()
        super().load_checkpoint()

    def _load_checkpoint_in(self, assignment: Assignment) -> None:
        if self._parts is not None:
            self._parts.load_chosen(assignment)

    def take_over(self, tree: dict[str, Any], random: dict[str, Any]) -> None:
        """Load a checkpoint's shards; see ObjectState.take_over. Random states are those of the first position."""
        if sample_share(context.assignment()).rank:
            self._random.keep()
            random = self._random.kept()
        handler = self._handlers[OPTIMIZER]
        assert isinstance(handler, ShardedOptimizerHandler), "the model has been made"
        if OPTIMIZER in tree:
            tree = {**tree, OPTIMIZER: (True, handler.with_shards_named(tree[OPTIMIZER][1]))}
        super().take_over(tree, random)

    def live_tree(self) -> dict[str, Any]:
        """The state as it is, as a tree that refers to the live tensors."""
        return self._capture()

    def live_objects(self) -> dict[str, Any]:
        """The model and its optimizer, by name."""
        return {MODEL: self.model, OPTIMIZER: self.optimizer}

    def shards_in(self, tree: dict[str, Any]) -> Mapping[int, ShardPlace]:
        """See Checkpointed.

        Raises:
            ValueError: a tensor of a checkpoint has another shape than this state's.
        """
        from edriver.worker.checkpoints.shard_planners import ShardPlace

        places = {}
        for name in (name for name in (MODEL, OPTIMIZER) if name in tree):
            handler = self._handlers[name]
            assert isinstance(handler, ShardedModuleHandler | ShardedOptimizerHandler), "the model has been made"
            for shard in handler.shards(tree[name][1]):
                if shard.tensor.is_meta and shard.tensor.shape != shard.whole.shape:
                    here, there = tuple(shard.whole.shape), tuple(shard.tensor.shape)
                    raise ValueError(f"the {name}'s {shard.name} has shape {here} here and {there} there")
                writes = self._mesh is None or fsdp2.is_first(shard.whole, self._mesh)
                places[id(shard.tensor)] = ShardPlace(*fsdp2.place_of(shard.whole), writes)
        return places

    def rehearse(self, function: Callable[[Any], object], alone: Callable[[], AbstractContextManager[None]]) -> None:
        """Call a script's warm-up function with this state where others train meanwhile: see State.rehearse.

        The process group is then of this worker's replica. The others are not there: collectives pass, and what they
        should have received has any values.
        """
        del alone
        self._make_ahead()
        place = context.place_in_replica()
        if place is None or self.model is None:
            return  # this round is the first one for all, or `prepare` has logged why
        position, size = place
        replica = dataclasses.replace(SINGLE_WORKER, rank=position, size=size, replica_size=size)
        with contextlib.ExitStack() as stack:
            try:
                stack.enter_context(offline_group.rehearsing(position, size))
            except Exception as error:  # noqa: BLE001  any change of torch can show in any way
                logger.info("warm_up is not called, so this worker's first step takes longer: %s", error)
                return
            stack.enter_context(context.current.place.rehearsing(replica))
            self._enter_mesh()
            with self.rehearsal():
                function(self)
                fsdp2.forget_step(self.model)
            self._mesh = None

    def _refuse_unsupported(self, values: Iterable[object]) -> None:
        del values
        assert self._mesh is not None, "a boundary of a round"
        refuse_unbound(self.model, self.optimizer, self._mesh)
        if self._shards is not None:
            refuse_untwinned(self.optimizer)
            sharded_columns(self.model, self.optimizer)  # refuses what could not be cut later

    def _common(self) -> Any:
        """What is not sharded, and nothing of the optimizer, which has made no step yet."""
        apart = set(self._replica_mesh or ()) & set(fsdp2.PIPELINE)  # their positions have different layers
        return self._values(), None if apart else fsdp2.unsharded(self.model)

    def _values(self) -> dict[str, Any]:
        """All but the model and its optimizer, as a tree that refers to the live objects."""
        return {name: part for name, part in self._capture().items() if name not in (MODEL, OPTIMIZER)}

    def _take_common(self, arrived: Any) -> None:
        values, tensors = arrived
        self._load({**self._capture(), **values})
        if tensors is None:
            return
        own = fsdp2.unsharded(self.model)
        check_names(tensors, own, "parameter or buffer")
        with torch.no_grad():
            for name, tensor in tensors.items():
                own[name].copy_(tensor)

    def _handler_of(self, name: str, value: object) -> StateHandler | None:
        if name == MODEL and isinstance(value, torch.nn.Module):
            return ShardedModuleHandler(value)
        if name == OPTIMIZER and isinstance(value, Optimizer):
            return ShardedOptimizerHandler(value)
        if isinstance(value, torch.nn.Module | Optimizer):
            raise TypeError(
                f"the state's attribute {name!r} cannot be kept: it is a {type(value).__name__}. {ONE_OF_EACH}"
            )
        return super()._handler_of(name, value)

    # ---- one replica of all workers

    def _sync_shards(self) -> None:
        """Have this round's shards, whoever held those before."""
        assignment = context.assignment()
        if self._replica_mesh is not None:
            raise TypeError(
                "replica_mesh= has fixed sizes, and with --replica-size all a replica is of any size: give "
                f"--replica-size {math.prod(self._replica_mesh.values())}, or leave out replica_mesh="
            )
        self.own_checkpoints(assignment)
        self.copied.received_bytes = 0
        mesh = context.current.part(RoundMesh).of(assignment)
        assert assignment.sharding is not None, "all workers of the round are one replica"
        self._give_up_ready()  # what was ready for the optimizer goes to the heap, from which shards are taken
        if assignment.sharding.size and not assignment.checkpoint:
            if self.model is None:
                with torch_groups.none_made(OWN_GROUPS):  # the others would not make them, too
                    self._make_first(mesh)
                self._mesh = mesh
        elif self._shards is None or not assignment.sharding.size:  # a model made before has another round's shards
            self._make_first(mesh)
            self._mesh, self._shards = mesh, None
        if self._shards is None:
            refuse_untwinned(self.optimizer)
            self._shards = ElasticShards(self._side())
        if assignment.checkpoint:
            self._load_checkpoint_in(assignment)
        shards = self._shards
        with without_collections():
            shards.cut(self.model, self.optimizer, assignment, self._outline, self._take_outline)
        if self._from_rank_0:
            self._take_from_rank_0(assignment)
        super().reset()
        if not self._binds and self._mesh is not mesh:
            outline = self._outline()
            self._make(mesh)
            self._take_outline(outline)
        shards.enter(self.model, self.optimizer, mesh, self._binds)
        self._mesh = mesh
        self._begin_round()
        self.save()
        self.keep_small()

    def _outline(self) -> Any:
        """All of the state that is not sharded."""
        model, tree = self._handlers[MODEL], self._handlers[OPTIMIZER].capture()
        assert isinstance(model, ShardedModuleHandler), "the model has been made"
        own = {i: {k: v for k, v in of.items() if k not in tree["sharded"][i]} for i, of in tree["state"].items()}
        groups = {**tree, "state": {}, "sharded": {}}
        return self._values(), self.computes_in.sent(), model.capture_unsharded(), groups, own

    def _take_outline(self, outline: Any) -> None:
        """Take over what `_outline` has returned, here or on another worker."""
        values, modes, unsharded, groups, own = outline
        model = self._handlers[MODEL]
        assert isinstance(model, ShardedModuleHandler), "the model has been made"
        self._load({**self._capture(), **values})
        self.computes_in.take(modes)
        model.load_unsharded(unsharded)
        # Shards stay: this worker may still hold them if the round breaks before it has others.
        shards = {p: sharded_values(self.optimizer, p) for p in fsdp2.sharded(self.model)}
        self._handlers[OPTIMIZER].load(groups)
        parameters = [parameter for group in self.optimizer.param_groups for parameter in group["params"]]
        values = TakeOver()
        for index, of in own.items():
            parameter = parameters[index]
            live = self.optimizer.state.get(parameter)  # values stay the same objects: nobody has written to them
            self.optimizer.state[parameter] = {**shards.get(parameter, {}), **values.value(of, live)}

    def shards_held(self, committed: bool) -> tuple[HeldShards, ...]:
        """The shards that this worker holds of its state, by sharding; none if each replica holds all of it."""
        if self._shards is None:
            return ()
        return self._shards.held_of_commit() if committed else self._shards.held()

    def complete_shadows(self) -> None:
        """Send what the script has written to this worker's shard to the keeper of its shadow: see State."""
        if self._shards is not None:
            self._shards.complete_shadows()

    def save(self) -> None:
        """Save a copy of the state, and of the shadow that this worker keeps: see TorchState.save."""
        super().save()
        if self._shards is not None:
            self._shards.save()

    def restore(self) -> None:
        """Go back to the last save: see TorchState.restore."""
        super().restore()
        if self._shards is not None:
            self._shards.restore()

    def clear_gradients(self) -> None:
        """Set all gradients to None."""
        super().clear_gradients()
        if self._shards is not None:
            self._shards.clear_gradients()

    # ---- the mesh

    def _enter_mesh(self) -> None:
        """Have the model and its optimizer train on this round's mesh."""
        if self.model is not None:
            self._share_samples(self.model)
        if context.assignment().is_guest:
            fsdp2.forget_step(self.model)
            return
        mesh = context.current.part(RoundMesh).of(context.assignment(), self._replica_mesh)
        if mesh is self._mesh:
            return
        if self.model is None:
            self._make_first(mesh)
        elif self._binds:
            fsdp2.bind(self.model, self.optimizer, mesh, objects=self._mesh_objects)
        else:
            self._make_again(mesh)
        self._mesh = mesh
        self._begin_round()

    def _share_samples(self, model: torch.nn.Module) -> None:
        """Have samplers and streams know which workers compute a step together."""
        if self._replica_mesh is not None:
            over = fsdp2.sharded_over(model)
            context.current.part(SampleDimensions).set(self._replica_mesh, over, fsdp2.PIPELINE)

    def _share_random_states(self) -> None:
        """Have workers that compute a step together draw the same random numbers, or each drops out other elements.

        Raises:
            RuntimeError: the connection to the round's store broke.
        """
        place, dimensions = context.assignment(), context.current.part(SampleDimensions)
        leaders = [dimensions.leader(rank) for rank in range(place.size)]
        leader = leaders[place.rank]
        if leaders.count(leader) == 1:
            return
        key = f"{_RANDOM}/{context.current.counters.next(_RANDOM, place.round_id)}/{leader}"
        states, store = RandomStates(), torch_groups.default_store()
        states.keep()
        if leader == place.rank:
            store.set(key, states.text())
            return
        (text,) = store.multi_get([key])
        states.take_text(bytes(text).decode())
        states.bring_back()

    def _begin_round(self) -> None:
        """Forget what was agreed in the last round: newcomers do not know of it."""
        self._outdated, self._sealed_after, self._commit_due = True, 0, False

    def _make_first(self, mesh: DeviceMesh) -> None:
        begun = _begun_on(mesh)
        self._make(mesh)
        if _begun_on(mesh) != begun:
            raise TypeError(COMMUNICATES)
        self._look_at_mesh(mesh)

    def _look_at_mesh(self, mesh: DeviceMesh) -> None:
        """See whether the model that has been made on a mesh can be bound to others."""
        if self._replica_mesh is not None:
            self._mesh_objects = MeshObjects(mesh)
        self._binds = self._can_bind()

    def _can_bind(self) -> bool:
        trouble = fsdp2.trouble(self.model) or (self._mesh_objects is not None and self._mesh_objects.trouble())
        if trouble:
            logger.warning(
                "sharded models cannot be bound to another mesh here: %s. They are made anew in each round, which "
                "takes longer, and state.model and state.optimizer are then new objects",
                trouble,
            )
        return not trouble

    def _make(self, mesh: DeviceMesh) -> None:
        fsdp2.forget_meshes()  # or the new parameters get the mesh of those that were made or captured before
        model = self._makers[BUILD](mesh)
        if not isinstance(model, torch.nn.Module):
            raise TypeError(f"`build` has to return the model, and has returned a {type(model).__name__}")
        self._share_samples(model)  # a scheduler may ask for the length of a loader
        optimizer = self._makers[OPTIMIZER](model)
        if not isinstance(optimizer, Optimizer):
            raise TypeError(f"`optimizer` has to return one, and has returned a {type(optimizer).__name__}")
        refuse_unbound(model, optimizer, mesh)
        _warn_of_unsharded(model)
        _warn_of_divisor(model, mesh)
        scheduler: Any = self._makers[SCHEDULER](optimizer) if SCHEDULER in self._makers else None
        self._makes = True
        self.model, self.optimizer = model, optimizer
        self._makes = False
        if scheduler is not None:
            self.scheduler = scheduler
        step_on_shards(optimizer)
        self._modules = fsdp2.sharded_modules(model)
        # Before hooks of the script: what those write to parameters, the shadow's step does not.
        come_first(optimizer.register_step_post_hook(self._step_made))
        fsdp2.before_modules(model, self._leave_lost_round)

    def _leave_lost_round(self) -> None:
        """Raise in a round that is over, before a module fetches its parameters.

        A replica that is whole could go on by itself until it meets the others, and its connections are cut only
        between messages (backend/gloo/cutting.py). It does go on to the end of a micro-batch that it has begun and that
        needs no others (context.MicroBatch).
        """
        self._steps.come_last()
        micro_batch = context.current.micro_batch
        if self._rounds is None or micro_batch.is_finished:
            return
        micro_batch.begin()
        if (cause := self._rounds.abort_cause) is not None:
            micro_batch.end()
            raise PeerLostError(cause)

    def _make_again(self, mesh: DeviceMesh) -> None:
        """The slow way, with public interfaces alone: new objects with the old ones' shards."""
        names = [name for name in (MODEL, OPTIMIZER, SCHEDULER) if name in self._handlers]
        kept = {name: self._handlers[name].capture() for name in names}
        self._make(mesh)
        for name, part in kept.items():
            self._handlers[name].load(part)

    # ---- the seal

    def clip_grad_norm_(self, max_norm: float, norm_type: float = 2.0) -> torch.Tensor:
        """Clip the model's gradients by their total norm, as torch.nn.utils.clip_grad_norm_ does.

        That works, too, and costs one more collective a step: this one's serves as the seal. Call it on all workers,
        once gradients are complete; the optimizer's step follows, and nothing that communicates comes between them.

        Args:
            max_norm: the largest norm that the gradients may have.
            norm_type: the p of the p-norm; may be `inf`.

        Returns:
            the total norm before clipping, a tensor of no dimensions in host memory, float64.

        Raises:
            RuntimeError: there is no model yet, or gradients are not reduced yet.
        """
        if self._mesh is None or fsdp2.holds_unreduced(self.model):
            raise RuntimeError("gradients can be clipped once a backward pass has reduced them over all workers")
        shards, others = fsdp2.gradients(self.model, self._mesh)
        op = dist.ReduceOp.MAX if norm_type == math.inf else dist.ReduceOp.SUM
        own, norm = power_sum_of_shards(shards, norm_type), None
        if self._shards is not None:  # the seal comes later: first shadows receive the gradients that are clipped
            reduced: float | None = seals.sealed(Wishes(), own, op)[1]
        else:
            reduced, norm = self._seal(own, op)
            self._sealed_after = self._collectives_begun()
        if reduced is not None:
            norm = total_norm(reduced, power_sum(others, norm_type), self._mesh.size(0), norm_type)
            if self._rounds is not None:
                self._rounds.clipped(norm)
        if norm is None:
            raise RuntimeError("another worker has made this step without clip_grad_norm_: call it on all workers")
        factor = max_norm / (norm + NORM_EPSILON)
        factor = min(factor, 1.0)  # NaN stays, as with torch's own clipping
        with torch.no_grad(), without_tensor_modes():
            tensors.scale([*itertools.chain(*shards.values()), *others], factor)
            return torch.tensor(norm, dtype=torch.float64, device="cpu")

    def commit(self) -> None:
        """Save the state, then pass a boundary: see State.commit."""
        self._seal_boundary()
        super().commit()

    def check_host_updates(self) -> None:
        """Pass a boundary without saving: see State.check_host_updates."""
        self._seal_boundary()
        super().check_host_updates()

    def _seal_boundary(self) -> None:
        """Seal a boundary that no optimizer's step comes before, or a loss could find positions a boundary apart."""
        if self._rehearses or self.half_done():
            return
        steps = self._steps.begun - self._begun
        self._unsealed = ""
        if steps == 0:
            self._seal()
        elif steps > 1:
            self._unsealed = SEVERAL_STEPS
        elif self._collectives != self._collectives_begun():
            self._unsealed = LATE_COLLECTIVE
        if self._unsealed:
            self._steps.expose(self._unsealed)

    def _step_begins(self) -> None:
        super()._step_begins()
        # What has communicated since clipping may have changed gradients, or break.
        if not self._sealed_after or self._sealed_after != self._collectives_begun():
            if self._shards is not None:
                self._shards.exchange_gradients()
            self._seal()
        self._collectives = self._collectives_begun()

    def _seal(
        self, value: float | None = None, op: dist.ReduceOp.RedOpType = dist.ReduceOp.SUM
    ) -> tuple[float | None, float | None]:
        """Seal the step that is about to be made.

        Args:
            value: of this worker; None on all workers: there is nothing to reduce.
            op: SUM or MAX.

        Returns:
            the values of all members, reduced; None: the seal has broken, and this worker makes the step alone,
            and the norm that the seal has then carried to others, if any.

        Raises:
            PeerLostError: a member is lost, and the step is not to be made.
        """
        if self._rehearses:
            return (0.0 if value is None else value), None
        commit = self._exposed and self._schedule.due()
        wishes = (Wishes() if self._parts is None else self._parts.wish())._replace(commit=commit)
        reduced: float | None = 0.0 if value is None else value
        carried = None
        if self._rounds is not None and context.assignment().size > 1:
            try:
                wishes, reduced = seals.sealed(wishes, value, op)
            except RuntimeError as error:
                reduced, carried = None, self._rounds.seal_broken(error)
                wishes = Wishes(commit=commit)  # this member leaves at the next boundary
        self._commit_due = self._commit_due or wishes.commit
        if self._parts is not None:
            self._parts.agreed(wishes)
        if self._shards is not None:
            self._shards.sealed()
        return reduced, carried

    def _step_made(self, optimizer: Optimizer, *_: object) -> None:
        if is_nested(optimizer):
            return
        for module in self._modules:  # after a forward pass alone some have parameters in full, and keep the old ones
            module.reshard()
        if self._shards is not None:
            self._shards.stepped()
        begun = self._collectives_begun()
        self._communicates = self._communicates or begun != self._collectives
        self._collectives = begun

    def _collectives_begun(self) -> int:
        assert self._mesh is not None, "a step of a round"
        return _begun_on(self._mesh)

    def _commit_by_itself(self) -> bool:
        due, self._commit_due = self._commit_due, False
        return due


def _begun_on(mesh: DeviceMesh) -> int:
    """The number of collectives that this worker has begun in the round."""
    return torch_groups.collectives_begun() + sum(map(torch_groups.begun_in, mesh.get_all_groups()))


def _check_dimensions(dimensions: Mapping[str, int], written: bool) -> None:
    """Refuse dimensions of a replica that cannot be.

    Raises:
        ValueError: the message says why.
        TypeError: checkpoints are to be written of stages of a pipeline.
    """
    if not dimensions or REPLICATE in dimensions or any(size < 1 for size in dimensions.values()):
        raise ValueError(
            'replica_mesh= takes the dimensions of a replica, such as {"shard": 2, "tensor": 2}: at least one, of at '
            f"least one worker each, and none called {REPLICATE!r}; it got {dict(dimensions)}"
        )
    if written and set(dimensions) & set(fsdp2.PIPELINE):
        raise TypeError(
            "checkpoint= cannot be used with a pipeline, whose stages have different models: train in restart mode, "
            "with edriver.checkpoints in memory"
        )


def _warn_of_unsharded(model: torch.nn.Module) -> None:
    """Say on rank 0 that parameters are trained of which nothing averages the gradients."""
    if not context.current.place.in_round or context.assignment().rank:
        return
    names = [name for name, p in model.named_parameters() if p.requires_grad and not fsdp2.is_sharded(p)]
    if names:
        logger.warning(
            "%r%s learns and is in no module that fully_shard has sharded, so nothing averages its gradients over the "
            "workers: call fully_shard on the model itself, too, or average them before the optimizer's step",
            names[0],
            f" (and {len(names) - 1} more)" if len(names) > 1 else "",
        )


def _warn_of_divisor(model: torch.nn.Module, mesh: DeviceMesh) -> None:
    """Say on rank 0 that gradients are divided by a number of workers that will not stay."""
    if not context.current.place.in_round or context.assignment().rank:
        return
    if mesh.size() > 1 and mesh.size() in fsdp2.divisors(model):
        logger.warning(
            "`build` has called set_gradient_divide_factor(%d): that is the number of workers now, and stays when it "
            "changes. Leave it out for the mean over all workers, or call it in the training function, which each "
            "round calls anew",
            mesh.size(),
        )


def refuse_unbound(model: torch.nn.Module, optimizer: Optimizer, mesh: DeviceMesh) -> None:
    """Refuse what cannot go on in another round's mesh.

    Raises:
        TypeError: the message names the reason, and what works.
    """
    refuse_wrapped_shards(model)
    refuse_zero(optimizer)
    if any(isinstance(part, DistributedDataParallel) for part in model.modules()):
        reason = "it is wrapped in DistributedDataParallel, while the replicas of its mesh average gradients already"
    else:
        reason = fsdp2.obstacle(model, mesh)
    if reason:
        raise TypeError(
            f"the model cannot be kept in a ShardedState: {reason}. Or train in restart mode, with edriver.checkpoints "
            "in memory"
        )
    refuse_hidden_state(optimizer)
    own = set(fsdp2.parameters(model))
    if any(parameter not in own for group in optimizer.param_groups for parameter in group["params"]):
        raise TypeError(
            f"this {type(optimizer).__name__} has parameters that are not the model's: have `optimizer` make it from "
            "the parameters of the model that it is given, sharded as they are"
        )
