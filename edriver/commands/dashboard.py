"""`edriver dashboard`: serves a web page that follows a run."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import secrets
import signal
import sys
import time
from collections.abc import Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING

from edriver.client import Address, AsyncClient, RunError
from edriver.commands.which_run import add_run_flags, address_of
from edriver.dashboard.assets import INSTALL_COMMAND, plotly_script

if TYPE_CHECKING:
    from edriver.dashboard.feed import Feed


def parser() -> argparse.ArgumentParser:
    """The flags."""
    made = argparse.ArgumentParser(
        prog="edriver dashboard",
        description="Serves a web page that follows a run, and stays when it has ended, until you press Ctrl-C. "
        "Its whole address grants read access, and nothing else.",
        allow_abbrev=False,
    )
    made.add_argument("--address", default="127.0.0.1", help="the address to listen at (default: %(default)s)")
    made.add_argument("--port", type=int, default=0, help="the port (default: any that is free)")
    add_run_flags(made, "--status-credentials")
    return made


def dashboard(arguments: Sequence[str]) -> str:
    """Serve until the operator ends it; returns how it ended.

    Raises:
        RunError: there is no such run, its driver does not answer, or the page cannot be served.
    """
    flags = parser().parse_args(arguments)
    if find_spec("aiohttp") is None:
        raise RunError(f"the package aiohttp is missing, which serves the page: {INSTALL_COMMAND}")
    plotly_script()
    return asyncio.run(_serve(address_of(flags), flags.address, flags.port))


async def _serve(run: Address, address: str, port: int) -> str:
    from edriver.dashboard.feed import Feed
    from edriver.dashboard.server import PageServer, runner_of

    async with AsyncClient(run) as client:
        feed = Feed(client, time.time)
        await feed.begin()
        secret = secrets.token_urlsafe(16)
        page = PageServer(feed, secret)
        runner = runner_of(page.app)
        await runner.setup()
        try:
            try:
                server = await page.callers.listen(runner, address, port)
            except (OSError, OverflowError) as error:
                raise RunError(f"no page can be served at {address}, port {port}: {error}") from None
            host, bound = server.sockets[0].getsockname()[:2]
            shown = f"[{host}]" if ":" in host else host
            sys.stdout.write(f"run {run.run_id}: http://{shown}:{bound}/{secret}/ (Ctrl-C ends it)\n")
            sys.stdout.flush()
            with contextlib.closing(server):
                await _until_interrupted(feed)
        finally:
            await runner.cleanup()
    return f"run {run.run_id}: the page is closed"


async def _until_interrupted(feed: Feed) -> None:
    """Follow the run; returns when the operator has had enough."""
    enough = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, enough.set)
    following = asyncio.create_task(feed.follow())
    waiting = asyncio.create_task(enough.wait())
    try:
        await asyncio.wait({following, waiting}, return_when=asyncio.FIRST_COMPLETED)
        if following.done():
            following.result()  # the run has ended; a fault of ours is not kept quiet
        await waiting
    finally:
        following.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await following
