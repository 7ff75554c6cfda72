"""hvd.DistributedOptimizer over a real Gloo group: the same steps as one process makes with all the data."""

from __future__ import annotations

import copy
import os
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch

import edriver.horovod as hvd
from edriver.horovod import buckets
from tests.torch.ranks import run_ranks

SIZE = 2


class Net(torch.nn.Module):
    """Several buckets' worth of layers, of two types, and one that has a part in odd steps only."""

    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Linear(6, 8)
        self.odd = torch.nn.Linear(8, 8)
        self.wide = torch.nn.Linear(8, 8).double()
        self.last = torch.nn.Linear(8, 2)

    def forward(self, x: torch.Tensor, odd: bool) -> torch.Tensor:
        x = self.first(x).tanh()
        if odd:
            x = x + self.odd(x)
        x = self.wide(x.double()).tanh().float()
        return torch.as_tensor(self.last(x))


def start(rank: int) -> None:
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(SIZE), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}
    hvd.init()
    setattr(buckets, "FIRST_BUCKET_BYTES", 100)  # noqa: B010
    setattr(buckets, "BUCKET_BYTES", 300)  # noqa: B010


def batch(step: int) -> torch.Tensor:
    return torch.randn(SIZE, 4, 6, generator=torch.Generator().manual_seed(step))


def loss_of(model: Net, x: torch.Tensor, odd: bool) -> Any:
    return model(x, odd).square().mean()


def expected(model: Net, optimizer: torch.optim.Optimizer, steps: int, factor: float = 1.0, passes: int = 1) -> Net:
    """What one process makes of all ranks' batches; as in Horovod, gradients that are missing are zeros."""
    for step in range(steps):
        optimizer.zero_grad()
        for at in range(passes):
            for x in batch(passes * step + at):
                (loss_of(model, x, bool(step % 2)) * factor / SIZE).backward()
        for param in model.parameters():
            if param.grad is None:
                param.grad = torch.zeros_like(param)
        optimizer.step()
    return model


def pair(cls: Callable[..., torch.optim.Optimizer] = torch.optim.SGD, **options: Any) -> tuple[Any, Any, Any, Any]:
    torch.manual_seed(1)
    ours = Net()
    reference = copy.deepcopy(ours)
    chosen = options or {"lr": 0.1, "momentum": 0.9}
    return ours, cls(ours.parameters(), **chosen), reference, cls(reference.parameters(), **chosen)


def same(ours: Net, reference: Net, tolerance: float = 1e-6) -> None:
    for mine, theirs in zip(ours.parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=tolerance, atol=tolerance)


def steps(rank: int) -> None:
    start(rank)
    variants: list[tuple[dict[str, Any], float, float]] = [
        ({}, 1.0, 1e-6),
        ({"gradient_predivide_factor": 4.0}, 1.0, 1e-6),
        ({"op": hvd.Sum}, float(SIZE), 1e-6),
        ({"compression": hvd.Compression.fp16}, 1.0, 1e-2),
        ({"num_groups": 2}, 1.0, 1e-6),
    ]
    for options, factor, tolerance in variants:
        ours, optimizer, reference, plain = pair()
        distributed = hvd.DistributedOptimizer(optimizer, ours.named_parameters(), **options)
        assert isinstance(distributed, torch.optim.SGD)
        for step in range(4):
            distributed.zero_grad(set_to_none=step != 2)
            loss_of(ours, batch(step)[rank], bool(step % 2)).backward()
            distributed.step()
        same(ours, expected(reference, plain, 4, factor), tolerance)
        assert distributed.state_dict().keys() == optimizer.state_dict().keys()
    ours, optimizer, reference, plain = pair(torch.optim.Adam, lr=0.01)
    distributed = hvd.DistributedOptimizer(optimizer, ours.named_parameters(), backward_passes_per_step=3)
    for step in range(3):
        distributed.zero_grad()
        for at in range(3):
            loss_of(ours, batch(3 * step + at)[rank], bool(step % 2)).backward()
        distributed.step()
    same(ours, expected(reference, plain, 3, passes=3))


def clipping(rank: int) -> None:
    start(rank)
    ours, optimizer, reference, plain = pair()
    distributed = hvd.DistributedOptimizer(optimizer)
    for step in range(2):
        distributed.zero_grad()
        loss_of(ours, batch(step)[rank], odd=True).backward()
        distributed.synchronize()
        torch.nn.utils.clip_grad_norm_(ours.parameters(), 0.1)
        with distributed.skip_synchronize():
            distributed.step()
        plain.zero_grad()
        (sum(loss_of(reference, x, odd=True) for x in batch(step)) / SIZE).backward()
        torch.nn.utils.clip_grad_norm_(reference.parameters(), 0.1)
        plain.step()
    same(ours, reference)
    loss_of(ours, batch(0)[rank], odd=True).backward()
    distributed.synchronize()
    with pytest.warns(UserWarning, match=r"without optimizer\.skip_synchronize"):
        distributed.step()


def closures(rank: int) -> None:
    """L-BFGS evaluates its closure several times: each time with all ranks' gradients."""
    start(rank)
    ours, optimizer, reference, plain = pair(torch.optim.LBFGS, lr=0.5, max_iter=3)
    distributed = hvd.DistributedOptimizer(optimizer)

    def closure() -> torch.Tensor:
        distributed.zero_grad()
        loss = loss_of(ours, batch(0)[rank], odd=True)
        loss.backward()
        return hvd.allreduce(loss.detach())

    def plain_closure() -> torch.Tensor:
        plain.zero_grad()
        loss = sum(loss_of(reference, x, odd=True) for x in batch(0)) / SIZE
        loss.backward()
        return torch.as_tensor(loss)

    distributed.step(closure)
    plain.step(plain_closure)
    same(ours, reference, 1e-5)


def hooks_and_schedulers(rank: int) -> None:
    """Step hooks run once, and not while gradients are being reduced; a scheduler made before the wrapper works."""
    start(rank)
    ours, optimizer, reference, plain = pair()
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
    begun: list[float] = []
    optimizer.register_step_pre_hook(lambda *_: begun.append(hvd.allreduce(torch.tensor([1]), op=hvd.Sum).item()))
    distributed = hvd.DistributedOptimizer(optimizer, ours.named_parameters())
    distributed = hvd.DistributedOptimizer(distributed, ours.named_parameters())
    for step in range(2):
        distributed.zero_grad()
        loss_of(ours, batch(step)[rank], bool(step % 2)).backward()
        distributed.step()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it asks whether the optimizer that it knows has made a step
            scheduler.step()
        plain_lr = 0.1 * 0.5**step
        plain.param_groups[0]["lr"] = plain_lr
        plain.zero_grad()
        for x in batch(step):
            (loss_of(reference, x, bool(step % 2)) / SIZE).backward()
        for param in reference.parameters():
            param.grad = torch.zeros_like(param) if param.grad is None else param.grad
        plain.step()
    assert begun == [SIZE, SIZE]
    assert distributed.param_groups[0]["lr"] == 0.025
    same(ours, reference)
    distributed.load_state_dict(distributed.state_dict())  # after which torch looks for a step to put hooks around
    loss_of(ours, batch(0)[rank], odd=True).backward()
    distributed.step()
    assert begun == [SIZE] * 3
    extra = torch.nn.Parameter(torch.full((2,), float(rank)))
    distributed.add_param_group({"params": [extra], "lr": 1.0})
    distributed.zero_grad()
    (loss_of(ours, batch(0)[rank], odd=True) + (extra * rank).sum()).backward()
    distributed.step()
    assert extra.tolist() == [rank - 0.5] * 2


def sparse(rank: int) -> None:
    start(rank)
    for as_dense in (False, True):
        torch.manual_seed(2)
        embedding, head = torch.nn.Embedding(10, 3, sparse=True), torch.nn.Linear(3, 1)
        reference, plain_head = torch.nn.Embedding(10, 3), copy.deepcopy(head)
        reference.weight.data.copy_(embedding.weight.data)
        params = [*embedding.parameters(), *head.parameters()]
        distributed = hvd.DistributedOptimizer(torch.optim.SGD(params, 0.5), sparse_as_dense=as_dense)
        plain = torch.optim.SGD([*reference.parameters(), *plain_head.parameters()], 0.5)
        words = [torch.tensor([1, 1, 7]), torch.tensor([7, 3])]
        for step in range(3):
            distributed.zero_grad()
            skip = rank == 1 and step == 1  # a member without any gradient of it
            loss: Any = head.weight.sum() if skip else head(embedding(words[rank])).sum()
            loss.backward()
            distributed.step()
            assert embedding.weight.grad is not None
            assert embedding.weight.grad.is_sparse  # as the optimizer has seen it, however it travelled
            plain.zero_grad()
            whole = plain_head(reference(words[0])).sum()
            whole = whole + (plain_head.weight.sum() if step == 1 else plain_head(reference(words[1])).sum())
            (whole / SIZE).backward()
            plain.step()
        torch.testing.assert_close(embedding.weight, reference.weight)
        torch.testing.assert_close(head.weight, plain_head.weight)


def sparse_of_three(rank: int) -> None:
    """SparseAdam, which takes sparse gradients alone, over two passes; a rank may have no words, or none of its own."""
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": "3", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}
    hvd.init()
    words = [[[1, 1], [7]], [[], [2]], [[7, 3], [7, 9]]]  # of each rank, in each of two passes
    for as_dense in (False, True):
        torch.manual_seed(3)
        embedding = torch.nn.Embedding(10, 3, sparse=True)
        reference = torch.nn.Embedding(10, 3, sparse=True)
        reference.load_state_dict(embedding.state_dict())
        distributed = hvd.DistributedOptimizer(
            torch.optim.SparseAdam(embedding.parameters(), 0.1),
            embedding.named_parameters(),
            backward_passes_per_step=2,
            sparse_as_dense=as_dense,
        )
        plain = torch.optim.SparseAdam(reference.parameters(), 0.1)
        for step in range(3):
            distributed.zero_grad(set_to_none=step != 1)
            for each in words[rank]:
                factor = torch.arange(3.0) + 1
                (embedding(torch.tensor(each, dtype=torch.int64)) * factor).sum().backward()
            distributed.step()
            plain.zero_grad()
            everyone = [word for own in words for each in own for word in each]
            ((reference(torch.tensor(everyone)) * (torch.arange(3.0) + 1)).sum() / 3).backward()
            plain.step()  # type: ignore[no-untyped-call]
            assert embedding.weight.grad is not None
            assert embedding.weight.grad.is_sparse
            torch.testing.assert_close(embedding.weight, reference.weight)
        hvd.allreduce(torch.ones(1))


def outside(rank: int) -> None:
    """An optimizer of a process set steps by itself on a rank that is not in it."""
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": "3", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}
    hvd.init()
    pair = hvd.add_process_set([0, 2])
    for options in ({}, {"backward_passes_per_step": 2}, {"sparse_as_dense": True}):
        weight = torch.nn.Parameter(torch.zeros(2))
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD([weight], 1.0), process_set=pair, **options)
        passes = options.get("backward_passes_per_step", 1)
        for _ in range(2):
            for _ in range(passes):
                torch.autograd.backward((weight * (rank + 1)).sum())
            if rank == 1:
                torch.autograd.backward((weight * 5).sum())  # as often as it likes: as in Horovod, nobody counts
            optimizer.synchronize()
            with optimizer.skip_synchronize():
                optimizer.step()
            optimizer.zero_grad()
        expected = {0: -4.0, 1: -2 * (2.0 * passes + 5), 2: -4.0}[rank] * (1 if rank == 1 else passes)
        assert weight.tolist() == [expected] * 2
    assert hvd.allreduce(torch.tensor([rank]), op=hvd.Sum).tolist() == [3]


def in_step_again(rank: int) -> None:
    """All ranks raise at the same call; what they call next is in step, whatever was under way."""
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": "3", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}
    hvd.init()
    model = torch.nn.Linear(2, 1)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), 0.1), model.named_parameters())

    def step() -> None:
        optimizer.zero_grad()
        (model(torch.ones(1, 2)).sum() * (rank + 1)).backward()
        optimizer.step()

    others: list[Callable[[], Any]] = [
        hvd.barrier,
        lambda: hvd.synchronize(hvd.allreduce_async(torch.ones(1))),
        lambda: hvd.allgather_object("text"),
        lambda: hvd.broadcast_parameters(model.state_dict(), 0),
    ]
    for odd in range(3):  # in the first step, and in later ones
        for other in others:
            with pytest.raises(hvd.MismatchError, match="DistributedOptimizer's gradients"):
                other() if rank == odd else step()
            optimizer.zero_grad()
            assert hvd.allreduce(torch.tensor([rank]), op=hvd.Sum).tolist() == [3]
        step()
        assert model.weight.grad is not None
        assert model.weight.grad.tolist() == [[2.0, 2.0]]


def mistakes(rank: int) -> None:
    start(rank)
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    named = list(model.named_parameters())
    wrong: list[tuple[Any, str]] = [
        ([named[0]], "were not named: those at 1"),
        ([("a", named[0][1]), ("a", named[1][1])], "Found duplicates: a"),
        (list(model.parameters()), "sequence of tuples"),
    ]
    for given, words in wrong:
        with pytest.raises(ValueError, match=words):
            hvd.DistributedOptimizer(optimizer, given)
    with pytest.raises(NotImplementedError, match="Adasum is not supported"):
        hvd.DistributedOptimizer(optimizer, op=hvd.Adasum)
    with pytest.raises(ValueError, match="not Max"):
        hvd.DistributedOptimizer(optimizer, op=hvd.Max)
    with pytest.raises(ValueError, match="not supported with op"):
        hvd.DistributedOptimizer(optimizer, op=hvd.Sum, gradient_predivide_factor=2.0)
    distributed = hvd.DistributedOptimizer(optimizer, named)
    model(torch.ones(1, 2)).sum().backward()
    with pytest.raises(AssertionError, match="race condition"):
        distributed.zero_grad()
    with pytest.raises(AssertionError, match="more than backward_passes_per_step times"):
        model(torch.ones(1, 2)).sum().backward()
    distributed.step()
    # All ranks raise each of these.

    def step() -> None:
        model(torch.ones(1, 2)).sum().backward()
        distributed.step()

    with pytest.raises(hvd.MismatchError, match=r"rank 0 called barrier.* rank 1 called DistributedOptimizer's"):
        step() if rank else hvd.barrier()
    # And nothing of it is left.
    distributed.zero_grad()
    (model(torch.ones(1, 2)).sum() * (rank + 1)).backward()
    distributed.synchronize()
    assert named[0][1].grad is not None
    assert named[0][1].grad.tolist() == [[1.5, 1.5]]


def unequal(rank: int) -> None:
    start(rank)
    model = torch.nn.Linear(2 + rank, 1)
    kept = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), 0.1), model.named_parameters())
    with pytest.raises(
        hvd.MismatchError, match=r"rank 0 .*weight: float32 \(1, 2\).* rank 1 .*weight: float32 \(1, 3\)"
    ):
        model(torch.ones(1, 2 + rank)).sum().backward()
    del kept


def joined(rank: int) -> list[float]:
    """Rank 1 has two batches fewer: its gradients are zeros then."""
    start(rank)
    model = torch.nn.Linear(2, 1, bias=False)
    model.weight.data.zero_()
    distributed = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), 1.0))
    for _ in range(4 - 2 * rank):
        distributed.zero_grad()
        model(torch.ones(1, 2)).sum().backward()
        distributed.step()
    hvd.join()
    return [*model.weight.flatten().tolist()]


@pytest.mark.parametrize("function", [steps, clipping, closures, hooks_and_schedulers, sparse, mistakes, unequal])
def test_over_two_ranks(function: Callable[[int], None]) -> None:
    run_ranks(function, SIZE)


@pytest.mark.parametrize("function", [sparse_of_three, outside, in_step_again])
def test_over_three_ranks(function: Callable[[int], None]) -> None:
    run_ranks(function, 3)


def test_a_rank_that_has_joined_adds_zeros() -> None:
    first, second = run_ranks(joined, SIZE)
    assert first == [-3.0, -3.0]
    assert second == [-2.0, -2.0]  # it has not made the others' last steps
