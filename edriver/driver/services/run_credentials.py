"""What makes a run the run that its agents and observers know: its ID, its certificates, and its tokens.

A run makes them when it first needs the network. They can also be made before the run starts (`edriver credentials`),
so that an engine can hand out the agents' part to hosts that start earlier than the driver.
"""

from __future__ import annotations

import datetime
import json
import secrets
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edriver.common.join_config import JoinConfig
from edriver.system.record_folder import is_run_id

if TYPE_CHECKING:
    from edriver.wire.certificate_authority import Authority

_TOKENS = ("agent_token", "status_token", "control_token")


@dataclass(frozen=True, slots=True, repr=False)
class RunCredentials:
    """The secrets of one run, made before it starts.

    Attributes:
        run_id: the run.
        authority: its certificate authority.
        agent_token: the token of agents,
        status_token: of observers,
        control_token: and of operators.
    """

    run_id: str
    authority: Authority
    agent_token: str
    status_token: str
    control_token: str

    @classmethod
    def new(cls, now: datetime.datetime) -> RunCredentials:
        """Make new ones, which are valid from now on; `now` has its time zone."""
        from edriver.wire.certificate_authority import Authority  # takes 0.1 s

        run_id = secrets.token_hex(4)
        return cls(run_id, Authority.of_run(run_id, now), *(secrets.token_urlsafe(32) for _ in _TOKENS))

    def for_driver(self) -> bytes:
        """All of it, as the driver reads it (`--run-credentials`): for the driver alone."""
        authority = {field.name: getattr(self.authority, field.name).decode() for field in fields(self.authority)}
        return json.dumps(
            {"run_id": self.run_id, "authority": authority, **{name: getattr(self, name) for name in _TOKENS}}
        ).encode()

    def for_agents(self) -> bytes:
        """What `edriver agent --credentials FILE` reads."""
        certificate = self.authority.certificate.decode()
        return JoinConfig(self.run_id, "", 0, (), authority=certificate, token=self.agent_token).to_json()

    @classmethod
    def read(cls, path: Path) -> RunCredentials:
        """Read what `for_driver` has made.

        Raises:
            ValueError: it cannot be read, or is something else; the message does not repeat it.
        """
        try:
            made = cls.parse(path.read_bytes())
        except OSError as error:
            raise ValueError(f"{path} cannot be read: {error.strerror}") from None
        except (ValueError, TypeError, KeyError) as error:
            raise ValueError(
                f"{path} does not contain the credentials of a run ({type(error).__name__}): make them with edriver "
                "credentials"
            ) from None
        if not is_run_id(made.run_id):
            raise ValueError(f"{path} does not name a run: make it with edriver credentials")
        return made

    @classmethod
    def parse(cls, text: bytes) -> RunCredentials:
        """What `for_driver` has made of it.

        Raises:
            ValueError, TypeError, KeyError: it has not.
        """
        from edriver.wire.certificate_authority import Authority

        found: dict[str, Any] = json.loads(text)
        authority = Authority(**{field.name: _text(found["authority"], field.name) for field in fields(Authority)})
        return cls(_text(found, "run_id").decode(), authority, *(_text(found, name).decode() for name in _TOKENS))


def _text(found: dict[str, Any], name: str) -> bytes:
    """A text that is there and not empty: an empty token would let in everybody."""
    value = found[name]
    if not isinstance(value, str) or not value:
        raise TypeError(name)
    return value.encode()
