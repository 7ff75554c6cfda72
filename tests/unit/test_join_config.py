from __future__ import annotations

import json
from pathlib import Path

import pytest

from edriver.agent.dial_in import join_config_of
from edriver.agent.settings import AgentSettings
from edriver.common.join_config import JoinConfig, at_port
from edriver.driver.agents.agent_identity import AgentIdentity

INVITATION = JoinConfig(
    "run", "a", 3, ("10.0.0.1:5", "[fd00::1]:5"), authority="PEM", token="s3cret", environment={"A": "1"}
)


def test_it_arrives_as_it_was_sent() -> None:
    assert JoinConfig.from_json(INVITATION.to_json()) == INVITATION


def test_what_a_later_version_adds_is_passed_over() -> None:
    later = {**json.loads(INVITATION.to_json()), "more": 1}
    assert JoinConfig.from_json(json.dumps(later).encode()) == INVITATION


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(b"[]", id="a-list"),
        pytest.param(b'{"token": "s3cret"}', id="without-what-it-needs"),
        pytest.param(b'{"token": "s3cret", "drivers": 5}', id="no-list-of-drivers"),
        pytest.param(b"\xff", id="no-text"),
    ],
)
def test_anything_else_is_refused_without_being_repeated(text: bytes) -> None:
    with pytest.raises(ValueError, match=r"^not a join config of edriver's driver \(\w+\)$") as caught:
        JoinConfig.from_json(text)
    assert "s3cret" not in str(caught.value)


def test_a_log_does_not_show_the_token() -> None:
    assert "s3cret" not in f"{INVITATION!r} {INVITATION}"


@pytest.mark.parametrize(
    ("address", "text"),
    [
        pytest.param("10.0.0.1", "10.0.0.1:7", id="ipv4"),
        pytest.param("fd00::1", "[fd00::1]:7", id="ipv6"),
        pytest.param("host", "host:7", id="name"),
    ],
)
def test_an_address_and_a_port(address: str, text: str) -> None:
    assert at_port(address, 7) == text


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        pytest.param(["--slots", "0"], "--slots is 0: a host has 1 to 4096 slots", id="no-slot"),
        pytest.param(["--slots", "4294967295"], "--slots is 4294967295: a host has 1 to 4096", id="too-many-slots"),
        pytest.param(["--host", "a b"], "--host is 'a b', which is not a host name", id="two-words"),
        pytest.param(["--host", "x" * 300], "--host has 300 characters", id="long"),
    ],
)
def test_an_agent_that_dials_in_checks_what_it_will_say(tmp_path: Path, words: list[str], sentence: str) -> None:
    credentials = tmp_path / "run.json"
    credentials.touch(mode=0o600)
    credentials.write_bytes(JoinConfig("run", "", 0, ("a:1",)).to_json())
    with pytest.raises(ValueError, match=sentence):
        join_config_of(["--driver", "a:1", "--credentials", str(credentials), "--host", "h", *words])


def test_no_secret_is_shown() -> None:
    join_config = JoinConfig("run", "a", 1, ("a:1",), token="hush", secret="abcdef")
    identity = AgentIdentity("a", 1, b"\xab\xcd\xef")
    settings = AgentSettings("run", "a", 1, "", Path("/"), secret=b"\xab\xcd\xef")
    shown = f"{join_config!r} {identity!r} {settings!r}"
    assert not any(word in shown for word in ("hush", "abcdef", r"\xab"))
