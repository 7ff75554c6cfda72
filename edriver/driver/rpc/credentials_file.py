"""A file with the credentials for the driver's TCP port."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from edriver.common.join_config import JoinConfig


class CredentialsFile:
    """Written for this user alone, and removed when the run ends.

    Args:
        path: where.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._written: os.stat_result | None = None

    def write(self, credentials: JoinConfig) -> None:
        """Replace it; readers that have an older one open keep that.

        Raises:
            OSError: it cannot be written.
        """
        self.path.unlink(missing_ok=True)
        descriptor = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            self._written = os.fstat(descriptor)
            file.write(credentials.to_json())

    def withdraw(self) -> None:
        """Remove it: the run is over. Another run's, written since, stays."""
        with contextlib.suppress(OSError):
            if self._written and os.path.samestat(self.path.stat(), self._written):
                self.path.unlink()
