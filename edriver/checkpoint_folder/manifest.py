"""The manifest of a checkpoint: what it holds, and the digests of its files. It is written last."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

FORMAT: Final = 1
"""The only format that this release reads and writes."""


class ManifestError(Exception):
    """A text is not a manifest of this format."""


@dataclass(frozen=True, slots=True)
class FileRecord:
    """A file of a checkpoint: its length in bytes, and the SHA-256 of its content in hexadecimal."""

    nbytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class CheckpointEntry:
    """One entry of a checkpoint.

    Attributes:
        dtype: the type of a tensor's elements, such as float32; empty: the entry is a Python object.
        shape: of a tensor.
        nbytes: length of a tensor's elements; 0 for an object.
    """

    dtype: str
    shape: tuple[int, ...]
    nbytes: int


@dataclass(frozen=True, slots=True)
class Manifest:
    """What a checkpoint says of itself.

    Attributes:
        steps: number of steps (boundaries) of the training so far.
        version: the round and the number of its boundaries, as in the driver's output.
        run_id: the run that wrote it; empty: a script without a driver.
        time: when it was written, in seconds since the epoch.
        size: number of workers of the round.
        edriver: the release that wrote it,
        torch: and its torch.
        files: its files by name.
        entries: its entries by the keys that torch.distributed.checkpoint gives them.
    """

    steps: int
    version: str
    run_id: str
    time: float
    size: int
    edriver: str
    torch: str
    files: Mapping[str, FileRecord]
    entries: Mapping[str, CheckpointEntry]

    def as_json(self) -> dict[str, Any]:
        """As plain values for JSON."""
        plain = {name: getattr(self, name) for name in _PLAIN}
        files = {name: {"bytes": file.nbytes, "sha256": file.sha256} for name, file in self.files.items()}
        entries = {
            key: {"dtype": entry.dtype, "shape": list(entry.shape), "bytes": entry.nbytes}
            for key, entry in self.entries.items()
        }
        return {"format": FORMAT, **plain, "files": files, "entries": entries}

    def text(self) -> str:
        """As it is written."""
        return json.dumps(self.as_json(), indent=1) + "\n"

    @staticmethod
    def of(text: str | bytes) -> Manifest:
        """The manifest that a text is.

        Raises:
            ManifestError: it is not a manifest, or has another format.
        """
        try:
            found = json.loads(text)
            if found["format"] != FORMAT:
                raise ManifestError(f"its format is {found['format']!r}, and this release reads {FORMAT}")
            plain = {name: kind(found[name]) for name, kind in _PLAIN.items()}
            files = {name: FileRecord(int(f["bytes"]), str(f["sha256"])) for name, f in found["files"].items()}
            entries = {
                key: CheckpointEntry(str(e["dtype"]), tuple(map(int, e["shape"])), int(e["bytes"]))
                for key, e in found["entries"].items()
            }
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ManifestError(f"its manifest cannot be read ({type(error).__name__}: {error})") from error
        if any("/" in name for name in files):
            raise ManifestError("its manifest names files outside its folder")
        return Manifest(**plain, files=files, entries=entries)


_PLAIN: Final[dict[str, Any]] = {
    "steps": int,
    "version": str,
    "run_id": str,
    "time": float,
    "size": int,
    "edriver": str,
    "torch": str,
}
"""The manifest's plain values, with their types."""
