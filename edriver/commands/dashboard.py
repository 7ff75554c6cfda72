"""`edriver dashboard`: serves a web page that follows a run, and opens this user's other runs."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import ipaddress
import secrets
import signal
import sys
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlencode

from edriver.client import Address, AsyncClient, RunError, here, living_names, living_runs
from edriver.client.requester import own_name
from edriver.commands.which_run import add_run_flags, address_of
from edriver.common.extras import missing_extra
from edriver.dashboard.assets import plotly_script
from edriver.dashboard.known_runs import KnownRuns
from edriver.history.records import RecordError
from edriver.system.record_folder import called
from edriver.text.command_parser import CommandParser

if TYPE_CHECKING:
    from edriver.dashboard.feed import Feed


def parser() -> argparse.ArgumentParser:
    """The flags."""
    made = CommandParser(
        prog="edriver dashboard",
        description="Serves a web page that follows a run, lists your runs on this machine, opens those that have "
        "ended, and compares several. It serves until you press Ctrl-C. The complete URL grants read access to these "
        "runs only; with --control, a second URL lets its holder steer the run.",
    )
    made.add_argument("--address", default="127.0.0.1", help="the address to listen at (default: %(default)s)")
    made.add_argument("--port", type=int, default=0, help="the port (default: any free port)")
    made.add_argument(
        "--records", metavar="DIR", type=Path, help="the folder that you gave to your runs with --records"
    )
    made.add_argument(
        "--control",
        action="store_true",
        help="print a second URL, whose page also drains, undrains, resizes and stops the run; for a run elsewhere, "
        "this needs the file of --control-credentials",
    )
    add_run_flags(made, "--status-credentials")
    return made


def dashboard(arguments: Sequence[str]) -> str:
    """Serve until the operator ends it; returns how it ended.

    Raises:
        RunError: there is no such run, its driver does not answer, or the page cannot be served.
    """
    flags = parser().parse_args(arguments)
    if missing := missing_extra("edriver dashboard", "aiohttp", "dashboard"):
        raise RunError(missing)
    plotly_script()
    if flags.credentials is not None and flags.records is not None:
        raise RunError("--records is for runs of this machine: the page of a run elsewhere shows that run alone")
    if flags.control and not is_loopback(flags.address):
        raise RunError(
            f"--control with --address {flags.address}: the page is not encrypted, so others on the network could "
            "steer the run. Leave --address out, and go through ssh -L PORT:127.0.0.1:PORT HOST"
        )
    run, runs = _shown(flags)
    if flags.control and not isinstance(run, Address):
        raise RunError("--control steers one run in progress: name it with --run")
    return asyncio.run(_serve(run, runs, flags.address, flags.port, flags.control))


def is_loopback(address: str) -> bool:
    """Whether only this machine reaches what listens there."""
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return address == "localhost"


def _shown(flags: argparse.Namespace) -> tuple[Address | str | None, KnownRuns | None]:
    """What the page shows first, a run in progress, the id of another, or the list of runs; and which runs it lists.

    Raises:
        RunError: the run that is meant is nowhere.
    """
    if flags.credentials is not None or flags.driver is not None:
        return address_of(flags), None
    runs = KnownRuns(flags.records)
    living = living_runs()
    if flags.run is None:
        return (here(next(iter(living))) if len(living) == 1 else None), runs
    if called(flags.run, living_names(living)):
        return here(flags.run), runs
    run_id = runs.id_of(flags.run)
    try:
        runs.records(run_id)
    except RecordError as error:
        raise RunError(f"no run {flags.run} is in progress, and {error}") from None
    return run_id, runs


async def _serve(run: Address | str | None, runs: KnownRuns | None, address: str, port: int, control: bool) -> str:
    from edriver.dashboard.feed import Feed
    from edriver.dashboard.feeds import Feeds
    from edriver.dashboard.server import PageServer, runner_of
    from edriver.dashboard.steering import Steering

    async with AsyncExitStack() as stack:
        feed, steering = None, None
        if isinstance(run, Address):
            client = await stack.enter_async_context(AsyncClient(run, requester=f"{own_name()} (dashboard)"))
            if control:
                await client.check_may_steer()
                steering = Steering(client, draw_secret)
            feed = Feed(client, time.time)
            await feed.begin()
        secret, control_secret = draw_secret(), draw_secret()
        feeds = Feeds(time.time)
        stack.push_async_callback(feeds.close)
        page = PageServer(feed, secret, runs, feeds, steering, control_secret)
        runner = runner_of(page.app)
        await runner.setup()
        stack.push_async_callback(runner.cleanup)
        try:
            server = await page.callers.listen(runner, address, port)
        except (OSError, OverflowError) as error:
            raise RunError(f"no page can be served at {address}, port {port}: {error}") from None
        host, bound = server.sockets[0].getsockname()[:2]
        shown = f"[{host}]" if ":" in host else host
        name = "your runs" if run is None else f"run {run if isinstance(run, str) else run.run_id}"
        path = f"run?{urlencode({'run': run})}" if isinstance(run, str) else ""
        sys.stdout.write(f"{name}: http://{shown}:{bound}/{secret}/{path} (Ctrl-C ends it)\n")
        if control:
            sys.stdout.write(f"{name}: to steer it: http://{shown}:{bound}/{control_secret}/\n")
        sys.stdout.flush()
        with contextlib.closing(server):
            await _until_interrupted(feed)
    return f"{name}: the page is closed"


def draw_secret() -> str:
    """128 random bits for a URL, or for a page."""
    return secrets.token_urlsafe(16)


async def _until_interrupted(feed: Feed | None) -> None:
    """Follow the run, if there is one; returns when the operator has had enough."""
    enough = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, enough.set)
    following = asyncio.create_task(asyncio.sleep(0.0) if feed is None else feed.follow())
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
