"""The credentials that a run gives out in files: to hosts that dial in, to observers, to operators."""

from __future__ import annotations

import contextlib
import logging
import os
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from edriver.common.join_config import JoinConfig

if TYPE_CHECKING:
    from edriver.driver.services.tcp_endpoint import TcpEndpoint

_log = logging.getLogger("edriver.driver")


class IssuedCredentials:
    """Written when the run begins, withdrawn when it ends.

    Args:
        endpoint: the endpoint that accepts them.
        dial_in: the path of the file for hosts that dial in,
        observers: the file for observers; None if there is none.
        operators: the file for operators; None if there is none.
        awaited: whether agents may dial in that have their credentials already.
    """

    def __init__(
        self,
        endpoint: TcpEndpoint,
        dial_in: Path | None,
        observers: Path | None,
        operators: Path | None,
        *,
        awaited: bool = False,
    ) -> None:
        self._endpoint = endpoint
        self._awaited = awaited
        self._dial_in = CredentialsFile(dial_in) if dial_in else None
        self._observers = CredentialsFile(observers) if observers else None
        self._operators = CredentialsFile(operators) if operators else None

    async def write(self) -> None:
        """Write the credentials files of hosts that dial in, observers and operators.

        Raises:
            OSError: that cannot be done.
        """
        endpoint = self._endpoint
        if self._awaited:
            await endpoint.open()
            _log.info("hosts dial in at %s", endpoint.credentials("").drivers[0])
        shown = (
            (self._dial_in, endpoint.token, "hosts dial in by: edriver agent --driver {driver} --credentials {path}"),
            (self._observers, endpoint.status_token, "its status elsewhere: edriver status --credentials {path}"),
            (
                self._operators,
                endpoint.control_token,
                "steered from elsewhere: edriver drain HOST --credentials {path}",
            ),
        )
        for file, token, words in shown:
            if file is not None:
                await endpoint.open()
                credentials = endpoint.credentials(token)
                file.write(credentials)
                _log.info("%s", words.format(driver=credentials.drivers[0], path=shlex.quote(str(file.path))))

    def withdraw(self) -> None:
        """Remove the files."""
        for file in filter(None, (self._dial_in, self._observers, self._operators)):
            file.withdraw()


class CredentialsFile:
    """A file with the credentials for the TCP port: written for this user alone, and removed when the run ends.

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
