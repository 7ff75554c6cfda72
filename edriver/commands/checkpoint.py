"""`edriver checkpoint inspect`: what a folder of checkpoints holds. Reads manifests, and no pickle."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator, Sequence
from typing import Any

from edriver.checkpoint_folder.folder import CheckpointFolder, Found
from edriver.checkpoint_folder.ownership import owner_of
from edriver.text.command_parser import CommandParser
from edriver.text.phrases import count_text
from edriver.text.printable import printable_line


class CheckpointsUnreadableError(Exception):
    """A folder of checkpoints cannot be read: says why."""


def parser() -> argparse.ArgumentParser:
    """The flags."""
    made = CommandParser(
        prog="edriver checkpoint",
        description="Lists the checkpoints in a folder, the one with the most steps first, and what is in the newest "
        "whole one. Torn ones are listed with what is wrong with them.",
    )
    made.add_argument("verb", choices=("inspect",), help="list them")
    made.add_argument("location", metavar="DIR", help="what the script gives as checkpoint=: a folder, or a URL")
    made.add_argument(
        "--all", action="store_true", help="list the entries of all checkpoints, not only of the newest whole one"
    )
    made.add_argument(
        "--verify", action="store_true", help="also compare the digests of all files, which reads all of them"
    )
    made.add_argument("--json", action="store_true", help="print all that is known as a JSON array")
    return made


def checkpoint(arguments: Sequence[str]) -> str:
    """Read the manifests of a folder.

    Raises:
        CheckpointsUnreadableError: it cannot be read.
    """
    flags = parser().parse_args(arguments)
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
    yield f"  written {written} by {run}version {manifest.version}, {count_text(manifest.size, 'worker')}"
    yield f"  with edriver {manifest.edriver} and torch {manifest.torch}"
    width = max(map(len, manifest.entries), default=0)
    for key, entry in manifest.entries.items():
        if entry.dtype:
            shape = " x ".join(map(str, entry.shape)) or "scalar"
            yield f"    {key:{width}}  {entry.dtype}  {shape}, {entry.nbytes:,} bytes"
        else:
            yield f"    {key:{width}}  object"
