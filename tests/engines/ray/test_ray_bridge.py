"""What the bridge makes of Ray's node table."""

from __future__ import annotations

import socket
from typing import Any

import pytest

from tests import needs

pytestmark = [
    pytest.mark.engines,
    pytest.mark.needs(needs.RAY),
]


def test_a_node_in_doubt_is_alive_only_if_its_raylet_listens(monkeypatch: pytest.MonkeyPatch) -> None:
    from edriver.driver.engines.ray import bridge

    def node(number: int, port: int, *, alive: bool = True) -> dict[str, Any]:
        address = {"NodeManagerAddress": "127.0.0.1", "NodeManagerPort": port}
        return {
            "NodeID": f"n{number}",
            "NodeName": f"name{number}",
            "Alive": alive,
            "Resources": {"CPU": 1.0},
            **address,
        }

    monkeypatch.setattr(bridge, "available_resources_per_node", lambda: {"n1": {"CPU": 1.0}})
    monkeypatch.setattr("ray._private.state.state.get_draining_nodes", lambda: {"n1": 0})
    with socket.create_server(("127.0.0.1", 0)) as listening, socket.create_server(("127.0.0.1", 0)) as closed:
        there, gone = listening.getsockname()[1], closed.getsockname()[1]
        closed.close()
        table = [node(1, there), node(2, gone), node(3, gone), node(4, there, alive=False)]
        described = bridge._described(table, {"n1", "n2", "n4"})
    assert [each["alive"] for each in described] == [True, False, True, False]
    assert [each["draining"] for each in described] == [True, False, False, False]
    assert described[0] == {
        "id": "n1",
        "name": "name1",
        "alive": True,
        "draining": True,
        "total": {"CPU": 1.0},
        "available": {"CPU": 1.0},
    }
