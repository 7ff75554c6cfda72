"""Files of a checkpoint server that stay mapped."""

from __future__ import annotations

import weakref
from pathlib import Path

import pytest
import torch

from edriver.worker.checkpoints.memory.mapped import MappedFile, Mappings


def _file(path: Path, length: int = 4096) -> str:
    path.write_bytes(bytes(length))
    return str(path)


def test_a_file_is_mapped_once_and_another_at_its_path_anew(tmp_path: Path) -> None:
    mappings, path = Mappings(), _file(tmp_path / "a")
    first = mappings.writable(path)
    assert mappings.writable(path) is first
    (tmp_path / "a").unlink()
    _file(tmp_path / "keeps-the-inode")
    second = mappings.writable(_file(tmp_path / "a", 8192))
    assert second is not first
    assert len(second) == 8192


def test_what_the_server_has_closed_does_not_stay_allocated(tmp_path: Path) -> None:
    mappings = Mappings()
    gone = weakref.ref(mappings.writable(_file(tmp_path / "a")))
    (tmp_path / "a").unlink()
    mappings.writable(_file(tmp_path / "b"))
    assert gone() is None


def test_what_is_read_cannot_be_changed_for_others(tmp_path: Path) -> None:
    path = _file(tmp_path / "a")
    MappedFile(path, writable=True).tensor(64, (2, 3), torch.bfloat16).fill_(1.5)
    read = MappedFile(path, writable=False).tensor(64, (2, 3), torch.bfloat16)
    assert read.tolist() == [[1.5] * 3] * 2
    read.zero_()
    assert MappedFile(path, writable=False).tensor(64, (), torch.bfloat16).item() == 1.5


def test_a_file_that_is_gone_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        Mappings().writable(str(tmp_path / "none"))
