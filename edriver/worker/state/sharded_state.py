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

Writes to parameters outside of an optimizer's step tear the state, as those to a TorchState do. Torch counts none that
a `torch._foreach_` function makes to a DTensor (2.13), so such a write outside of a step is not seen.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from edriver.model.shards import HeldShards
from edriver.worker import context
from edriver.worker.backend import fsdp2, torch_groups
from edriver.worker.backend.interpreter import without_collections
from edriver.worker.backend.process_modes import without_tensor_modes
from edriver.worker.copies.snapshot import TakeOver
from edriver.worker.group.round_mesh import RoundMesh
from edriver.worker.state.elastic_shards import ElasticShards
from edriver.worker.state.handlers import StateHandler, refuse_wrapped_shards, refuse_zero
from edriver.worker.state.object_state import check_names
from edriver.worker.state.sharded_handlers import ShardedModuleHandler, ShardedOptimizerHandler
from edriver.worker.state.torch_state import TorchState

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

logger = logging.getLogger("edriver.worker")

BUILD: Final = "build"
MODEL: Final = "model"
OPTIMIZER: Final = "optimizer"
SCHEDULER: Final = "scheduler"


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

    A step's gradients have to be complete when the optimizer's step begins, and nothing may communicate in that step.
    Checkpoints on disk are the script's own (torch.distributed.checkpoint).

    Args:
        build: called once, in this worker's first round, with a mesh of the dimensions "replicate" and "shard"; returns
            the model, of which fully_shard has sharded modules over that mesh.
        optimizer: called once, with the model; returns its optimizer.
        scheduler: called once, with the optimizer; returns its learning-rate scheduler. None: there is none.
        from_rank_0: see ObjectState.
        objects: all other values, by name: samplers, plain data. No models, no other optimizers.

    Attributes:
        model: the model; None before this worker's first round.
        optimizer: its optimizer; None before this worker's first round.
        scheduler: the optimizer's scheduler, if there is one.

    Raises:
        TypeError: `build`, `optimizer` or `scheduler` is no function, or a value cannot be kept. In the first round:
            the model or the optimizer cannot be trained in this way; the message says what can.
        ValueError: a name starts with an underscore or is an attribute of this class.
    """

    def __init__(
        self,
        build: Callable[[DeviceMesh], torch.nn.Module],
        optimizer: Callable[[Any], Optimizer],
        *,
        scheduler: Callable[[Any], Any] | None = None,
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
        if "checkpoint" in objects:
            raise TypeError(
                "a ShardedState writes no checkpoints to disk: write them with torch.distributed.checkpoint, and leave "
                "out checkpoint="
            )
        made = dict.fromkeys((MODEL, OPTIMIZER, *([] if scheduler is None else [SCHEDULER])))
        self._hold({**made, **objects}, from_rank_0)
        self._makers = makers
        self._mesh: DeviceMesh | None = None
        self._binds = True
        self._commit_due = False
        self._collectives = 0
        self._communicates = False
        self._shards: ElasticShards | None = None

    def reset(self) -> None:
        """Bind the model and the optimizer to this round's mesh, or make them; split samplers again."""
        if context.assignment().layout is None:
            self._enter_mesh()
        super().reset()

    def sync(self) -> bool:
        """Send this worker's shards to the receivers of its position, or receive them: see ObjectState.sync.

        Where a round's workers are one replica, cut the shards anew.
        """
        if context.assignment().layout is not None:
            self._sync_shards()
            return True
        self._enter_mesh()
        return super().sync()

    def half_done(self) -> bool:
        """Whether gradients have been accumulated since the optimizer's last step, reduced or not."""
        return super().half_done() or (self._mesh is not None and fsdp2.holds_unreduced(self.model))

    def first_boundary(self) -> None:
        """Check again what the training function has made of the model, and whether the optimizer communicates."""
        fsdp2.reshard(self.model)
        super().first_boundary()
        if self._communicates:
            raise TypeError(
                f"{type(self.optimizer).__name__} communicates in its step, so a loss there would leave workers at "
                "unequal steps: use an optimizer whose step works on each shard alone, as torch's AdamW does, or train "
                "in restart mode, with edriver.checkpoints in memory"
            )

    @contextlib.contextmanager
    def rehearsal(self) -> Iterator[None]:
        """Refuse a warm-up: the model is made in a round, which takes a whole replica."""
        raise TypeError("a ShardedState has no model before its first round: leave out warm_up=")
        yield

    def _refuse_unsupported(self, values: Iterable[object]) -> None:
        del values
        assert self._mesh is not None, "a boundary of a round"
        refuse_unbound(self.model, self.optimizer, self._mesh)

    def _common(self) -> Any:
        """What is not sharded, and nothing of the optimizer, which has made no step yet."""
        values = {name: part for name, part in self._capture().items() if name not in (MODEL, OPTIMIZER)}
        return values, fsdp2.unsharded(self.model)

    def _take_common(self, arrived: Any) -> None:
        values, tensors = arrived
        self._load({**self._capture(), **values})
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
                f"the state's attribute {name!r} cannot be kept: a ShardedState has one model and one optimizer, which "
                "`build` and `optimizer` make"
            )
        return super()._handler_of(name, value)

    # ---- one replica of all workers

    def _sync_shards(self) -> None:
        """Have this round's shards, whoever held those before."""
        assignment = context.assignment()
        self.copied.received_bytes = 0
        mesh = context.current.part(RoundMesh).of(assignment)
        if self._shards is None:
            self._make_first(mesh)
            self._shards = ElasticShards(self._side())
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
        self._outdated = True
        self.save()
        self.keep_small()

    def _outline(self) -> Any:
        """All of the state that is not sharded."""
        tree = self._handlers[OPTIMIZER].capture()
        own = {i: {k: v for k, v in of.items() if k not in tree["sharded"][i]} for i, of in tree["state"].items()}
        return self._common(), self.computes_in.sent(), {**tree, "state": {}, "sharded": {}}, own

    def _take_outline(self, outline: Any) -> None:
        """Take over what `_outline` has returned, here or on another worker."""
        common, modes, groups, own = outline
        self._take_common(common)
        self.computes_in.take(modes)
        self._handlers[OPTIMIZER].load(groups)
        parameters = [parameter for group in self.optimizer.param_groups for parameter in group["params"]]
        values = TakeOver()
        for index, of in own.items():
            self.optimizer.state[parameters[index]] = values.value(of)

    def shards_held(self, committed: bool) -> tuple[HeldShards, ...]:
        """See State.shards_held."""
        if self._shards is None:
            return ()
        return self._shards.held_of_commit() if committed else self._shards.held()

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
        mesh = context.current.part(RoundMesh).of(context.assignment())
        if mesh is self._mesh:
            return
        if self._mesh is None:
            self._make_first(mesh)
        elif self._binds:
            fsdp2.bind(self.model, self.optimizer, mesh)
        else:
            self._make_again(mesh)
        self._mesh = mesh
        self._outdated = True

    def _make_first(self, mesh: DeviceMesh) -> None:
        self._make(mesh)
        if trouble := fsdp2.trouble(self.model):
            self._binds = False
            logger.warning(
                "sharded models cannot be bound to another mesh here: %s. They are made anew in each round, which "
                "takes longer, and state.model and state.optimizer are then new objects",
                trouble,
            )

    def _make(self, mesh: DeviceMesh) -> None:
        fsdp2.forget_meshes()  # or the new parameters get the mesh of those that were made or captured before
        model = self._makers[BUILD](mesh)
        if not isinstance(model, torch.nn.Module):
            raise TypeError(f"`build` has to return the model, and has returned a {type(model).__name__}")
        optimizer = self._makers[OPTIMIZER](model)
        if not isinstance(optimizer, Optimizer):
            raise TypeError(f"`optimizer` has to return one, and has returned a {type(optimizer).__name__}")
        refuse_unbound(model, optimizer, mesh)
        self.model, self.optimizer = model, optimizer
        if SCHEDULER in self._makers:
            self.scheduler = self._makers[SCHEDULER](optimizer)
        optimizer.register_step_post_hook(self._step_made)

    def _make_again(self, mesh: DeviceMesh) -> None:
        """The slow way, with public interfaces alone: new objects with the old ones' shards."""
        names = [name for name in (MODEL, OPTIMIZER, SCHEDULER) if name in self._handlers]
        kept = {name: self._handlers[name].capture() for name in names}
        self._make(mesh)
        for name, part in kept.items():
            self._handlers[name].load(part)

    # ---- the seal

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
        if not self.half_done() and self._steps.begun == self._begun:
            self._seal()

    def _step_begins(self) -> None:
        super()._step_begins()
        if self._shards is not None:
            self._shards.exchange_gradients()
        self._seal()
        self._collectives = self._collectives_begun()

    def _seal(self) -> None:
        due = self._exposed and self._schedule.due()
        if self._rounds is not None and context.assignment().size > 1:
            try:
                due = sealed(due)
            except RuntimeError as error:
                self._rounds.seal_broken(error)
        self._commit_due = self._commit_due or due
        if self._shards is not None:
            self._shards.sealed()

    def _step_made(self, *_: object) -> None:
        if self._shards is not None:
            self._shards.stepped()
        self._communicates = self._communicates or self._collectives_begun() != self._collectives

    def _collectives_begun(self) -> int:
        assert self._mesh is not None, "a step of a round"
        return torch_groups.collectives_begun() + sum(map(torch_groups.begun_in, self._mesh.get_all_groups()))

    def _commit_by_itself(self) -> bool:
        due, self._commit_due = self._commit_due, False
        return due


def sealed(wish: bool) -> bool:
    """Return once all members of the round have called this; whether one of them wished for something.

    The tensor lies in host memory, so the host knows of it before it asks a device for the optimizer's step.

    Raises:
        RuntimeError: a member is lost. Others may have returned, if all have called this.
    """
    with without_tensor_modes():
        flag = torch.tensor([wish], dtype=torch.uint8, device="cpu")
        dist.all_reduce(flag, dist.ReduceOp.MAX)
        return bool(flag.item())


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
    own = set(fsdp2.parameters(model))
    if any(parameter not in own for group in optimizer.param_groups for parameter in group["params"]):
        raise TypeError(
            f"this {type(optimizer).__name__} has parameters that are not the model's: have `optimizer` make it from "
            "the parameters of the model that it is given, sharded as they are"
        )
