"""How torch.distributed.checkpoint writes and reads what fsspec knows. Before torch 2.15 a private module has these.

Checked with torch 2.11 to 2.15. Without either module, checkpoints can be kept in local folders only.
"""

from __future__ import annotations

import importlib
from importlib.machinery import PathFinder
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import torch.distributed

if TYPE_CHECKING:
    from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter

_MODULES: Final = (
    "torch.distributed.checkpoint.fsspec_filesystem",
    "torch.distributed.checkpoint._fsspec_filesystem",  # before torch 2.15, which imports it with a warning
)


def writer(url: str) -> FileSystemWriter:
    """What writes a checkpoint there.

    Raises:
        ImportError: this torch has neither module.
    """
    # It would sync what has no descriptor by syncing all disks of the machine.
    made: FileSystemWriter = _module().FsspecWriter(url, sync_files=False, per_thread_copy_ahead=0)
    return made


def reader(url: str) -> FileSystemReader:
    """What reads one.

    Raises:
        ImportError: this torch has neither module.
    """
    made: FileSystemReader = _module().FsspecReader(url)
    return made


def is_there() -> bool:
    """Whether this torch has one of the modules. Nothing is imported: that takes half a second."""
    return _name() is not None


def _name() -> str | None:
    folders = [str(Path(folder, "checkpoint")) for folder in torch.distributed.__path__]
    return next((name for name in _MODULES if PathFinder.find_spec(name, folders) is not None), None)


def _module() -> Any:
    name = _name()
    if name is None:
        raise ImportError(f"torch {torch.__version__} has no fsspec_filesystem: keep checkpoints in a local folder")
    return importlib.import_module(name)
