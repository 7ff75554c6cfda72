"""`edriver --etcd`: a run whose journal lies in etcd, and the drivers that stand by to take it over."""

from __future__ import annotations

import argparse
import os
import secrets
import socket
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from edriver.cli.complaint import complain
from edriver.cli.exit_codes import EXIT_FAILED
from edriver.cli.resuming.resume import go_on_with
from edriver.driver.config.usage_error import UsageError
from edriver.driver.journal.etcd_client import EtcdAddress, EtcdClient
from edriver.driver.journal.etcd_journal import EtcdJournal
from edriver.driver.journal.journal import JournalError
from edriver.driver.journal.run_name import check_run_name
from edriver.system.own_addresses import is_loopback
from edriver.system.private_files import NotOwnError, OwnFolder
from edriver.system.record_folder import make

if TYPE_CHECKING:
    from edriver.driver.config.options import RunOptions


def journal_in_etcd(flags: argparse.Namespace, environ: Mapping[str, str]) -> EtcdJournal:
    """The journal of the run with this name, which no process needs to have yet.

    Args:
        flags: the parsed command line.
        environ: the environment.

    Raises:
        UsageError: it cannot be had.
    """
    if flags.run is None:
        raise UsageError("--etcd keeps the run under a name: give --run NAME, too")
    if flags.no_journal:
        raise UsageError("--etcd keeps the journal in etcd: leave out --no-journal")
    try:
        name = check_run_name(flags.run)
    except ValueError as error:
        raise UsageError(f"--run: {error}") from None
    try:
        address = EtcdAddress.parse(flags.etcd, environ)
        client = EtcdClient(address)
    except ValueError as error:
        raise UsageError(f"--etcd: {error}") from None
    except ImportError as error:
        raise UsageError(f"--etcd needs aetcd: pip install 'edriver[etcd]' ({error})") from None
    stays_here = all(is_loopback(member.rpartition(":")[0].strip("[]")) for member in address.members)
    if not address.secure and not stays_here and not flags.insecure:
        raise UsageError(
            "--etcd: the journal holds the run's keys, which http:// shows to the network: give https://, or --insecure"
        )
    return EtcdJournal(client, name, f"{socket.gethostname()}, process {os.getpid()} ({secrets.token_hex(4)})")


def lead(journal: EtcdJournal, run_name: str, *, standby: bool) -> bool:
    """Become the driver of the run with this name.

    Args:
        journal: its journal.
        run_name: the name, for messages.
        standby: whether to wait for the end of the driver that it has.

    Returns:
        whether this process is it; no: the run has ended while it waited.

    Raises:
        JournalError: it has a driver, or etcd cannot be reached.
    """
    if journal.acquire():
        return True
    if not standby:
        raise JournalError(
            f"run {run_name} already has a driver: {journal.holder or 'unknown'}. Give --standby to wait until that "
            "driver is gone"
        )
    complain(f"edriver: standing by for run {run_name}, whose driver is {journal.holder or 'about to end'}")
    if journal.wait():
        return True
    complain(f"edriver: run {run_name} has ended")
    return False


def go_on(journal: EtcdJournal, begin_anew: Callable[[], NoReturn] | None, *, port: int, verbose: bool) -> int:
    """Go on with the run in this journal, to its end; returns the exit code.

    Args:
        journal: the journal.
        begin_anew: see `resume_named`.
        port: where this driver is to listen; 0: where the last one did.
        verbose: whether every event is logged.
    """
    try:
        ended = go_on_with(journal, _records_of, verbose=verbose, port=port)
        if ended.stopped_before and begin_anew is not None:
            begin_anew()
        return ended.code
    except JournalError as error:
        journal.close()
        complain(f"edriver: {error}")
        return EXIT_FAILED


def _records_of(options: RunOptions, run_id: str) -> Path | None:
    """The folder of the run's records on this machine, which may share it with the machine of the driver before."""
    if options.records is None:
        return None
    folder = options.records / run_id
    try:
        if not folder.is_dir():
            return make(options.records, run_id)
        with OwnFolder(folder):
            return folder
    except NotOwnError as error:
        raise JournalError(f"the records cannot be continued: {error}") from None
    except OSError as error:
        raise JournalError(f"the records {folder} cannot be made: {error.strerror}") from None
