"""What an agent needs to find its driver and to authenticate.

A launcher gives it to the agent on its standard input: a command line can be read by all users of the machine.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Final

SERVER_NAME: Final = "driver.edriver"
"""The name in the certificate of every driver. Drivers differ by the authority of their
run, so a driver can be reached at any address."""

ENDED_KEY: Final = "ended"
"""What a file of credentials has in the place of all others once its run has ended."""

MEMBER_NAME: Final = "member.edriver"
"""The name in the certificate that all workers of a run share."""


GRACE: Final = 30.0
"""Seconds that a host stays after SIGTERM to its agent, unless --grace says otherwise: Kubernetes and Slurm kill it
then."""


@dataclass(frozen=True, slots=True)
class JoinConfig:
    """What one agent needs to join a run.

    Attributes:
        run_id: the run.
        host: the name under which discovery knows the agent's host.
        agent_id: names the agent to the driver.
        drivers: where the driver may be reached, the likeliest first: unix:/path, or address:port.
        authority: the certificate (PEM) that the driver's must be signed by; empty for a unix socket, whose folder only
            the user can enter.
        token: the token for connections over the network.
        address: where this host's workers reach each other; empty: where the agent reaches the driver from.
        interface: the network interface whose address that is; empty: any.
        folder: a private folder for the agent's sockets; empty: the agent makes one.
        slots: number of workers that the host takes, if it dials in; 0: discovery has it.
        directory: the workers' working directory; empty: the agent's own.
        environment: variables that the workers get, over those of the agent's own.
        server_name: the name in the driver's certificate, which clients verify.
        health_port: the TCP port at which probes ask for the agent's health; 0: none.
        left_code: the agent's exit code if it leaves a run in progress.
        secret: authenticates this agent to the driver, in hexadecimal digits; empty: its first Welcome
            brings it.
        other_drivers: where other drivers may take the run over, address:port each.
        grace: seconds that the host stays after SIGTERM or SIGUSR1 to the agent.
    """

    run_id: str
    host: str
    agent_id: int
    drivers: tuple[str, ...]
    authority: str = ""
    token: str = ""
    address: str = ""
    interface: str = ""
    folder: str = ""
    slots: int = 0
    directory: str = ""
    environment: Mapping[str, str] | None = None
    secret: str = ""
    health_port: int = 0
    left_code: int = 0
    server_name: str = SERVER_NAME
    other_drivers: tuple[str, ...] = ()
    grace: float = GRACE

    def __repr__(self) -> str:
        """Without what must not be seen in a log."""
        return f"JoinConfig(run_id={self.run_id!r}, host={self.host!r}, agent_id={self.agent_id})"

    def to_json(self) -> bytes:
        """One object of JSON."""
        return json.dumps(asdict(self)).encode()

    @classmethod
    def from_json(cls, text: bytes) -> JoinConfig:
        """Read what `to_json` has written, be it by a later version: what this one does not know is passed over.

        Raises:
            ValueError: it is not a join config; the message does not repeat it.
        """
        try:
            found = json.loads(text)
            known = {field.name: found[field.name] for field in fields(cls) if field.name in found}
            addresses = {name: tuple(known.get(name, ())) for name in ("drivers", "other_drivers")}
            return cls(**{**known, **addresses})
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise ValueError(f"not a join config of edriver's driver ({type(error).__name__})") from None


def at_port(address: str, port: int) -> str:
    """An address and a port in one text; an IPv6 address is put into brackets."""
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"
