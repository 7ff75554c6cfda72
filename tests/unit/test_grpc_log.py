"""What gRPC's core may write: what its user asks for, and else nothing."""

from __future__ import annotations

import subprocess
import sys

import pytest

from edriver.wire.grpc_log import LEVEL_VARIABLE, silence_grpc, with_users_level


@pytest.mark.parametrize(
    ("given", "ours"),
    [(None, "NONE"), ("ERROR", "NONE"), ("", "NONE"), ("NONE", "NONE"), ("debug", "debug"), ("INFO", "INFO")],
)
def test_it_writes_what_its_user_asks_for_and_scripts_have_what_was_given(given: str | None, ours: str) -> None:
    before = {"A": "b"} if given is None else {"A": "b", LEVEL_VARIABLE: given}
    environ = dict(before)
    for _ in range(2):  # an agent has its driver's environment
        silence_grpc(environ)
        assert environ[LEVEL_VARIABLE] == ours
    assert with_users_level(environ) == ({"A": "b"} if given == "" else before)


def test_a_level_that_comes_later_is_the_users() -> None:
    environ: dict[str, str] = {}
    silence_grpc(environ)
    environ[LEVEL_VARIABLE] = "DEBUG"
    silence_grpc(environ)
    assert with_users_level(environ) == {LEVEL_VARIABLE: "DEBUG"}


@pytest.mark.parametrize("module", ["edriver.cli.main", "edriver.agent.main"])
def test_it_can_be_silenced_before_it_is_imported(module: str) -> None:
    """It looks at its environment once."""
    code = f"import sys, {module}; assert 'grpc' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
