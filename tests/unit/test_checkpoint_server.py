"""How a checkpoint server begins: its configuration, its memory, its agent that does not come."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from edriver.checkpoint_server import main
from edriver.checkpoint_server.main import half_of_memory
from edriver.common.checkpoint_server import ServerConfig

MACHINE = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.parametrize(
    ("limits", "memory"),
    [
        pytest.param({}, MACHINE // 2, id="no-limit"),
        pytest.param({"": "8192", "pod": "4096", "pod/worker": "max"}, 2048, id="the-lowest"),
        pytest.param({"pod": str(2**60)}, MACHINE // 2, id="above-the-machine"),
    ],
)
def test_without_a_limit_it_takes_half_of_the_memory(tmp_path: Path, limits: dict[str, str], memory: int) -> None:
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text("0::/pod/worker\n")
    (tmp_path / "cgroup/pod/worker").mkdir(parents=True)
    for folder, limit in limits.items():
        (tmp_path / "cgroup" / folder / "memory.max").write_text(f"{limit}\n")
    assert half_of_memory(tmp_path / "proc", tmp_path / "cgroup") == memory


def test_memory_is_known_without_cgroups(tmp_path: Path) -> None:
    assert half_of_memory(tmp_path, tmp_path) == MACHINE // 2


def test_a_configuration_comes_back_as_it_was() -> None:
    config = ServerConfig("/folder", "10.0.0.1", "/folder/tls", 77)
    assert ServerConfig.from_json(config.to_json()) == config
    assert ServerConfig.from_json(b'{"folder": "/folder", "of_a_later_release": 1}') == ServerConfig("/folder")


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        pytest.param(b"", "not the configuration of a checkpoint server", id="nothing"),
        pytest.param(b"[]", "not the configuration of a checkpoint server", id="no-object"),
        pytest.param(b"{}", "not the configuration of a checkpoint server", id="no-folder"),
        pytest.param(b'{"folder": "/", "address": "10.0.0.1"}', "only with the run's TLS credentials", id="no-tls"),
    ],
)
def test_what_is_no_configuration(text: bytes, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        ServerConfig.from_json(text)


def test_it_ends_if_its_agent_does_not_come(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(main, "ATTACH_TIMEOUT", 0.0)
    attached, ended = threading.Event(), threading.Event()
    main._await_agent(attached, ended)
    assert ended.is_set()
    attached.set()
    ended.clear()
    main._await_agent(attached, ended)
    assert not ended.is_set()
