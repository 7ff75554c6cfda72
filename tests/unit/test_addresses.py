from __future__ import annotations

import socket
import threading
from typing import Any

import pytest

from edriver.agent.addresses import drivers_by_ssh, interface_of, own_address
from edriver.wire import driver_channel
from edriver.wire.driver_channel import target_of


@pytest.mark.parametrize(
    ("connection", "drivers", "found"),
    [
        pytest.param("", ("10.0.0.1:5",), ("10.0.0.1:5",), id="not-by-ssh"),
        pytest.param("10.0.0.9 40 10.0.0.2 22", ("name:5",), ("10.0.0.9:5", "name:5"), id="first-of-all"),
        pytest.param("10.0.0.1 40 10.0.0.2 22", ("name:5", "10.0.0.1:5"), ("10.0.0.1:5", "name:5"), id="once"),
        pytest.param("fd00::9 40 fd00::2 22", ("name:5",), ("[fd00::9]:5", "name:5"), id="ipv6"),
    ],
)
def test_the_address_from_which_ssh_has_come(connection: str, drivers: tuple[str, ...], found: tuple[str, ...]) -> None:
    assert drivers_by_ssh({"SSH_CONNECTION": connection} if connection else {}, drivers) == found


@pytest.mark.parametrize(
    ("drivers", "target"),
    [
        pytest.param(("unix:/a/b",), "unix:/a/b", id="unix"),
        pytest.param(("10.0.0.1:5", "10.0.0.2:5", "10.0.0.1:5"), "ipv4:10.0.0.1:5,10.0.0.2:5", id="several"),
        pytest.param(("[fd00::1]:5", "10.0.0.1:5"), "ipv6:[fd00::1]:5", id="of-the-first-ones-kind"),
        pytest.param(("no-such-host.invalid:5", "10.0.0.1:5"), "ipv4:10.0.0.1:5", id="a-name-that-is-not-known"),
    ],
)
def test_all_that_gRPC_is_to_try(drivers: tuple[str, ...], target: str) -> None:
    assert target_of(drivers) == target


@pytest.mark.parametrize("drivers", [(), ("no-such-host.invalid:5",), ("a" * 70 + ":5",)])
def test_a_driver_that_is_nowhere(drivers: tuple[str, ...]) -> None:
    with pytest.raises(ValueError, match="none of the driver's addresses"):
        target_of(drivers)


def test_a_name_server_that_does_not_answer_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = threading.Event()
    look_up = socket.getaddrinfo

    def silent(name: str, *args: Any, **kwargs: Any) -> Any:
        if name == "silent":
            answers.wait(20)
        return look_up(name, *args, **kwargs)

    monkeypatch.setattr(socket, "getaddrinfo", silent)
    monkeypatch.setattr(driver_channel, "RESOLVE_TIMEOUT", 0.1)
    assert target_of(("silent:5", "127.0.0.1:5")) == "ipv4:127.0.0.1:5"
    answers.set()


def test_the_address_that_the_driver_sees_if_it_is_ours() -> None:
    assert own_address("127.0.0.3") == "127.0.0.3"


def test_behind_a_translation_of_addresses_it_is_another() -> None:
    """Nothing here has that address: it is a documentation's."""
    try:
        found = own_address("203.0.113.7")
    except OSError:  # there is no way out of here
        return
    assert found != "203.0.113.7"


def test_the_address_of_an_interface() -> None:
    assert own_address("10.0.0.1", "lo") == "127.0.0.1"
    assert interface_of("127.0.0.1") == "lo"
    assert interface_of("203.0.113.7") is None
    with pytest.raises(ValueError, match="no network interface 'nosuch' with an address exists here"):
        own_address("10.0.0.1", "nosuch")
