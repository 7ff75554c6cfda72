"""torch's book of process groups, where a group has a part for the host and one for GPUs."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from edriver.worker.backend import torch_groups


class Part:
    def __init__(self, begun: int) -> None:
        self.begun = begun

    def _get_sequence_number_for_group(self) -> int:
        return self.begun


class TwoParts(Part):
    """Answers with its GPU part's number, as torch's groups over "cpu:gloo,cuda:nccl" do."""

    hosts = Part(2)

    def _get_backend(self, device: torch.device) -> Any:
        return self.hosts if device.type == "cpu" else self


def test_collectives_of_both_parts_count(monkeypatch: pytest.MonkeyPatch) -> None:
    group = TwoParts(5)
    monkeypatch.setattr(torch_groups, "dist", SimpleNamespace(GroupMember=SimpleNamespace(WORLD=group)))
    before = torch_groups.collectives_begun()
    group.hosts.begun += 1
    assert torch_groups.collectives_begun() == before + 1
    group.begun += 1
    assert torch_groups.collectives_begun() == before + 2
