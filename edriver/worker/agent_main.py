"""The agent's command line. A launcher writes it; nobody types it."""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import sys
from collections.abc import Sequence
from pathlib import Path


def parser() -> argparse.ArgumentParser:
    """The agent's options."""
    made = argparse.ArgumentParser(prog="edriver-agent", description="Runs one host's workers for an edriver driver.")
    made.add_argument("--driver", required=True, help="where the driver listens: unix:/path or host:port")
    made.add_argument("--run-id", required=True, help="the run that this agent belongs to")
    made.add_argument("--host", required=True, help="the name under which discovery knows this host")
    made.add_argument("--agent-id", required=True, type=int, help="names this agent to the driver")
    made.add_argument("--address", required=True, help="where this host's workers reach each other")
    made.add_argument("--folder", required=True, type=Path, help="a private folder for this agent's sockets")
    return made


async def serve(options: argparse.Namespace) -> int:
    """Run the agent; returns its exit code."""
    # Imported here, because gRPC looks at GRPC_ENABLE_FORK_SUPPORT when it is imported.
    import grpc.aio

    from edriver.v1 import agent_pb2_grpc
    from edriver.worker.agent import Agent, AgentSettings
    from edriver.worker.streams import CHANNEL_OPTIONS

    settings = AgentSettings(options.run_id, options.host, options.agent_id, options.address, options.folder)
    async with grpc.aio.insecure_channel(options.driver, options=CHANNEL_OPTIONS) as channel:
        return await Agent(settings, agent_pb2_grpc.AgentServiceStub(channel), os.environ).run()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the agent; returns its exit code."""
    from edriver.worker.ready_socket import check_folder

    options = parser().parse_args(arguments)
    logging.basicConfig(level=logging.WARNING, format=f"edriver agent on {options.host}: %(message)s")
    try:
        check_folder(options.folder)
    except ValueError as error:
        parser().error(str(error))
    # Our processes are started by vfork and exec, which gRPC need not know of.
    os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "0"
    return asyncio.run(serve(options))


if __name__ == "__main__":
    sys.exit(main())
