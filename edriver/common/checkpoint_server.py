"""What an agent starts its checkpoint server with, and where that listens in the agent's private folder."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields
from typing import Final

SERVER_SOCKET: Final = "checkpoints.sock"
"""For the workers and the agent of the host."""

SHARDS_SOCKET: Final = "shards.sock"
"""For the servers and workers of other hosts, where all hosts of a run are one machine."""


@dataclass(frozen=True, slots=True)
class ServerConfig:
    """What a checkpoint server needs.

    Attributes:
        folder: the agent's, for its sockets.
        address: this host's, at which it listens for other hosts; empty: all hosts of the run are this machine.
        tls_folder: the folder of the run's TLS credentials; empty: it has none.
        memory_limit: bytes that checkpoints may use; 0: half of the memory that this process may use.
        bandwidth: bytes per second that are received for copies at most; 0: no limit.
        run_id: the run,
        host: and the host, of which checkpoints on disk are.
        environment: the workers' Python environment,
        environment_copy: and this host's copy of it, from which what writes to disk starts; empty: there is none.
    """

    folder: str
    address: str = ""
    tls_folder: str = ""
    memory_limit: int = 0
    bandwidth: int = 0
    run_id: str = ""
    host: str = ""
    environment: str = ""
    environment_copy: str = ""

    def to_json(self) -> bytes:
        """One object of JSON."""
        return json.dumps(asdict(self)).encode()

    @classmethod
    def from_json(cls, text: bytes) -> ServerConfig:
        """Read what `to_json` has written; what this release does not know is passed over.

        Raises:
            ValueError: it is not a configuration.
        """
        try:
            found = json.loads(text)
            made = cls(**{field.name: found[field.name] for field in fields(cls) if field.name in found})
        except (ValueError, TypeError) as error:
            raise ValueError(f"not the configuration of a checkpoint server ({type(error).__name__})") from None
        if made.address and not made.tls_folder:
            raise ValueError("a checkpoint server listens for other hosts only with the run's TLS credentials")
        return made
