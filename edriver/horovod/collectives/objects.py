"""Python objects from one member to the others. Only what a member of this round has sent is unpickled.

A pickled object is followed by a MAC of it, with the round's secret as the key, which members alone have. In a world
that torchrun has made there is no such secret, and members trust all that are in torch's group, as torch does.
"""

from __future__ import annotations

import hashlib
import hmac
import pickle
from typing import Any, Final

import cloudpickle
import torch

from edriver.horovod import basics
from edriver.horovod.collectives.movements import allgather, broadcast_
from edriver.horovod.errors import HorovodInternalError
from edriver.horovod.process_sets import ProcessSet, global_process_set

_MAC_BYTES: Final = 32


def broadcast_object(
    obj: Any, root_rank: int = 0, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Any:
    """Give all members the object of one; returns it.

    Args:
        obj: the object, which cloudpickle can pickle; only the root's is looked at.
        root_rank: whose it is.
        name: what the operation is called in errors; the same on all members.
        process_set: who takes part.

    Raises:
        MismatchError: the members call different things.
        HorovodInternalError: a member is gone, or what arrived does not come from a member.
    """
    is_root = process_set.size() > 0 and basics.rank() == root_rank
    name = name or "object"
    sealed = _sealed(obj, root_rank) if is_root else torch.empty(0, dtype=torch.uint8, device="cpu")
    length = torch.tensor([len(sealed)], device="cpu")
    broadcast_(length, root_rank, f"{name}.length", process_set)
    if not is_root:
        sealed = torch.empty(int(length), dtype=torch.uint8, device="cpu")
    broadcast_(sealed, root_rank, f"{name}.content", process_set)
    return obj if is_root else _opened(sealed, root_rank)


def allgather_object(obj: Any, name: str | None = None, process_set: ProcessSet = global_process_set) -> list[Any]:
    """Give all members the objects of all; returns them, in the members' order.

    Args:
        obj: this member's object, which cloudpickle can pickle.
        name: what the operation is called in errors; the same on all members.
        process_set: who takes part.

    Raises:
        MismatchError: the members call different things.
        HorovodInternalError: a member is gone, or what arrived does not come from a member.
    """
    name = name or "object"
    sealed = _sealed(obj, basics.rank())
    lengths = allgather(torch.tensor([len(sealed)], device="cpu"), f"{name}.length", process_set).tolist()
    parts = torch.split(allgather(sealed, f"{name}.content", process_set), lengths)
    return [_opened(part, rank) for part, rank in zip(parts, process_set.ranks, strict=True)]


def _mac(content: bytes | memoryview, sender: int) -> bytes:
    place = basics.place()
    mac = hmac.new(place.secret, f"edriver.horovod object of {sender} in {place.round_id}:".encode(), hashlib.sha256)
    mac.update(content)
    return mac.digest()


def _sealed(obj: Any, sender: int) -> torch.Tensor:
    content = cloudpickle.dumps(obj)
    return torch.frombuffer(bytearray(content + _mac(content, sender)), dtype=torch.uint8)


def _opened(sealed: torch.Tensor, sender: int) -> Any:
    content = bytes(sealed.numpy().tobytes())
    content, mac = content[:-_MAC_BYTES], content[-_MAC_BYTES:]
    if not hmac.compare_digest(mac, _mac(content, sender)):
        raise HorovodInternalError(f"the object that arrived is not one that rank {sender} has sent")
    return pickle.loads(content)  # noqa: S301  a member has sent it
