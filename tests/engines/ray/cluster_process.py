"""A real Ray cluster of several raylets on this machine, a process of its own: orders on stdin, answers on stdout."""

from __future__ import annotations

import json
import os
import sys
from typing import Any

os.environ["RAY_USAGE_STATS_ENABLED"] = "0"

import ray
from ray.cluster_utils import Cluster

MEMORY = 80_000_000


def main() -> None:
    """Serve until stdin ends."""
    head = {"num_cpus": 0, "object_store_memory": MEMORY, "include_dashboard": sys.argv[1:] == ["dashboard"]}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    nodes: dict[str, Any] = {}
    print(json.dumps({"address": cluster.address}), flush=True)
    for line in sys.stdin:
        order = json.loads(line)
        answer: dict[str, Any] = {}
        match order.pop("do"):
            case "add":
                node = cluster.add_node(wait=True, object_store_memory=MEMORY, **order)
                nodes[node.node_id] = node
                answer["node"] = node.node_id
                answer["raylet"] = node.all_processes["raylet"][0].process.pid
            case "kill":
                cluster.remove_node(nodes.pop(order["node"]), allow_graceful=False)
            case "remove":
                cluster.remove_node(nodes.pop(order["node"]), allow_graceful=True)
            case "kill_gcs":
                cluster.head_node.kill_gcs_server()
            case "start_gcs":
                cluster.head_node.start_gcs_server()
        print(json.dumps(answer), flush=True)
    cluster.shutdown()
    ray.shutdown()


if __name__ == "__main__":
    main()
