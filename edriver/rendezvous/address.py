"""The address and credentials of a rendezvous server: in a folder of this user, or in a file from another host."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from edriver.common.join_config import JoinConfig
from edriver.system.record_folder import default_root

DEFAULT_PORT: Final = 29400
"""The port of torch's own rendezvous, which --rdzv-endpoint means where it names none."""

CREDENTIALS_FILE: Final = "credentials.json"
"""The file in the server's folder that clients need."""

CREDENTIALS_VARIABLE: Final = "EDRIVER_RENDEZVOUS_CREDENTIALS"
"""The variable that names a copy of it on another host."""


class CredentialsError(Exception):
    """The server's credentials are not to be had; the message is a sentence for the operator."""


def default_folder(environ: Mapping[str, str] = os.environ) -> Path:
    """The server's folder, if the operator names no other.

    Raises:
        CredentialsError: this user's home directory is not known.
    """
    try:
        return default_root(environ) / "rendezvous"
    except RuntimeError:
        raise CredentialsError("your home directory cannot be determined: name the server's folder") from None


def credentials_of(path: str | Path | None, environ: Mapping[str, str] = os.environ) -> JoinConfig:
    """Read a client's credentials.

    Args:
        path: the file; None: the one that the environment names, else the one in the default folder.
        environ: the environment.

    Raises:
        CredentialsError: no usable file was found.
    """
    file = Path(path or environ.get(CREDENTIALS_VARIABLE, "") or default_folder(environ) / CREDENTIALS_FILE)
    try:
        return JoinConfig.from_json(file.read_bytes())
    except OSError as error:
        raise CredentialsError(
            f"{file}: {error.strerror}; copy the file that `edriver rendezvous` names on its host, and give its path "
            f"in ${CREDENTIALS_VARIABLE} or with --rdzv-conf credentials=FILE"
        ) from None
    except ValueError as error:
        raise CredentialsError(f"{file}: {error}") from None
