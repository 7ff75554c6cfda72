"""The cgroups that a process is in, versions 1 and 2, and how to read their files (cgroups(7)).

Files of the memory controller: memory.events, memory.max, memory.current and memory.stat of version 2 (the kernel's
admin-guide/cgroup-v2.rst), memory.oom_control, memory.limit_in_bytes, memory.usage_in_bytes and memory.stat of
version 1 (admin-guide/cgroup-v1/memory.rst).

Version 1 is what RHEL 8 and its rebuilds boot with, which many clusters run: torch's wheels take their glibc (2.28),
and they have Python 3.11 and 3.12. Kubernetes has given it up (1.35 refuses such nodes), and systemd has since 258.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Final, NamedTuple

from edriver.system.proc_stat import kernel_text

CGROUP_ROOT: Final = Path("/sys/fs/cgroup")

UNLIMITED_BYTES: Final = 1 << 60
"""Without a limit, version 1 writes a number of about 2^63, rounded to pages."""


class MemoryFiles(NamedTuple):
    """What a version calls the files of its memory controller.

    Attributes:
        kills: counts the processes that were killed because memory ran out.
        limit: bytes.
        used: bytes, with the files that the kernel keeps in memory.
        idle: the line of memory.stat that counts those of them that are not in use.
    """

    kills: str
    limit: str
    used: str
    idle: str


MEMORY_FILES: Final = {
    "": MemoryFiles("memory.events", "memory.max", "memory.current", "inactive_file"),
    "memory": MemoryFiles(
        "memory.oom_control", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"
    ),
}
"""By the name of the controller's hierarchy; "" is version 2."""


class MemoryGroup(NamedTuple):
    """A cgroup that may have the memory controller; each method returns None where the kernel does not say."""

    folder: Path
    files: MemoryFiles

    def kills(self) -> int | None:
        """The number of its processes that the kernel has killed for lack of memory."""
        return kills_in(self.folder / self.files.kills)

    def limit(self) -> int | None:
        """Bytes that it may use, those above it aside; None also if it has no limit."""
        limit = number_in(self.folder / self.files.limit)
        return limit if limit is not None and limit < UNLIMITED_BYTES else None

    def used(self) -> int | None:
        """Bytes that count against its limit, without files that are not in use."""
        total = number_in(self.folder / self.files.used)
        return None if total is None else max(0, total - (line_in(self.folder / "memory.stat", self.files.idle) or 0))


def memory_groups(text: str, root: Path = CGROUP_ROOT) -> Iterator[MemoryGroup]:
    """The cgroups that may have the memory controller, from the lowest up; `text` and `root` as of cgroup_folders."""
    for controller, files in MEMORY_FILES.items():
        for folder in cgroup_folders(text, root, controller):
            yield MemoryGroup(folder, files)


@lru_cache(maxsize=256)  # of every worker, once a second: to look for folders costs more than to read their files
def cgroup_folders(text: str, root: Path, controller: str) -> tuple[Path, ...]:
    """The folders of a process's cgroup and of those above it, from the lowest up.

    They are looked for once for each text, because a cgroup stays where it is as long as a process is in it.

    Args:
        text: of its /proc/PID/cgroup: a line `number:controllers:path` for each hierarchy; version 2 has number 0 and
            no controllers.
        root: where the hierarchies are mounted.
        controller: of version 1; "": version 2's, which has one hierarchy for all.
    """
    for line in text.splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if (number == "0" and not controllers) if not controller else controller in controllers.split(","):
            mounts = [root / controllers, root / controller] if controller else [root, root / "unified"]
            mount = next((mount for mount in mounts if mount.is_dir()), root)
            # In a container without a private cgroup namespace, the path is the host's, the mount the container's.
            folder = mount / path.lstrip("/")
            if not folder.is_dir() or ".." in folder.parts:
                folder = mount
            folders = [folder]
            while folders[-1] != mount:
                folders.append(folders[-1].parent)
            return tuple(folders)
    return ()


def kills_in(file: Path) -> int | None:
    """The number of processes that the kernel has killed for lack of memory, from a cgroup's file or /proc/vmstat."""
    return line_in(file, "oom_kill")


def line_in(file: Path, name: str) -> int | None:
    """The number in a file's line `name number`; None without such a line."""
    with suppress(OSError, ValueError):
        _, found, rest = f"\n{kernel_text(file)}".partition(f"\n{name} ")  # some have hundreds of lines
        return int(rest.partition("\n")[0]) if found else None
    return None


def number_in(file: Path) -> int | None:
    """The number that a file consists of; None if it has no such text."""
    with suppress(OSError, ValueError):
        return int(kernel_text(file))
    return None


def pair_in(file: Path) -> tuple[str, str]:
    """The two words that are all of a file's text; empty ones if it cannot be read."""
    with suppress(OSError):
        first, _, second = kernel_text(file).strip().partition(" ")
        return first, second
    return "", ""
