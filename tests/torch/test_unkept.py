"""What a state cannot keep is refused by the attribute's name when the state is made."""

from __future__ import annotations

import functools
import io
import random
import socket
import tempfile
import threading
import tracemalloc
import types
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import numpy
import pytest
import torch

import edriver
from edriver.worker.state import handlers
from edriver.worker.state.torch_state import TorchState


class Holder:
    """An object of the script's own."""

    def __init__(self, value: Any) -> None:
        self.value = value


def numbers() -> Iterator[int]:
    yield 1


async def later() -> None:
    pass


UNKEPT: dict[str, Callable[[], Any]] = {
    "lock": threading.Lock,
    "event": threading.Event,
    "thread": lambda: threading.Thread(target=print),
    "file": tempfile.TemporaryFile,
    "text-file": functools.partial(tempfile.TemporaryFile, "w+"),
    "socket": socket.socket,
    "generator-object": numbers,
    "module": lambda: types,
    "weak-reference": lambda: weakref.ref(Holder),
    "system-random": random.SystemRandom,
    "sparse-tensor": lambda: torch.eye(2).to_sparse(),
}
INSIDE: dict[str, Callable[[Any], Any]] = {
    "itself": lambda value: value,
    "in-a-list-in-a-dict": lambda value: {"a": [1, value]},
    "in-an-object": Holder,
    "beside-a-model": lambda value: Holder((torch.nn.Linear(2, 2), value)),
}


@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.parametrize("make_state", [TorchState, edriver.ObjectState], ids=["torch", "object"])
@pytest.mark.parametrize("inside", INSIDE.values(), ids=INSIDE)
@pytest.mark.parametrize("make", UNKEPT.values(), ids=UNKEPT)
def test_it_is_refused_by_name(make: Callable[[], Any], inside: Callable[[Any], Any], make_state: Any) -> None:
    made = make()
    with pytest.raises(TypeError, match="the state's attribute 'thing' cannot be kept: "):
        make_state(epoch=0, thing=inside(made))
    if hasattr(made, "close"):
        made.close()


def test_a_coroutine_is_refused() -> None:
    coroutine = later()
    with pytest.raises(TypeError, match="'thing' cannot be kept: a coroutine cannot be copied"):
        TorchState(thing=coroutine)
    coroutine.close()


KEPT: dict[str, Callable[[], Any]] = {
    "plain": lambda: {"a": [1, (2.0, "b", None)], 3: {b"c"}},
    "array": lambda: numpy.arange(4),
    "tensor": lambda: [torch.ones(3), torch.nn.Parameter(torch.ones(1))],
    "object": lambda: Holder(torch.ones(3)),
    "local-class": lambda: type("Local", (), {})(),
    "function": lambda: Holder(lambda: 1),
    "model-in-an-object": lambda: Holder(torch.nn.Linear(2, 2)),
    "text-in-memory": io.StringIO,
    "generators": lambda: [torch.Generator(), random.Random(1), numpy.random.default_rng(1)],
}


@pytest.mark.parametrize("make", KEPT.values(), ids=KEPT)
def test_what_can_be_kept_is_not_refused(make: Callable[[], Any]) -> None:
    state = TorchState(thing=make())
    state.save()
    state.restore()
    edriver.ObjectState(thing=make())


def test_the_elements_of_tensors_and_arrays_are_not_copied_to_find_out() -> None:
    big = Holder((torch.zeros(2**22), numpy.zeros(2**22), torch.empty(2**50, device="meta")))
    tracemalloc.start()
    TorchState(thing=big)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 2**22


def test_a_generator_of_another_kind_is_refused_when_it_is_brought_back() -> None:
    one, other = (
        TorchState(rng=numpy.random.default_rng(1)),
        TorchState(rng=numpy.random.Generator(numpy.random.MT19937())),
    )
    with pytest.raises(ValueError, match="the state's 'rng' cannot be restored: it draws from a MT19937 here and"):
        other._load(one._capture())


def test_a_generator_keeps_its_device() -> None:
    handler = handlers.handler_for(torch.Generator())
    assert handler is not None
    with pytest.raises(ValueError, match="it is a generator on cpu here and on cuda there"):
        handler.load({**handler.capture(), "device": "cuda"})
