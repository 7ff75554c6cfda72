"""A real Ray cluster of several raylets on this machine, a process of its own: orders on stdin, answers on stdout."""

from __future__ import annotations

import json
import os
import sys
from typing import Any, Final

os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_raylet_start_wait_time_s": "120"}

import ray
from ray._private.state import actors
from ray.autoscaler._private.constants import AUTOSCALER_RESOURCE_REQUEST_CHANNEL
from ray.cluster_utils import Cluster
from ray.experimental.internal_kv import _internal_kv_get
from ray.util import placement_group_table
from tenacity import Retrying, stop_after_attempt

MEMORY: Final = 80_000_000

START_ATTEMPTS: Final = 4
"""A raylet ends itself if its agents have not started within 15 s, as they may not on a machine that is busy."""


class Served:
    """A cluster; each method is an order."""

    def __init__(self, dashboard: bool) -> None:
        head = {"num_cpus": 0, "object_store_memory": MEMORY, "include_dashboard": dashboard}
        self.cluster = Cluster(initialize_head=True, head_node_args=head)
        self._nodes: dict[str, Any] = {}

    def add(self, **words: Any) -> dict[str, Any]:
        start = Retrying(stop=stop_after_attempt(START_ATTEMPTS), reraise=True)
        node = start(self.cluster.add_node, object_store_memory=MEMORY, **words)
        self._nodes[node.node_id] = node
        return {"node": node.node_id, "raylet": node.all_processes["raylet"][0].process.pid}

    def kill(self, node: str) -> dict[str, Any]:
        self.cluster.remove_node(self._nodes.pop(node), allow_graceful=False)
        return {}

    def alive(self) -> dict[str, Any]:
        self._connect()
        head = self.cluster.head_node.node_id
        return {"nodes": [node["NodeID"] for node in ray.nodes() if node["Alive"] and node["NodeID"] != head]}

    def kill_gcs(self) -> dict[str, Any]:
        self.cluster.head_node.kill_gcs_server()
        return {}

    def left(self) -> dict[str, Any]:
        self._connect()
        living = [each["Name"] or each["ActorClassName"] for each in actors().values() if each["State"] != "DEAD"]
        groups = [each["name"] for each in placement_group_table().values() if each["state"] != "REMOVED"]
        return {"names": living + groups}

    def demand(self) -> dict[str, Any]:
        self._connect()
        asked = _internal_kv_get(AUTOSCALER_RESOURCE_REQUEST_CHANNEL)
        return {"bundles": json.loads(asked) if asked else []}

    def metrics(self) -> dict[str, Any]:
        self._connect()
        nodes = [node for node in ray.nodes() if node["Alive"]]
        return {"urls": [f"http://{node['NodeManagerAddress']}:{node['MetricsExportPort']}" for node in nodes]}

    def _connect(self) -> None:
        if not ray.is_initialized():
            ray.init(self.cluster.address, log_to_driver=False, logging_level="ERROR")


def main() -> None:
    """Serve until stdin ends."""
    served = Served(sys.argv[1:] == ["dashboard"])
    dashboard = f"http://{served.cluster.head_node.webui_url}"
    print(json.dumps({"address": served.cluster.address, "dashboard": dashboard}), flush=True)
    for line in sys.stdin:
        order = json.loads(line)
        print(json.dumps(getattr(served, order.pop("do"))(**order)), flush=True)
    ray.shutdown()
    served.cluster.shutdown()


if __name__ == "__main__":
    main()
