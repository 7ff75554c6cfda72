"""How torch.distributed.checkpoint writes and reads what fsspec knows: torch 2.13 keeps these in a private module.

If they move, checkpoints can be kept in local folders only.
"""

from __future__ import annotations

from torch.distributed.checkpoint._fsspec_filesystem import FsspecReader, FsspecWriter
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter


def writer(url: str) -> FileSystemWriter:
    """What writes a checkpoint there."""
    # It would sync what has no descriptor by syncing all disks of the machine.
    made: FileSystemWriter = FsspecWriter(url, sync_files=False, per_thread_copy_ahead=0)
    return made


def reader(url: str) -> FileSystemReader:
    """What reads one."""
    made: FileSystemReader = FsspecReader(url)
    return made
