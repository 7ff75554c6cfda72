"""Sync over real Gloo groups: who sends, who receives, what arrives, and what a cut leaves behind."""

from __future__ import annotations

import contextlib
import gc
import io
import itertools
import os
import random
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent import futures
from dataclasses import replace
from typing import Any

import numpy
import pytest
import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from edriver.model.ids import RoundId
from edriver.model.plan import SINGLE_WORKER, Assignment
from edriver.worker import context
from edriver.worker.backend.gloo.cutting import Cutter
from edriver.worker.backend.gloo.sever import gloo_devices
from edriver.worker.state.torch_state import TorchState
from edriver.worker.sync import relay, sync
from edriver.worker.sync.packing import ALIGNMENT_BYTES, Layout, packed
from edriver.worker.sync.relay import Downstream, Upstream
from edriver.worker.sync.sync import sync_state
from tests.torch.fingerprint import fingerprint, tree_fingerprint
from tests.torch.ranks import run_ranks
from tests.torch.synced_states import Custom, Net, new_state, train


def place_of(rank: int, size: int, source: int, receivers: tuple[int, ...]) -> Assignment:
    return replace(SINGLE_WORKER, round_id=RoundId(1, 1), rank=rank, size=size, sources=(source,), receivers=receivers)


def pointers(state: TorchState) -> list[int]:
    tensors = [*state.model.state_dict().values(), state.ema]
    for per_param in state.optimizer.state.values():
        tensors += per_param.values()
    return [tensor.data_ptr() for tensor in tensors]


def sync_three(rank: int) -> dict[str, Any]:
    """Rank 1 sends to rank 0, which is fresh; rank 2 holds the same state as rank 1."""
    context.current.place.enter(place_of(rank, 3, source=1, receivers=(0,)))
    state = new_state(seed=0 if rank == 0 else 7)
    if rank != 0:
        train(state, 3)
        state.sampler.record_batch(0, 2)
    before, own_tensors = fingerprint(state), pointers(state)
    state.sync()
    synced, kept_tensors = fingerprint(state), pointers(state)[: len(own_tensors)]
    digest = state.digest(committed=True)
    train(state, 3)
    trained = fingerprint(state)
    state.restore()
    return {
        "before": before,
        "synced": synced,
        "trained": trained,
        "restored": fingerprint(state),
        "digest": digest,
        "in place": own_tensors[: len(kept_tensors)] == kept_tensors,
        "tied": state.model.tied.weight is state.model.second.weight,
        "samples": list(state.sampler),
    }


def test_a_receiver_ends_with_the_sources_state_and_holders_stay_untouched() -> None:
    receiver, source, holder = run_ranks(sync_three, 3)
    assert receiver["before"] != source["before"] == holder["before"]
    # What samplers have done is counted in the base from here on, for holders too.
    assert receiver["synced"] == source["synced"] == holder["synced"] == source["before"]
    assert receiver["trained"] == source["trained"] == holder["trained"] != source["synced"]
    assert receiver["restored"] == source["restored"] == source["synced"], "a sync counts as a commit"
    assert receiver["digest"] == source["digest"] == holder["digest"]
    assert "offset" in receiver["digest"]
    assert "step=3" in receiver["digest"]
    assert all(one["in place"] for one in (receiver, source, holder))
    assert receiver["tied"]
    remaining = receiver["samples"] + source["samples"] + holder["samples"]
    assert len(remaining) == 15, "20 samples, 6 done, 1 padded"
    assert len(set(remaining)) == 14


def odd_tree() -> dict[str, Any]:
    generator = torch.Generator().manual_seed(1)
    shared = torch.randn(5, generator=generator)
    return {
        "large": torch.randn(100, 7, generator=generator),
        "transposed": torch.randn(6, 4, generator=generator).t(),
        "strided": torch.arange(20)[::3],
        "expanded": torch.ones(1).expand(4),
        "empty": torch.empty(0, 3),
        "scalar": torch.tensor(2.5),
        "bool": torch.tensor([True, False, True]),
        "bfloat16": torch.randn(9, generator=generator).bfloat16(),
        "half": torch.randn(3, generator=generator).half(),
        "complex": torch.randn(3, dtype=torch.complex64, generator=generator).conj(),
        "uint8": torch.arange(70, dtype=torch.uint8),
        "shared": [shared, shared, shared[1:3]],
        "parameter": torch.nn.Parameter(shared.clone()),
        "custom": Custom(torch.arange(3.0)),
        "plain": (1, "two", None, {"three": [4.0]}),
        "function": lambda x: x + 1,
    }


def comparable(tree: dict[str, Any]) -> dict[str, Any]:
    return {**tree, "custom": tree["custom"].tensor, "function": tree["function"](1)}


def sync_odd_trees(rank: int) -> list[dict[str, Any]]:
    """Rank 0 sends the same tree to the others in pieces of several sizes; the last time, of one that it chooses."""
    results = []
    for piece_bytes in (100, 1024, relay.PIECE_BYTES, 300):
        if piece_bytes != 300:
            relay.PIECE_BYTES = piece_bytes
        elif rank == 0:  # as in a chain of many
            relay.LONG_CHAIN, relay._MIN_PIECE_BYTES = 1, 300
        sent = odd_tree()
        got: Any = sync_state(sent if rank == 0 else None, place_of(rank, 3, source=0, receivers=(1, 2)))
        tree: dict[str, Any] = sent if rank == 0 else got
        first, again, _ = tree["shared"]
        results.append(
            {
                "returned": got is not None,
                "hash": tree_fingerprint(comparable(tree)),
                "same object": first is again,
                "parameter": type(tree["parameter"]).__name__,
                "requires grad": [tree["parameter"].requires_grad, tree["large"].requires_grad],
            }
        )
    return results


class Particular:
    """An object that looks at its tensor's memory when it is made again, as torch.Generator does."""

    def __init__(self) -> None:
        self.tensor = torch.arange(40.0).view(5, 8).t()

    def __setstate__(self, state: dict[str, Any]) -> None:
        tensor = state["tensor"]
        assert tensor.is_contiguous()
        assert tensor.storage_offset() == 0
        assert tensor.untyped_storage().nbytes() == tensor.nbytes
        self.tensor = tensor


def sync_objects(rank: int) -> tuple[Any, ...]:
    one, generator = Particular(), torch.Generator().manual_seed(7)
    sent: dict[str, Any] = {"weights": one.tensor, "deep": [{"generator": generator, "one": one}], "again": one}
    got: Any = sync_state(sent if rank == 0 else None, place_of(rank, 2, source=0, receivers=(1,)))
    tree: dict[str, Any] = sent if rank == 0 else got
    deep = tree["deep"][0]
    drawn = torch.rand(3, generator=deep["generator"]).tolist()
    return drawn, deep["one"].tensor.tolist(), deep["one"] is tree["again"], tree["weights"].tolist()


def test_objects_get_tensors_of_their_own() -> None:
    sent, got = run_ranks(sync_objects, 2)
    assert got == sent
    assert got[2]


def sync_generators(rank: int) -> tuple[Any, ...]:
    context.current.place.enter(place_of(rank, 2, source=0, receivers=(1,)))
    torch_generator = torch.Generator().manual_seed(rank)
    mine: dict[str, Any] = {"g": torch_generator, "rng": numpy.random.default_rng(rank), "python": random.Random(rank)}
    state = TorchState(**mine, old=numpy.random.RandomState(rank))
    if rank == 0:
        for _ in range(3):
            draw_from(state)
    state.sync()
    assert all(getattr(state, name) is generator for name, generator in mine.items()), "brought back in place"
    state.keep_small()
    drawn = draw_from(state)
    state.return_to_boundary()
    again = draw_from(state)
    state.restore()
    return state.clean, drawn, again, draw_from(state)


def draw_from(state: TorchState) -> tuple[float, ...]:
    drawn = torch.rand(1, generator=state.g), state.rng.normal(), state.python.gauss(0, 1), state.old.normal()
    return tuple(map(float, drawn))


def test_generators_of_the_scripts_own_go_on_alike() -> None:
    source, receiver = run_ranks(sync_generators, 2)
    assert receiver == source
    assert source[0]
    assert source[1] == source[2] == source[3]


def sync_to_some_and_then_to_all(rank: int) -> list[Any]:
    return [
        sync_state({"sync": number} if rank == 0 else None, place_of(rank, 3, source=0, receivers=receivers))
        for number, receivers in enumerate([(1,), (1, 2)])
    ]


def test_a_member_counts_the_syncs_that_it_is_not_in() -> None:
    first, second = {"sync": 0}, {"sync": 1}
    assert run_ranks(sync_to_some_and_then_to_all, 3) == [[None, None], [first, second], [None, second]]


def test_all_kinds_of_tensors_arrive_in_pieces_of_any_size() -> None:
    source, *receivers = run_ranks(sync_odd_trees, 3)
    for receiver in receivers:
        for sent, got in zip(source, receiver, strict=True):
            assert got == {**sent, "returned": True}
            assert not sent["returned"]
            assert got["same object"]
            assert got["parameter"] == "Parameter"
            assert got["requires grad"] == [True, False]


@contextlib.contextmanager
def told_of_the_loss() -> Iterator[None]:
    """Expects the error of a connection that broke, and not the one of a group's timeout, which ends any hanging."""
    with pytest.raises(RuntimeError) as raised:
        yield
    assert "Timed out" not in str(raised.value)


def die_at_piece(link: type[Downstream] | type[Upstream], step: str, number: int) -> None:
    """Have this process die at the given call of a method that is called for each piece."""
    take_step, calls = getattr(link, step), 0

    def step_or_die(*args: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == number:
            os.kill(os.getpid(), signal.SIGKILL)
        return take_step(*args)

    pytest.MonkeyPatch().setattr(link, step, step_or_die)


def lose_the_source(rank: int) -> dict[str, Any]:
    """Rank 1 dies when it has sent a part of the tensors."""
    context.current.place.enter(place_of(rank, 2, source=1, receivers=(0,)))
    relay.PIECE_BYTES = 256
    state = new_state(seed=rank)
    train(state, 2 + rank)
    state.save()
    if rank == 1:
        die_at_piece(Downstream, "pass_on", 4)
    before, tensors = fingerprint(state), pointers(state)
    with pytest.raises(RuntimeError) as raised:
        state.sync()
    return {
        "untouched": (before, tensors) == (fingerprint(state), pointers(state)),
        "commit": state.digest(committed=True),
        "error": str(raised.value),
    }


def test_a_source_lost_on_the_way_leaves_the_receivers_state_as_it_was() -> None:
    receiver, source = run_ranks(lose_the_source, 2, dying={1})
    assert source is None, "the source died in its sync"
    assert receiver["untouched"]
    assert "step=2" in receiver["commit"]


def lose_a_receiver(rank: int) -> bool:
    """Rank 1 of a chain dies when it has received a part; pieces are far larger than any socket's buffer."""
    context.current.place.enter(place_of(rank, 3, source=0, receivers=(1, 2)))
    relay.PIECE_BYTES = 16 * 2**20
    state = TorchState(large=torch.full((2**25,), float(rank)))
    if rank == 1:
        die_at_piece(Upstream, "_take", 3)
    with told_of_the_loss():
        state.sync()
    return bool((state.large == rank).all())


def test_the_ranks_before_and_behind_a_lost_receiver_raise_and_keep_their_state() -> None:
    assert run_ranks(lose_a_receiver, 3, dying={1}) == [True, None, True]


def lose_the_source_amid_a_piece(rank: int) -> bool:
    """Rank 0 dies with more on its way than sockets hold, so that rank 1 has a part of a piece."""
    context.current.place.enter(place_of(rank, 2, source=0, receivers=(1,)))
    relay.PIECE_BYTES = 16 * 2**20
    state = TorchState(large=torch.full((2**26,), float(rank)))
    if rank == 0:
        die_at_piece(Downstream, "pass_on", relay.window_of(relay.PIECE_BYTES) + 4)
    with told_of_the_loss():
        state.sync()
    return bool((state.large == rank).all())


def test_a_receiver_that_has_a_part_of_a_piece_raises_when_the_source_is_lost() -> None:
    assert run_ranks(lose_the_source_amid_a_piece, 2, dying={0}) == [None, True]


@contextlib.contextmanager
def severing(wait_for_start: Callable[[], object]) -> Iterator[None]:
    """Once the wait is over, cuts this rank's connections again and again, as is done to an aborted round's."""
    left = threading.Event()

    def sever() -> None:
        wait_for_start()
        cutter = Cutter()
        while not left.wait(0.01):
            cutter.cut(gloo_devices().values())

    with futures.ThreadPoolExecutor(1) as threads:
        done = threads.submit(sever)
        try:
            yield
        finally:
            left.set()
        done.result()


def sever_the_source(rank: int) -> bool:
    """Rank 1 takes the first pieces and then reads no more, so that rank 0 is cut off amid a piece."""
    store = c10d._get_default_store()
    relay.PIECE_BYTES = 16 * 2**20
    assignment = place_of(rank, 2, source=0, receivers=(1,))
    if rank == 1:
        # Gloo stops reading a connection on which something comes whose receive has been dropped.
        pytest.MonkeyPatch().setattr(Upstream, "_take", raise_at(3, Upstream._take))
        with pytest.raises(KeyboardInterrupt):
            sync_state(None, assignment)
        store.set("stopped", "")
        store.wait(["raised"])
        return True
    elsewhere: Any = store
    elsewhere = elsewhere.clone()  # a connection of its own: this one is needed meanwhile
    with severing(lambda: elsewhere.wait(["stopped"])), told_of_the_loss():
        sync_state(torch.zeros(2**26), assignment)
    store.set("raised", "")
    return True


def raise_at(number: int, take: Callable[..., None]) -> Callable[..., None]:
    calls = itertools.count(1)

    def take_or_raise(*args: Any) -> None:
        if next(calls) == number:
            raise KeyboardInterrupt
        take(*args)

    return take_or_raise


def test_a_source_that_is_cut_off_amid_a_piece_raises() -> None:
    source, _ = run_ranks(sever_the_source, 2, dying={1})  # rank 1 may lose rank 0's store before it hears of it
    assert source


def sever_the_receivers(rank: int) -> bool:
    """Rank 0 stops amid its pieces, and the ranks behind it are cut off."""
    store = c10d._get_default_store()
    relay.PIECE_BYTES = 256
    state = TorchState(large=torch.full((2**12,), float(rank)))
    context.current.place.enter(place_of(rank, 3, source=0, receivers=(1, 2)))
    if rank == 0:
        pytest.MonkeyPatch().setattr(Downstream, "pass_on", raise_at(5, Downstream.pass_on))
        with pytest.raises(KeyboardInterrupt):
            state.sync()
        store.set("stopped", "")
        store.wait(["raised 1", "raised 2"])
        return True
    elsewhere: Any = store
    elsewhere = elsewhere.clone()  # a connection of its own: this one is needed meanwhile
    with severing(lambda: elsewhere.wait(["stopped"])), told_of_the_loss():
        state.sync()
    store.set(f"raised {rank}", "")
    return bool((state.large == rank).all())


def test_receivers_that_are_cut_off_amid_a_sync_raise_and_keep_their_state() -> None:
    assert run_ranks(sever_the_receivers, 3, dying={1, 2}) == [True, True, True]


def receive_another_model(rank: int) -> str:
    context.current.place.enter(place_of(rank, 2, source=0, receivers=(1,)))
    state = TorchState(Net(width=8 if rank == 0 else 9))
    before = fingerprint(state)
    if rank == 0:
        state.sync()
        return ""
    with pytest.raises(ValueError, match="cannot be restored") as raised:
        state.sync()
    assert fingerprint(state) == before
    return str(raised.value)


def test_the_error_of_a_receiver_with_another_model_names_the_key_that_differs() -> None:
    _, error = run_ranks(receive_another_model, 2)
    assert "the state's 'model' cannot be restored: this Net is not the model" in error
    assert "first.weight has shape (9, 4) here and (8, 4) there" in error


@pytest.mark.parametrize(
    "assignment",
    [
        pytest.param(SINGLE_WORKER, id="alone"),
        pytest.param(place_of(0, 3, source=0, receivers=()), id="no-receivers"),
        pytest.param(place_of(2, 3, source=0, receivers=(1,)), id="a-holder-beside"),
    ],
)
def test_a_worker_that_neither_sends_nor_receives_does_not_communicate(assignment: Assignment) -> None:
    assert not dist.is_initialized()
    assert sync_state({"a": torch.ones(2)}, assignment) is None


def test_tensors_are_aligned_in_the_stream() -> None:
    layout = Layout()
    starts = [layout.add(torch.empty(length, dtype=torch.bfloat16)) for length in (1, 0, 33, 2)]
    assert starts == [0, ALIGNMENT_BYTES, ALIGNMENT_BYTES, 3 * ALIGNMENT_BYTES]
    assert layout.length == 4 * ALIGNMENT_BYTES


def test_only_what_lies_scattered_is_copied_into_buffers() -> None:
    layout = Layout()
    small, large = torch.arange(3, dtype=torch.uint8), torch.arange(200, dtype=torch.uint8)
    assert [layout.add(small), layout.add(large)] == [0, 64]
    buffer = torch.full((100,), 255, dtype=torch.uint8)
    pieces = packed(layout, 100, [buffer])
    first = next(pieces)
    assert first.data_ptr() == buffer.data_ptr()
    assert first.tolist() == [*range(3), *[0] * 61, *range(36)]
    second = next(pieces)
    assert second.data_ptr() == large.data_ptr() + 36
    assert second.tolist() == list(range(36, 136))
    assert next(pieces).tolist() == [*range(136, 200), *[0] * 36]
    assert next(pieces).tolist() == [0] * (layout.length - 300)
    assert next(pieces, None) is None


def test_tied_weights_travel_once() -> None:
    state = dict(Net().state_dict())
    pickler = sync._TreePickler(io.BytesIO(), sync._occurrences_in(state))
    pickler.dump(state)
    assert len(pickler.layout.tensors) == len(state) - 1
    assert not any(outline.inside for outline in pickler.outlines)


def test_a_sparse_tensor_is_refused() -> None:
    tree = {"sparse": torch.eye(3).to_sparse()}
    with pytest.raises(TypeError, match=r"layout torch.sparse_coo cannot be synced"):
        sync_state(tree, place_of(0, 2, source=0, receivers=(1,)))


def test_no_garbage_is_collected_while_others_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    collecting = []

    def broken(_tree: Any, _place: Assignment) -> None:
        collecting.append(gc.isenabled())
        raise RuntimeError("the connection broke")

    monkeypatch.setattr(sync, "sync_state", broken)
    context.current.place.enter(place_of(0, 2, source=0, receivers=(1,)))
    with pytest.raises(RuntimeError, match="broke"):
        new_state(1).sync()
    assert collecting == [False]
    assert gc.isenabled()
