"""Folders of checkpoints: what is whole in them, and checkpoints that no run has written."""

from __future__ import annotations

import hashlib
from pathlib import Path

import fsspec

from edriver.checkpoint_folder.folder import CheckpointFolder
from edriver.checkpoint_folder.manifest import CheckpointEntry, FileRecord, Manifest

CONTENT = b"elements"


def whole_steps(folder: Path) -> list[int]:
    """The steps of the checkpoints that are whole in a folder, in ascending order."""
    return sorted(found.steps for found in CheckpointFolder(str(folder)).found() if found.whole)


def manifest(steps: int) -> Manifest:
    files = {"data": FileRecord(len(CONTENT), hashlib.sha256(CONTENT).hexdigest())}
    entries = {"model.weight": CheckpointEntry("float32", (2, 3), 24), "epoch": CheckpointEntry("", (), 0)}
    return Manifest(steps, "1.1:5", "run", 1.5, 2, "0.1", "2.13", files, entries)


def write(folder: CheckpointFolder, steps: int, whole: bool = True) -> str:
    name = folder.begin()
    fs, path = fsspec.core.url_to_fs(folder.place(name))
    fs.makedirs(path, exist_ok=True)
    fs.pipe_file(f"{path}/data", CONTENT)
    if whole:
        folder.seal(name, manifest(steps))
    return name
