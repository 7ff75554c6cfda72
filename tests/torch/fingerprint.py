"""A state's bits as hashes: two states with the same fingerprint are the same, to the last bit."""

from __future__ import annotations

import hashlib
from typing import Any

import torch

from edriver.worker.state.torch_state import TorchState


def fingerprint(state: TorchState) -> str:
    """Of everything that the state keeps, by name."""
    return " ".join(f"{name}:{tree_fingerprint(part)[:16]}" for name, part in state._capture().items())


def tree_fingerprint(tree: Any) -> str:
    """Of a nesting of dicts, lists and tuples with tensors in it."""
    digest = hashlib.sha256()
    _feed(tree, digest)
    return digest.hexdigest()


def _feed(value: Any, digest: hashlib._Hash) -> None:
    if isinstance(value, torch.Tensor):
        digest.update(f"{value.dtype}{tuple(value.shape)}".encode())
        plain = value.detach().cpu().resolve_conj().resolve_neg().contiguous().reshape(-1)
        digest.update(plain.view(torch.uint8).numpy().tobytes())
    elif isinstance(value, dict):
        for key in sorted(value, key=repr):
            digest.update(repr(key).encode())
            _feed(value[key], digest)
    elif isinstance(value, list | tuple):
        digest.update(f"{type(value).__name__}{len(value)}".encode())
        for item in value:
            _feed(item, digest)
    else:
        digest.update(repr(value).encode())
