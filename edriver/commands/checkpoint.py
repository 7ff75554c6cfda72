"""`edriver checkpoint inspect`: what a folder of checkpoints holds. Reads manifests, and no pickle.

`edriver checkpoint save`: has a run write a checkpoint to disk.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator, Sequence
from typing import Any, Final

from edriver.checkpoint_folder.folder import CheckpointFolder, Found
from edriver.checkpoint_folder.ownership import owner_of
from edriver.commands.which_run import add_run_flags, client_of
from edriver.text.command_parser import CommandParser
from edriver.text.phrases import count_text
from edriver.text.printable import printable_line

MAX_OBJECTS: Final = 5
"""Entries of a checkpoint that are listed, of those that are no tensors."""


class CheckpointsUnreadableError(Exception):
    """A folder of checkpoints cannot be read: says why."""


def parser() -> argparse.ArgumentParser:
    """The flags."""
    made = CommandParser(
        prog="edriver checkpoint",
        description="inspect: lists the checkpoints in a folder, the one with the most steps first, and what is in the "
        "newest whole one. Torn ones are listed with what is wrong with them. save: has a run write a checkpoint to "
        "disk now: in restart mode the newest one in memory, in elastic mode one of the next boundary. If workers are "
        "lost before it is written, the next round writes one.",
    )
    made.add_argument("verb", choices=("inspect", "save"), help="list them, or have a run write one")
    made.add_argument(
        "location",
        metavar="DIR",
        nargs="?",
        help="with inspect: the folder that the script names, or a URL",
    )
    made.add_argument(
        "--all", action="store_true", help="list the entries of all checkpoints, not only of the newest whole one"
    )
    made.add_argument(
        "--verify", action="store_true", help="also compare the digests of all files, which reads all of them"
    )
    made.add_argument("--json", action="store_true", help="print all that is known as a JSON array")
    add_run_flags(made, "--control-credentials")
    return made


def checkpoint(arguments: Sequence[str]) -> str:
    """Read the manifests of a folder, or have a run write a checkpoint; returns the text to print.

    Raises:
        CheckpointsUnreadableError: the folder cannot be read.
        RunError: the run does not write one.
    """
    made = parser()
    flags = made.parse_intermixed_args(arguments)
    if flags.verb == "save":
        if flags.location is not None:
            made.error("save takes no DIR: the script has named the folder")
        with client_of(flags) as run:
            saved = run.save_checkpoint()
            if not saved.HasField("step"):
                return (
                    f"run {run.run_id}: rank 0 writes a checkpoint at its next boundary, or that of the next round if "
                    "it is lost before"
                )
            done = "goes to disk now, or a newer one in its place: edriver status says when it is there"
            if saved.on_disk:
                done = "is on disk already"
            return f"run {run.run_id}: the checkpoint of step {saved.step:,} {done}"
    if flags.location is None:
        made.error("inspect takes the folder, or the URL, that the script names")
    try:
        folder = CheckpointFolder(flags.location)
        found = folder.found()
        number, owner = owner_of(folder)
        if flags.verify:
            found = [_verified(folder, each) for each in found]
    except (OSError, ImportError, ValueError) as error:
        raise CheckpointsUnreadableError(f"{flags.location} cannot be read: {error}") from error
    if flags.json:
        return json.dumps([_as_json(each) for each in found], indent=2)
    owned = [f"last used by {owner}"] if number else []
    if not found:
        return "\n".join(map(printable_line, (f"there are no checkpoints in {flags.location}", *owned)))
    newest = next((each for each in found if each.whole), None)
    lines = (line for each in found for line in _lines(each, with_entries=flags.all or each is newest))
    return "\n".join(map(printable_line, (*lines, *owned)))  # what a manifest says may be anything


def _verified(folder: CheckpointFolder, found: Found) -> Found:
    if not found.whole or not (damage := folder.damage(found)):
        return found
    return Found(found.name, found.number, found.manifest, damage)


def _as_json(found: Found) -> dict[str, Any]:
    manifest = None if found.manifest is None else found.manifest.as_json()
    return {"name": found.name, "whole": found.whole, "trouble": found.trouble, "manifest": manifest}


def _lines(found: Found, with_entries: bool) -> Iterator[str]:
    manifest = found.manifest
    if manifest is None:
        yield f"{found.name}  torn: {found.trouble}"
        return
    nbytes = sum(file.nbytes for file in manifest.files.values())
    state = "whole" if found.whole else f"torn: {found.trouble}"
    yield f"{found.name}  step {manifest.steps:,}, {nbytes:,} bytes, {state}"
    if not with_entries:
        return
    written = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(manifest.time))
    run = f"run {manifest.run_id}, " if manifest.run_id else ""
    version = f"version {manifest.version}, " if manifest.version else ""  # checkpoints in memory have none
    yield f"  written {written} by {run}{version}{count_text(manifest.size, 'worker')}"
    yield f"  with edriver {manifest.edriver} and torch {manifest.torch}"
    objects = [key for key, entry in manifest.entries.items() if not entry.dtype]
    left_out = frozenset(objects[MAX_OBJECTS:])  # an optimizer has some for each parameter
    shown = {key: entry for key, entry in manifest.entries.items() if key not in left_out}
    width = max(map(len, shown), default=0)
    for key, entry in shown.items():
        if entry.dtype:
            shape = " x ".join(map(str, entry.shape)) or "scalar"
            yield f"    {key:{width}}  {entry.dtype}  {shape}, {entry.nbytes:,} bytes"
        else:
            yield f"    {key:{width}}  object"
    if left_out:
        yield f"    and {count_text(len(left_out), 'more object')}, which --json lists"
