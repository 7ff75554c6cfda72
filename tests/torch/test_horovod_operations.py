"""Horovod's collectives over a real Gloo group: what they answer, operation by operation and type by type."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

import edriver.horovod as hvd
from edriver.horovod.collectives.negotiation import met, shared
from tests.torch.ranks import run_ranks

SIZE = 3
INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def start(rank: int, size: int = SIZE) -> None:
    """The environment of torchrun, in which the group is there already."""
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}
    hvd.init()
    assert hvd.is_initialized()
    assert (hvd.rank(), hvd.size(), hvd.local_rank(), hvd.local_size()) == (rank, size, 0, 1)
    assert (hvd.cross_rank(), hvd.cross_size(), hvd.is_homogeneous()) == (rank, size, True)


def reductions(rank: int) -> None:
    start(rank)
    for dtype in (*INTEGERS, *FLOATS):
        for shape in ((), (5,), (2, 3), (0, 4)):
            tensor = torch.full(shape, rank + 1, dtype=dtype)
            before = tensor.clone()
            for op, expected in (
                (hvd.Sum, 6),
                (hvd.Average, 2),
                (hvd.Min, 1),
                (hvd.Max, 3),
                (hvd.Product, 6),
                (None, 2),
            ):
                found = hvd.allreduce(tensor, name=f"{dtype} {shape}", op=op)
                assert torch.equal(found, torch.full(shape, expected, dtype=dtype)), (dtype, shape, op, found)
                assert torch.equal(tensor, before)
            assert torch.equal(hvd.allreduce(tensor, average=False), torch.full(shape, 6, dtype=dtype))
            assert hvd.allreduce_(tensor, op=hvd.Sum) is tensor
            assert torch.equal(tensor, torch.full(shape, 6, dtype=dtype))
    truncated = hvd.allreduce(torch.tensor([rank, -rank]), op=hvd.Average)
    assert truncated.tolist() == [1, -1]
    assert hvd.allreduce(torch.tensor([rank, rank + 2])).tolist() == [1, 3]
    assert hvd.allreduce(torch.tensor([-(rank % 2)])).tolist() == [0]  # -1/3, towards zero
    scaled = hvd.allreduce(torch.ones(2), op=hvd.Sum, prescale_factor=0.5, postscale_factor=4.0)
    assert scaled.tolist() == [6.0, 6.0]
    assert hvd.allreduce(torch.tensor([3]), op=hvd.Sum, prescale_factor=0.5).tolist() == [3]
    strided = torch.arange(12.0).view(3, 4).t()
    assert torch.equal(hvd.allreduce(strided, op=hvd.Sum), strided * SIZE)
    transposed = torch.arange(12.0).view(3, 4).clone().t()
    hvd.allreduce_(transposed, op=hvd.Sum)
    assert torch.equal(transposed, strided * SIZE)
    half = hvd.allreduce(torch.full((4,), 1.5), compression=hvd.Compression.fp16)
    assert half.dtype == torch.float32
    assert half.tolist() == [1.5] * 4
    counts = hvd.allreduce(torch.tensor([7]), compression=hvd.Compression.fp16, op=hvd.Sum)
    assert counts.tolist() == [21]


def groups_and_handles(rank: int) -> None:
    start(rank)
    tensors = [torch.full((2,), float(rank)), torch.full((3, 1), rank), torch.full((4,), rank * 2.0)]
    totals = hvd.grouped_allreduce(tensors, op=hvd.Sum)
    assert [t.flatten().tolist() for t in totals] == [[3.0] * 2, [3] * 3, [6.0] * 4]
    assert hvd.grouped_allreduce([torch.ones(2)], compression=hvd.Compression.fp16)[0].dtype == torch.float32
    handle = hvd.grouped_allreduce_async(tensors, op=hvd.Max)
    assert [t.max().item() for t in hvd.synchronize(handle)] == [2.0, 2, 4.0]
    assert hvd.synchronize(handle) is None
    with pytest.raises(ValueError, match="there is no handle"):
        hvd.poll(handle)
    changed = hvd.grouped_allreduce_(tensors, op=hvd.Sum)
    assert all(a is b for a, b in zip(changed, tensors, strict=True))
    assert tensors[1].flatten().tolist() == [3] * 3
    assert hvd.synchronize(hvd.grouped_allreduce_async_(tensors, average=False))[0].tolist() == [9.0] * 2
    handles = [hvd.allreduce_async(torch.full((1000,), float(i)), op=hvd.Sum) for i in range(10)]
    in_place = torch.full((5,), rank)
    handles.append(hvd.allreduce_async_(in_place, op=hvd.Sum))
    while not hvd.poll(handles[-1]):
        pass
    assert [hvd.synchronize(h)[0].item() for h in handles] == [*(3.0 * i for i in range(10)), 3]
    assert in_place.tolist() == [3] * 5
    entries = torch.sparse_coo_tensor(torch.tensor([[rank, 3, 3]]), torch.tensor([3.0, 2.0, 4.0]), (4,))
    both = [hvd.sparse_allreduce_async(entries, f"entries {op}", op) for op in (hvd.Sum, hvd.Average)]
    assert [handle().to_dense().tolist() for handle in both] == [[3.0, 3.0, 3.0, 18.0], [1.0, 1.0, 1.0, 6.0]]
    empty = torch.zeros(4).to_sparse() if rank else torch.ones(4).to_sparse()
    assert hvd.sparse_allreduce_async(empty, "some", hvd.Sum)().to_dense().tolist() == [1.0] * 4


def movements(rank: int) -> None:
    start(rank)
    for dtype in (torch.bool, torch.complex64, *INTEGERS, *FLOATS):
        rows = torch.full((rank + 1, 2), rank, dtype=dtype)
        expected = torch.cat([torch.full((r + 1, 2), r, dtype=dtype) for r in range(SIZE)])
        assert torch.equal(hvd.allgather(rows), expected), dtype
        sent = torch.full((3,), rank, dtype=dtype)
        assert torch.equal(hvd.broadcast(sent, 2), torch.full((3,), 2, dtype=dtype)), dtype
        assert torch.equal(sent, torch.full((3,), rank, dtype=dtype))
        assert hvd.broadcast_(sent, 1) is sent
        assert torch.equal(sent, torch.full((3,), 1, dtype=dtype))
        swapped = hvd.alltoall(torch.full((SIZE, 2), rank, dtype=dtype))
        assert torch.equal(swapped, torch.stack([torch.full((2,), r, dtype=dtype) for r in range(SIZE)])), dtype
    assert hvd.broadcast(torch.tensor(rank), 2).item() == 2
    assert hvd.allgather(torch.empty(0, 3)).shape == (0, 3)
    assert hvd.allgather(torch.ones(0 if rank else 2, 3)).shape == (2, 3)
    first, second = hvd.grouped_allgather([torch.full((1,), rank), torch.full((2, 2), float(rank))])
    assert first.tolist() == [0, 1, 2]
    assert second.shape == (6, 2)
    assert hvd.synchronize(hvd.allgather_async(torch.tensor([rank]))).tolist() == [0, 1, 2]
    assert hvd.synchronize(hvd.grouped_allgather_async([torch.tensor([rank])]))[0].tolist() == [0, 1, 2]
    strided = torch.arange(6.0).view(2, 3).clone().t()
    if rank:
        strided.zero_()
    assert hvd.synchronize(hvd.broadcast_async_(strided, 0)) is strided
    assert torch.equal(strided, torch.arange(6.0).view(2, 3).t())
    assert hvd.synchronize(hvd.broadcast_async(torch.tensor([rank]), 1)).tolist() == [1]
    # rank r sends r + 1 rows to rank 0, one to rank 1, none to rank 2
    splits = torch.tensor([rank + 1, 1, 0])
    found, taken = hvd.alltoall(torch.full((rank + 2, 1), rank), splits)
    assert found.flatten().tolist() == {0: [0, 1, 1, 2, 2, 2], 1: [0, 1, 2], 2: []}[rank]
    assert taken.tolist() == {0: [1, 2, 3], 1: [1, 1, 1], 2: [0, 0, 0]}[rank]
    swapped, received = hvd.synchronize(hvd.alltoall_async(torch.arange(SIZE)))  # a pair, also without splits
    assert (swapped.tolist(), received.tolist()) == ([rank] * SIZE, [1] * SIZE)
    evenly: tuple[Any, ...] = (None, [], torch.tensor([], dtype=torch.int32))
    for even in evenly:
        assert hvd.synchronize(hvd.alltoall_async(torch.arange(SIZE), even))[0].tolist() == [rank] * SIZE
    # Rows that no split names stay where they are.
    found, taken = hvd.alltoall(torch.full((5,), rank), [0, 1, 1])
    assert (found.tolist(), taken.tolist()) == (([], [0] * SIZE) if rank == 0 else ([0, 1, 2], [1] * SIZE))
    for dtype in (torch.int32, *FLOATS):
        share = hvd.reducescatter(torch.arange(7 * 2, dtype=dtype).view(7, 2), op=hvd.Sum)
        start_row = {0: 0, 1: 3, 2: 5}[rank]
        rows_here = {0: 3, 1: 2, 2: 2}[rank]
        whole = torch.arange(14, dtype=dtype).view(7, 2) * SIZE
        assert torch.equal(share, whole[start_row : start_row + rows_here]), dtype
    assert hvd.reducescatter(torch.full((3,), float(rank))).tolist() == [1.0]
    assert hvd.synchronize(hvd.reducescatter_async(torch.full((3,), rank), op=hvd.Sum)).tolist() == [3]
    assert [t.tolist() for t in hvd.grouped_reducescatter([torch.ones(3), torch.ones(6)], op=hvd.Sum)] == [
        [3.0],
        [3.0] * 2,
    ]
    assert len(hvd.synchronize(hvd.grouped_reducescatter_async([torch.ones(3)]))) == 1
    hvd.barrier()


def objects_and_parameters(rank: int) -> None:
    start(rank)
    assert hvd.broadcast_object({"rank": rank, "text": "x" * rank}, root_rank=2) == {"rank": 2, "text": "xx"}
    assert hvd.allgather_object(["r"] * rank, name="lists") == [[], ["r"], ["r", "r"]]
    torch.manual_seed(rank)
    model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2))
    everyone = hvd.allgather_object(model.state_dict())
    hvd.broadcast_parameters(model.state_dict(), root_rank=1)
    assert all(torch.equal(value, everyone[1][key]) for key, value in model.state_dict().items())
    hvd.broadcast_parameters(model.named_parameters(), root_rank=0)
    hvd.broadcast_parameters(list(model.parameters()), root_rank=0)
    with pytest.raises(ValueError, match="invalid params of type"):
        hvd.broadcast_parameters(torch.ones(2), root_rank=0)
    for cls, options in ((torch.optim.SGD, {"momentum": 0.9}), (torch.optim.Adam, {"betas": (0.1, 0.2 + rank / 10)})):
        optimizer = cls(model.parameters(), lr=0.1 + rank, **options)
        if rank == 0:
            model(torch.ones(2, 3)).sum().backward()
            optimizer.step()
        hvd.broadcast_optimizer_state(optimizer, root_rank=0)
        assert optimizer.param_groups[0]["lr"] == 0.1
        states = hvd.allgather_object(optimizer.state_dict())
        assert all(str(state) == str(states[0]) for state in states)
        assert len(optimizer.state) == 4
    with pytest.raises(ValueError, match="LBFGS"):
        hvd.broadcast_optimizer_state(torch.optim.LBFGS(model.parameters()), root_rank=0)


@contextmanager
def refused(*words: str) -> Iterator[None]:
    with pytest.raises(hvd.MismatchError) as caught:
        yield
    missing = [word for word in words if word not in str(caught.value)]
    assert not missing, f"{missing} not in {caught.value}"


def mistakes(rank: int) -> None:
    """All ranks raise each of them, and the group goes on working."""
    start(rank)
    odd = rank == 2
    calls: list[tuple[Callable[[], object], tuple[str, ...]]] = [
        (lambda: hvd.allreduce(torch.ones(3 + odd), name="loss"), ("rank 0", "rank 2", "'loss'", "(3)", "(4)")),
        (lambda: hvd.allreduce(torch.ones(3).to(torch.float64 if odd else torch.float32)), ("float32", "float64")),
        (lambda: hvd.allreduce(torch.ones(3), op=hvd.Max if odd else hvd.Min), ("op=Max", "op=Min")),
        (lambda: hvd.allreduce(torch.ones(3), name="a" if odd else "b"), ("'a'", "'b'")),
        (lambda: hvd.allreduce(torch.ones(3), prescale_factor=1.0 + odd), ("prescale=2",)),
        (lambda: hvd.grouped_allreduce([torch.ones(3)] * (1 + odd)), ("float32 (3) on cpu, float32 (3)",)),
        (lambda: hvd.allgather(torch.ones(3, 2 + odd)), ("(any, 2)", "(any, 3)")),
        (lambda: hvd.allgather(torch.ones(()) if odd else torch.ones(1)), ("no rows", "rank 2")),
        (lambda: hvd.broadcast(torch.ones(3), int(odd)), ("root_rank=0", "root_rank=1")),
        (lambda: hvd.broadcast(torch.ones(3 + odd), 0), ("(3)", "(4)")),
        (lambda: hvd.alltoall(torch.ones(3, 1 + odd)), ("(any, 1)", "(any, 2)")),
        (lambda: hvd.alltoall(torch.ones(3), torch.tensor([1, 1, 1 + odd])), ("do not share out", "rank 2")),
        (lambda: hvd.reducescatter(torch.ones(3 + odd)), ("(3)", "(4)")),
        (lambda: hvd.sparse_allreduce_async(torch.ones(3 + odd).to_sparse(), "s", hvd.Sum)(), ("(3)", "(4)")),
        (lambda: hvd.broadcast_parameters({"w": torch.ones(2 + odd)}, 0), ("w: float32 (2)", "w: float32 (3)")),
        (lambda: hvd.barrier() if odd else hvd.allreduce(torch.ones(1)), ("barrier", "allreduce")),
        (lambda: hvd.allreduce_(torch.ones(2)) if odd else hvd.broadcast_(torch.ones(2), 0), ("broadcast",)),
    ]
    for call, words in calls:
        with refused(*words):
            call()
        assert hvd.allreduce(torch.tensor([rank]), op=hvd.Sum).tolist() == [3]
    # A name that was fine before, with another shape.
    for length in (3, 3, 4):
        if length == 4:
            with refused("(3)", "(4)"):
                hvd.allreduce(torch.ones(4 if odd else 3), name="changes")
        else:
            hvd.allreduce(torch.ones(length), name="changes")
    for call_of_all, words_of_all in (
        (lambda: hvd.allgather(torch.tensor(1.0)), "has no rows"),
        (lambda: hvd.alltoall(torch.ones(4)), "4 rows cannot be shared out evenly to 3"),
        (lambda: hvd.grouped_allgather([torch.ones(1), torch.tensor(1.0)]), "has no rows"),
        (lambda: hvd.alltoall(torch.tensor(1.0)), "has no rows"),
        (lambda: hvd.reducescatter(torch.tensor(1.0)), "has no rows"),
        (lambda: hvd.grouped_reducescatter([torch.ones(3), torch.tensor(1.0)]), "has no rows"),
        (lambda: hvd.alltoall(torch.ones(3), torch.tensor([1.0, 1.0, 1.0])), "splits to be integers, not float32"),
        (lambda: hvd.alltoall(torch.ones(3), [1.5, 1, 0.5]), "splits to be integers, not float32"),  # type: ignore[list-item]
        (lambda: hvd.alltoall(torch.ones(3), torch.ones(3, 1).int()), r"1D splits tensor, not one of shape \(3, 1\)"),
        (lambda: hvd.alltoall(torch.ones(3), [1, 2]), r"splits \[1, 2\] do not share out 3 rows to 3 members"),
        (lambda: hvd.alltoall(torch.ones(3), [2, 2, -1]), "do not share out"),
        (lambda: hvd.broadcast(torch.ones(1), 3), "rank 3 is not among"),
        (lambda: hvd.allreduce(torch.ones(2).to_sparse()), "sparse_coo tensor cannot be reduced"),
        (lambda: hvd.sparse_allreduce_async(torch.ones(2), "s", hvd.Sum)(), "strided tensor is not sparse"),
    ):
        with pytest.raises(ValueError, match=words_of_all):
            call_of_all()
    refusals: list[Callable[[], object]] = [
        lambda: hvd.allreduce(torch.ones(1), op=hvd.Adasum),
        lambda: hvd.reducescatter(torch.ones(3), op=hvd.Max),
        lambda: hvd.sparse_allreduce_async(torch.ones(3).to_sparse(), "s", hvd.Max),
    ]
    for refused_op in refusals:
        with pytest.raises(NotImplementedError, match=r"Adasum|Average or hvd\.Sum"):
            refused_op()
    # What is no tensor, no set or no number is seen before anybody is asked.
    nothing: Any = None
    misuses: list[tuple[Callable[[], object], str]] = [
        (lambda: hvd.allreduce_(nothing), "allreduce takes a torch.Tensor, not None"),
        (lambda: hvd.allreduce_async([1.0]), "not a list"),  # type: ignore[arg-type]
        (lambda: hvd.grouped_allreduce([torch.ones(1), nothing]), "grouped_allreduce takes a torch.Tensor, not None"),
        (lambda: hvd.allgather(nothing), "allgather takes a torch.Tensor, not None"),
        (lambda: hvd.broadcast(nothing, 0), "broadcast takes a torch.Tensor, not None"),
        (lambda: hvd.alltoall(nothing), "alltoall takes a torch.Tensor, not None"),
        (lambda: hvd.reducescatter(nothing), "reducescatter takes a torch.Tensor, not None"),
        (lambda: hvd.sparse_allreduce_async(nothing, "s", hvd.Sum), "sparse_allreduce takes a torch.Tensor, not None"),
        (lambda: hvd.allreduce(torch.ones(1), process_set=nothing), "process_set is a ProcessSet, not None"),
        (lambda: hvd.barrier(nothing), "process_set is a ProcessSet, not None"),
        (lambda: hvd.broadcast(torch.ones(1), nothing), "root_rank is an int, not None"),
        (lambda: hvd.allreduce(torch.ones(1), prescale_factor=nothing), "real number, not 'NoneType'"),
    ]
    for misuse, said in misuses:
        with pytest.raises(TypeError, match=said):
            misuse()
    with pytest.raises(ValueError, match="invalid params of type"):
        hvd.broadcast_parameters(nothing, 0)
    assert hvd.broadcast(torch.tensor(float(rank)), 1).item() == 1.0  # without a dimension, as in Horovod
    assert hvd.broadcast_(torch.tensor(rank), 2).item() == 2
    assert hvd.allreduce(torch.tensor(rank), op=hvd.Sum).item() == 3
    with pytest.raises(ValueError, match="provide only one"):
        hvd.allreduce(torch.ones(1), average=True, op=hvd.Sum)
    assert hvd.allreduce(torch.tensor([rank]), op=hvd.Sum).tolist() == [3]


def gradients(rank: int) -> None:
    start(rank)
    weight = float(rank + 1)

    def gradient(of: Callable[[torch.Tensor], torch.Tensor], shape: tuple[int, ...] = (3,)) -> list[float]:
        tensor = torch.ones(shape, requires_grad=True)
        torch.autograd.backward((of(tensor) * weight).sum())
        assert tensor.grad is not None
        found: list[float] = tensor.grad.flatten().tolist()
        return found

    assert gradient(lambda t: hvd.allreduce(t, op=hvd.Sum)) == [6.0] * 3
    assert gradient(lambda t: hvd.allreduce(t)) == [2.0] * 3
    assert gradient(lambda t: hvd.allreduce(t, op=hvd.Sum, prescale_factor=0.5)) == [3.0] * 3
    assert gradient(lambda t: sum(hvd.grouped_allreduce([t, t * 2], op=hvd.Sum), torch.zeros(3))) == [18.0] * 3
    assert gradient(lambda t: hvd.broadcast(t, 1)) == ([2.0] * 3 if rank == 1 else [0.0] * 3)
    assert gradient(lambda t: hvd.allgather(t[: rank + 1])) == [2.0] * (rank + 1) + [0.0] * (2 - rank)
    assert gradient(lambda t: hvd.grouped_allgather([t, t])[1]) == [2.0] * 3
    assert gradient(lambda t: hvd.alltoall(t)) == [1.0, 2.0, 3.0]
    assert gradient(lambda t: hvd.alltoall(t, torch.tensor([3, 0, 0]))[0]) == [1.0] * 3
    assert gradient(lambda t: hvd.alltoall(t, [1, 0, 1])[0]) == [1.0, 3.0, 0.0]
    # Horovod's: a sum's gradient is larger than an average's by the number of members.
    assert gradient(lambda t: hvd.reducescatter(t, op=hvd.Sum), (4,)) == [3.0, 3.0, 6.0, 9.0]
    assert gradient(lambda t: hvd.reducescatter(t), (4,)) == [1.0, 1.0, 2.0, 3.0]
    assert gradient(lambda t: hvd.reducescatter(t, prescale_factor=0.5, postscale_factor=4.0), (3, 2)) == [
        2.0, 2.0, 4.0, 4.0, 6.0, 6.0,
    ]  # fmt: skip
    assert gradient(lambda t: hvd.grouped_reducescatter([t], op=hvd.Sum)[0]) == [3.0, 6.0, 9.0]
    assert gradient(lambda t: hvd.grouped_reducescatter([t, t * 2])[1], (5,)) == [2.0, 2.0, 4.0, 4.0, 6.0]
    assert gradient(lambda t: hvd.allreduce(t, postscale_factor=3.0)) == [6.0] * 3
    assert gradient(lambda t: hvd.allreduce(t, compression=hvd.Compression.fp16, op=hvd.Sum)) == [6.0] * 3
    assert gradient(lambda t: hvd.grouped_allgather([t[:rank], t])[0]) == [2.0] * rank + [0.0] * (3 - rank)
    pair = hvd.add_process_set([0, 2])
    if rank == 1:
        return
    first = rank == 0
    assert gradient(lambda t: hvd.allreduce(t, op=hvd.Sum, process_set=pair)) == [4.0] * 3
    assert gradient(lambda t: hvd.allreduce(t, process_set=pair)) == [2.0] * 3
    assert gradient(lambda t: hvd.grouped_allreduce([t], op=hvd.Sum, process_set=pair)[0]) == [4.0] * 3
    assert gradient(lambda t: hvd.allgather(t[: rank + 1], process_set=pair)) == (
        [2.0, 0.0, 0.0] if first else [2.0] * 3
    )
    assert gradient(lambda t: hvd.broadcast(t, 2, process_set=pair)) == ([0.0] * 3 if first else [2.0] * 3)
    assert gradient(lambda t: hvd.alltoall(t, [1, 2], process_set=pair)[0]) == [1.0, 3.0, 3.0]
    assert gradient(lambda t: hvd.reducescatter(t, op=hvd.Sum, process_set=pair)) == [2.0, 2.0, 6.0]
    assert gradient(lambda t: hvd.reducescatter(t, process_set=pair)) == [1.0, 1.0, 3.0]


def batch_norm(rank: int) -> None:
    """The same as torch's over the whole batch, also where members have unequal parts of it."""
    start(rank)
    torch.manual_seed(0)
    for shape, length in (((4, 5, 5), 9), ((4,), 9)):
        whole = torch.randn(length, *shape, dtype=torch.float64)
        own = whole.tensor_split([2, 5])[rank].clone().requires_grad_()
        ours = hvd.SyncBatchNorm(4).double()
        reference_type = torch.nn.BatchNorm2d if len(shape) == 3 else torch.nn.BatchNorm1d
        reference = reference_type(4).double()
        for _ in range(2):
            whole = whole.detach().requires_grad_()
            own.grad = None
            expected = reference(whole)
            found = ours(own)
            torch.testing.assert_close(found, expected.tensor_split([2, 5])[rank])
            expected.square().mul(whole.detach()).sum().backward()
            found.square().mul(own.detach()).sum().backward()
            assert whole.grad is not None
            torch.testing.assert_close(own.grad, whole.grad.tensor_split([2, 5])[rank])
        torch.testing.assert_close(ours.running_var, reference.running_var)
        torch.testing.assert_close(ours.running_mean, reference.running_mean)
        assert ours.num_batches_tracked == 2
        assert ours.weight.grad is not None
        torch.testing.assert_close(hvd.allreduce(ours.weight.grad, op=hvd.Sum), reference.weight.grad)
        ours.eval(), reference.eval()
        torch.testing.assert_close(ours(own), reference(whole).tensor_split([2, 5])[rank])
    with pytest.raises(ValueError, match="expected at least 2D"):
        hvd.SyncBatchNorm(4)(torch.ones(3))


def sets(rank: int) -> None:
    start(rank)
    pair = hvd.add_process_set([2, 0])
    alone = hvd.add_process_set(hvd.ProcessSet([1]))
    assert (pair.ranks, pair.size(), pair.process_set_id) == ([0, 2], 2, 1)
    assert pair.included() == (rank != 1)
    assert hvd.global_process_set.size() == SIZE
    with pytest.raises(ValueError, match=r"process set of ranks \[0, 2\] already"):
        hvd.add_process_set([0, 2])
    if rank == 1:
        assert hvd.allreduce(torch.tensor([5]), op=hvd.Sum, process_set=alone).tolist() == [5]
        with pytest.raises(ValueError, match="rank 1 is not a member of ProcessSet"):
            hvd.allreduce(torch.ones(1), process_set=pair)
    else:
        assert pair.rank() == rank // 2
        assert hvd.allreduce(torch.tensor([rank + 1.0]), process_set=pair).tolist() == [2.0]
        assert hvd.allgather(torch.tensor([rank]), process_set=pair).tolist() == [0, 2]
        assert hvd.broadcast(torch.tensor([rank]), 2, process_set=pair).tolist() == [2]
        assert hvd.alltoall(torch.tensor([rank, rank]), process_set=pair).tolist() == [0, 2]
        assert hvd.allgather_object(rank, process_set=pair) == [0, 2]
        assert hvd.broadcast_object(rank, 2, process_set=pair) == 2
        assert hvd.reducescatter(torch.ones(2), op=hvd.Sum, process_set=pair).tolist() == [2.0]
        hvd.barrier(process_set=pair)
        weight = torch.nn.Parameter(torch.zeros(2))
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD([weight], 1.0), process_set=pair)
        for _ in range(2):
            optimizer.zero_grad()
            torch.autograd.backward((weight * (rank + 1)).sum())
            optimizer.step()
        assert weight.tolist() == [-4.0, -4.0]
        with refused("rank 0", "rank 2"):
            hvd.allreduce(torch.ones(1 + rank), process_set=pair)
        with pytest.raises(ValueError, match="rank 1 is not among"):
            hvd.broadcast(torch.ones(1), 1, process_set=pair)
    assert hvd.remove_process_set(pair)
    assert not hvd.remove_process_set(pair)
    assert not hvd.remove_process_set(hvd.global_process_set)
    with pytest.raises(ValueError, match="has not been added"):
        pair.size()
    with pytest.raises(ValueError, match="cannot be added among 3 ranks"):
        hvd.add_process_set([0, 7])
    with pytest.raises(ValueError, match="a list of ranks"):
        hvd.ProcessSet("ab")  # type: ignore[arg-type]


def outside(rank: int) -> None:
    """All that takes a process set, on a rank that is not in it: Horovod's error, and nobody waits."""
    start(rank)
    pair = hvd.add_process_set([0, 1])
    assert pair.included() == (rank != 2)
    ones = torch.ones(2)
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    calls: list[Callable[[], object]] = [
        lambda: hvd.allreduce(ones, process_set=pair),
        lambda: hvd.allreduce_(ones, process_set=pair),
        lambda: hvd.allreduce_async(ones, process_set=pair),
        lambda: hvd.allreduce_async_(ones, process_set=pair),
        lambda: hvd.grouped_allreduce([ones], process_set=pair),
        lambda: hvd.grouped_allreduce_([ones], process_set=pair),
        lambda: hvd.grouped_allreduce_async([ones], process_set=pair),
        lambda: hvd.grouped_allreduce_async_([ones], process_set=pair),
        lambda: hvd.allgather(ones, process_set=pair),
        lambda: hvd.allgather_async(ones, process_set=pair),
        lambda: hvd.grouped_allgather([ones], process_set=pair),
        lambda: hvd.grouped_allgather_async([ones], process_set=pair),
        lambda: hvd.broadcast(ones, 0, process_set=pair),
        lambda: hvd.broadcast_(ones, 2, process_set=pair),
        lambda: hvd.broadcast_async(ones, 0, process_set=pair),
        lambda: hvd.broadcast_async_(ones, 0, process_set=pair),
        lambda: hvd.alltoall(ones, process_set=pair),
        lambda: hvd.alltoall_async(ones, [1, 1], process_set=pair),
        lambda: hvd.reducescatter(ones, process_set=pair),
        lambda: hvd.reducescatter_async(ones, process_set=pair),
        lambda: hvd.grouped_reducescatter([ones], process_set=pair),
        lambda: hvd.grouped_reducescatter_async([ones], process_set=pair),
        lambda: hvd.sparse_allreduce_async(ones.to_sparse(), "s", hvd.Sum, process_set=pair),
        lambda: hvd.barrier(process_set=pair),
        lambda: hvd.broadcast_object(rank, 0, process_set=pair),
        lambda: hvd.broadcast_object(rank, 2, process_set=pair),
        lambda: hvd.allgather_object(rank, process_set=pair),
        lambda: hvd.broadcast_parameters(model.state_dict(), 0, process_set=pair),
        lambda: hvd.broadcast_optimizer_state(optimizer, 0, process_set=pair),
        pair.rank,
    ]
    if rank == 2:
        for call in calls:
            with pytest.raises(ValueError, match=r"rank 2 is not a member of ProcessSet\(process_set_id=1"):
                call()
    assert hvd.allreduce(torch.tensor([rank]), op=hvd.Sum).tolist() == [3]


def joining(rank: int) -> int:
    """Rank r has r + 1 batches; the last to join is rank 2."""
    start(rank)
    for batch in range(rank + 1):
        total = hvd.allreduce(torch.tensor([1.0]), op=hvd.Sum)
        assert total.tolist() == [3.0 - batch]
        assert [t[0].item() for t in hvd.grouped_allreduce([torch.ones(2), torch.ones(1).int()], op=hvd.Sum)] == [
            3 - batch
        ] * 2
    last = hvd.join()
    assert hvd.allreduce(torch.tensor([rank]), op=hvd.Sum).tolist() == [3]
    if rank == 2:
        with refused("rank 0 has called join", "broadcast"):
            hvd.broadcast(torch.ones(1), 0)
    else:
        with refused("called join"):
            hvd.join()
    hvd.join()
    return last


def negotiation(rank: int) -> None:
    """What members exchange arrives, whatever its length; in a group that the script itself has built."""
    hvd.init()
    assert (hvd.rank(), hvd.size()) == (rank, SIZE)
    assert met(hvd.global_process_set, 2**62 + rank, rank) == ([2**62 + r for r in range(SIZE)], list(range(SIZE)))
    assert shared(hvd.global_process_set.lane(), "é" * rank) == ["", "é", "éé"]


@pytest.mark.parametrize(
    "function",
    [
        reductions,
        groups_and_handles,
        movements,
        objects_and_parameters,
        mistakes,
        gradients,
        batch_norm,
        sets,
        outside,
        negotiation,
    ],
)
def test_over_three_ranks(function: Callable[[int], None]) -> None:
    run_ranks(function, SIZE)


def test_a_rank_without_data_joins_until_all_have() -> None:
    assert run_ranks(joining, SIZE) == [2, 2, 2]


def test_before_init_nothing_is_known() -> None:
    assert not hvd.is_initialized()
    for question in (hvd.rank, hvd.size, hvd.local_rank, hvd.cross_size, hvd.is_homogeneous):
        with pytest.raises(ValueError, match="Horovod has not been initialized"):
            question()
    with pytest.raises(ValueError, match="Horovod has not been initialized"):
        hvd.allreduce(torch.ones(1))
    with pytest.raises(NotImplementedError, match="does not use MPI"):
        hvd.init(comm=[0])
    with pytest.raises(NotImplementedError, match=r"torch\.profiler"):
        hvd.start_timeline("file")
    assert hvd.gloo_built()
    assert not hvd.mpi_built()
