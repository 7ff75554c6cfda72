"""Entry points: which names there are, and what becomes of one that cannot be used."""

from __future__ import annotations

from importlib.metadata import EntryPoint, EntryPoints

import pytest

from edriver.driver.config.plugins import PluginError, plugin


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    every = EntryPoints(
        [
            EntryPoint("good", "os:sep", "group"),
            EntryPoint("twice", "os:sep", "group"),
            EntryPoint("twice", "os:altsep", "group"),
            EntryPoint("broken", "no_such_module_here:thing", "group"),
            EntryPoint("else", "os:sep", "other"),
        ]
    )
    monkeypatch.setattr("importlib.metadata.entry_points", every.select)


@pytest.mark.usefixtures("installed")
def test_a_name_is_loaded() -> None:
    assert plugin("group", "good") == "/"


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize(
    ("name", "message"),
    [
        pytest.param("else", "'else' is not installed, only broken, good, twice: install the package", id="unknown"),
        pytest.param("twice", "'twice' is provided by several packages: uninstall one of os:altsep, os:sep", id="two"),
        pytest.param("broken", "'broken' (no_such_module_here:thing) cannot be loaded: ModuleNotFound", id="broken"),
    ],
)
def test_a_name_that_cannot_be_used_is_answered_with_a_sentence(name: str, message: str) -> None:
    with pytest.raises(PluginError) as raised:
        plugin("group", name)
    assert message in str(raised.value)


@pytest.mark.parametrize(
    ("group", "name", "found"),
    [
        pytest.param("edriver.launchers", "dial-in", "DialInLauncher.of", id="dial-in"),
        pytest.param("edriver.launchers", "local", "LocalLauncher.of", id="local"),
        pytest.param("edriver.launchers", "ssh", "SshLauncher.of", id="ssh"),
        pytest.param("edriver.discovery", "hostfile", "hostfile_source", id="hostfile"),
        pytest.param("edriver.discovery", "list", "list_source", id="list"),
        pytest.param("edriver.discovery", "script", "script_source", id="script"),
    ],
)
def test_those_of_edrivers_own_are_there(group: str, name: str, found: str) -> None:
    assert plugin(group, name).__qualname__ == found
