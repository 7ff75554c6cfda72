"""A folder of checkpoints that one live run owns, for all who write to it: what they say of it, and what they do alike.

Whatever the storage raises, training continues: each trouble is said once, until a checkpoint can be written again.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from typing import TypeVar

from edriver.checkpoint_folder.folder import CheckpointFolder, Found
from edriver.checkpoint_folder.manifest import Manifest
from edriver.checkpoint_folder.ownership import FolderOwner, Ownership
from edriver.worker.errors import CheckpointError

logger = logging.getLogger("edriver.worker")

T = TypeVar("T")


class OwnedFolder:
    """The folder, as this process uses it.

    Args:
        location: a path or a URL.
        keep: the number of complete checkpoints to keep.

    Attributes:
        folder: the folder,
        ownership: and this run's claim to it.

    Raises:
        ValueError: keep is less than 1, or fsspec does not support the URL.
        ImportError: a package that fsspec needs for the URL is not installed.
    """

    def __init__(self, location: str, keep: int) -> None:
        if keep < 1:
            raise ValueError(f"keep= takes the number of checkpoints to keep, at least 1, but got {keep!r}")
        self.folder = CheckpointFolder(location)
        self.ownership = Ownership(self.folder, FolderOwner.this_process(os.environ))
        self._keep = keep
        self._said: dict[str, str] = {}

    @property
    def location(self) -> str:
        """Where it is."""
        return self.folder.location

    # ---- writing --------------------------------------------------------------------------------------------------

    def seal(self, name: str, manifest: Manifest, check: Callable[[], None]) -> None:
        """Complete a checkpoint, and remove what is more than `keep`.

        Args:
            name: of the checkpoint.
            manifest: what it says of itself.
            check: raises an error unless this process owns the folder.

        Raises:
            Exception: whatever `check` or the storage raises: the checkpoint is not complete.
        """
        check()
        self.folder.seal(name, manifest)
        check()  # this process may have been stopped since the look before
        if self._said.pop("unwritable", ""):
            logger.info("checkpoints can be written to %s again", self.location)
        try:
            self.folder.prune(self._keep)
        except Exception as error:  # noqa: BLE001  of a library, for any storage
            self._say("unpruned", f"old checkpoints in {self.location} cannot be removed: {error_text(error)}")
        else:
            self._said.pop("unpruned", "")

    def remove(self, name: str) -> None:
        """Remove what could not be written to the end, which may be what fills the disk."""
        try:
            self.folder.remove(name)
        except Exception:
            logger.debug("the remains of %s cannot be removed", name, exc_info=True)

    def say_unwritable(self, error: Exception) -> None:
        """A checkpoint cannot be written."""
        self._say(
            "unwritable",
            f"a checkpoint cannot be written to {self.location}: {error_text(error)}; training continues, without new "
            "checkpoints until one can be written",
        )

    def say_busy(self, argument: str) -> None:
        """A checkpoint is due while the one before is still being written.

        Args:
            argument: which sets how often one is due.
        """
        self._say(
            "busy",
            f"a checkpoint to {self.location} takes longer than the interval between checkpoints: some are skipped; "
            f"give {argument}= a longer interval",
        )

    def _say(self, what: str, text: str) -> None:
        if self._said.get(what) != text:
            self._said[what] = text
            logger.warning("%s", text)

    # ---- loading --------------------------------------------------------------------------------------------------

    def first_loadable(self, attempt: Callable[[Found], T]) -> T | None:
        """Load the whole checkpoint with the most steps. One that cannot be loaded is said, and left for the next.

        Args:
            attempt: loads one, or raises an error.

        Returns:
            what `attempt` returns; None: there is no whole one.

        Raises:
            CheckpointError: the folder cannot be read, or none of those that are there can be loaded: says why.
        """
        troubles = []
        try:
            whole = [found for found in self.folder.found() if found.whole]
        except Exception as error:
            raise CheckpointError(f"the checkpoints in {self.location} cannot be read: {error_text(error)}") from error
        for found in whole:
            try:
                return attempt(found)
            except Exception as error:  # noqa: BLE001  of a library, for any storage
                trouble = f"{found.name} cannot be loaded: {error_text(error)}"
                logger.warning("checkpoint %s in %s; using the one before it", trouble, self.location)
                troubles.append(trouble)
        if troubles:
            raise CheckpointError(f"no checkpoint in {self.location} can be loaded: {'; '.join(troubles)}")
        return None

    def check_content(self, found: Found) -> None:
        """See that a checkpoint is what its manifest says. One that is not does not count from now on.

        Raises:
            CheckpointError: it is not, or another account can have written it.
        """
        if found.refused:
            raise CheckpointError(found.refused)
        if damage := self.folder.damage(found):
            try:
                self.folder.condemn(found.name)
            except Exception:
                logger.debug("%s cannot be marked as damaged", found.name, exc_info=True)
            raise CheckpointError(damage)


def error_text(error: Exception) -> str:
    """What an error says, or else its type."""
    return str(error) or type(error).__name__


def absolute(folder: str) -> str:
    """A folder as other processes of this host find it, too."""
    return folder if "://" in folder else os.path.abspath(folder)  # noqa: PTH100  links stay as they were given
