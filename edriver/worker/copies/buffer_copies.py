"""Copies of modules' buffers (running means, counters), made at every boundary: the one part of a model that a forward
pass changes.

There are many and they are small, so that a copy of each costs more in calls than in bytes. All of one type go into one
flat tensor in one call.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterable
from operator import is_
from typing import Any

import torch
from torch.nn.modules.module import register_module_buffer_registration_hook

from edriver.worker.backend.modules import buffers_of
from edriver.worker.backend.process_modes import with_inference

_registrations = itertools.count(1)
_latest = 0


def _registered(_module: torch.nn.Module, _name: str, _buffer: torch.Tensor | None) -> None:
    global _latest
    _latest = next(_registrations)


register_module_buffer_registration_hook(_registered)
"""Tells that some module of this process has got a buffer, or another one in the place of one that it had."""


class BufferCopies:
    """The buffers of some modules, as of the last `keep`."""

    def __init__(self) -> None:
        self._seen = -1
        self._places: list[tuple[dict[str, Any], str]] = []
        self._buffers: list[torch.Tensor] = []
        self._groups: list[_FlatGroup] = []
        self._odd: list[tuple[torch.Tensor, torch.Tensor]] = []

    def watch(self, modules: Iterable[torch.nn.Module]) -> None:
        """Keep the buffers of these and of all modules in them from now on; what was kept is forgotten."""
        inner = {id(part): part for module in modules for part in module.modules()}
        self._places = [(own, key) for own in map(buffers_of, inner.values()) for key in own]
        self._group()

    def keep(self) -> None:
        """Copy all buffers."""
        if self._seen != _latest:
            self._seen = _latest
            self._places = [(buffers, key) for buffers, key in self._places if key in buffers]
            if not all(map(is_, [buffers[key] for buffers, key in self._places], self._buffers)):
                self._group()
        if not self._buffers:
            return
        with torch.no_grad(), with_inference(False):
            for group in self._groups:
                group.keep()
            for source, target in self._odd:
                target.copy_(source)

    def bring_back(self) -> None:
        """Write what was kept into the buffers that were there, and put them where they were."""
        for (buffers, key), buffer in zip(self._places, self._buffers, strict=True):
            buffers[key] = buffer
        with torch.no_grad():
            for group in self._groups:
                group.bring_back()
            for source, target in self._odd:
                source.copy_(target)

    def _group(self) -> None:
        with with_inference(False):  # or a later boundary could not write into them
            self._make_groups()

    def _make_groups(self) -> None:
        self._places = [place for place in self._places if place[0][place[1]] is not None]
        self._buffers = [buffers[key] for buffers, key in self._places]
        alike: dict[tuple[torch.dtype, torch.device], list[torch.Tensor]] = defaultdict(list)
        self._odd = []
        for buffer in {id(b): b for b in self._buffers}.values():
            if buffer.is_contiguous() and not buffer.is_quantized:
                alike[buffer.dtype, buffer.device].append(buffer.detach().view(-1))
            else:
                self._odd.append((buffer.detach(), buffer.detach().clone()))
        self._groups = [_FlatGroup(parts) for parts in alike.values()]


class _FlatGroup:
    """Buffers of one type on one device, each as a flat view, and one flat copy of them all."""

    def __init__(self, parts: list[torch.Tensor]) -> None:
        self._parts = parts
        self._copy = torch.empty(sum(map(len, parts)), dtype=parts[0].dtype, device=parts[0].device)
        self._whole = _joined(parts)

    def keep(self) -> None:
        if self._whole is not None:
            self._copy.copy_(self._whole)
        else:
            torch.cat(self._parts, out=self._copy)

    def bring_back(self) -> None:
        first = 0
        for part in self._parts:
            part.copy_(self._copy[first : first + len(part)])
            first += len(part)


def _joined(parts: list[torch.Tensor]) -> torch.Tensor | None:
    """One view of all parts, if they lie side by side in one piece of memory."""
    end = parts[0].storage_offset()
    for part in parts:
        if part.untyped_storage().data_ptr() != parts[0].untyped_storage().data_ptr() or part.storage_offset() != end:
            return None
        end += len(part)
    return parts[0].as_strided((end - parts[0].storage_offset(),), (1,))
