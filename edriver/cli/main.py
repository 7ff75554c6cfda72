"""The command line, in horovodrun's words: `edriver -np 4 --host-discovery-script ./hosts.sh python train.py`.

Kept light: what takes long to import is imported once the first line has been printed.
"""

from __future__ import annotations

import argparse
import logging
import math
import os
import secrets
import sys
from collections.abc import Sequence
from typing import NoReturn

from edriver.cli.hints import hint_of
from edriver.cli.horovodrun_flags import refusal_of
from edriver.cli.subcommands import EXIT_FAILED, EXIT_USAGE, GROUPS, SUBCOMMANDS
from edriver.cli.torchrun_flags import TORCHRUN_GROUP, add_torchrun_flags
from edriver.common import defaults
from edriver.common.stall_limits import DEFAULT_STALL_LIMITS, text_of
from edriver.driver.core.mode import Mode
from edriver.driver.core.settings import HOST_COOLDOWN, SLOT_COOLDOWN
from edriver.system.descriptors import raise_limit
from edriver.system.record_folder import MAX_KEPT_RUNS

_DESCRIPTION_TEXT = """\
Trains with PyTorch on hosts that come and go: starts the command once per slot, and keeps the
training going, in the same processes, while hosts are added, removed or lost.

  edriver [run] -np N [options] command [argument ...]
"""

_EXAMPLE_TEXT = """\
example:
  edriver -np 4 --min-np 2 --max-np 8 --host-discovery-script ./discover_hosts.sh python train.py

  Training starts with 4 workers, or after --start-timeout with the 2 to 4 that there is room for. From then on it
  follows the hosts that the script prints, one line host:slots each, between 2 and 8 workers.

exit codes:
  0 success; 1 the run failed; 2 bad flags; 128 + n stopped by signal n (130: Ctrl-C, 143: SIGTERM)
"""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """One sentence instead of the whole usage."""
        self.exit(EXIT_USAGE, f"edriver: {message} (edriver --help explains the flags)\n")


def _subcommands_text() -> str:
    lines: list[str] = []
    for title, group in GROUPS.items():
        usages = [f"edriver {each.name} {each.arguments}" for each in group]
        lines += [f"{title}:", *(f"  {usage:32} {each.summary}" for usage, each in zip(usages, group, strict=True))]
    return "\n".join([*lines, "", "edriver COMMAND --help tells more of each."])


def _seconds(text: str) -> float:
    """A number of seconds; its range is for Settings to judge."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds")
    return value


def _count(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number") from None


def parser() -> argparse.ArgumentParser:
    """The flags, and the command that they run."""
    top = flags_parser()
    top.add_argument("command", nargs=argparse.REMAINDER, metavar="command", help="the program of a worker")
    return top


def flags_parser() -> argparse.ArgumentParser:
    """The flags alone. Which of them must be given, and which fit together, `edriver.driver.options` decides."""
    top = _Parser(
        prog="edriver",
        usage="edriver -np N [options] command [argument ...]",
        description=f"{_DESCRIPTION_TEXT}\n{_subcommands_text()}",
        epilog=_EXAMPLE_TEXT,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    top.add_argument("-v", "--version", action="store_true", help="print the version and exit")
    top.add_argument(
        "--print-completion",
        choices=("bash", "zsh"),
        help="print what completes these flags in that shell and exit (bash: source it)",
    )
    _add_worker_flags(top.add_argument_group("workers"))
    _add_host_flags(top.add_argument_group("hosts (one of the first five; none: this machine)"))
    _add_ssh_flags(top.add_argument_group("other hosts (reached by ssh, as your ssh configuration says)"))
    _add_failure_flags(top.add_argument_group("waiting and failures (times in seconds)"))
    _add_output_flags(top.add_argument_group("output"))
    add_torchrun_flags(top.add_argument_group(TORCHRUN_GROUP))
    return top


def _add_worker_flags(group: argparse._ArgumentGroup) -> None:
    group.add_argument("-np", "--num-proc", dest="np", type=_count, metavar="N", help="workers to start with")
    group.add_argument(
        "--min-np",
        "--min-num-proc",
        dest="min_np",
        type=_count,
        metavar="N",
        help="fewest to go on with (default: -np)",
    )
    group.add_argument(
        "--max-np",
        "--max-num-proc",
        dest="max_np",
        type=_count,
        metavar="N",
        help="most to ever use (default: as many as there are; -np on fixed hosts)",
    )
    group.add_argument(
        "--mode",
        choices=("elastic", "restart"),
        help="how the script is kept going: in its processes, by edriver.run, or restarted from its checkpoint like "
        "under torchrun (default: restart for a Python script that does not use edriver)",
    )


def _add_host_flags(group: argparse._ArgumentGroup) -> None:
    group.add_argument("-H", "--hosts", metavar="HOST:SLOTS,...", help="hosts that stay as they are")
    group.add_argument("-hostfile", "--hostfile", metavar="FILE", help="the same from a file, one host a line")
    group.add_argument(
        "--host-discovery-script", metavar="SCRIPT", help="a program, run every second, that prints a host a line"
    )
    group.add_argument(
        "--hosts-dial-in",
        action="store_true",
        help="hosts on which you have `edriver agent --driver HOST:PORT --credentials FILE` started",
    )
    group.add_argument(
        "--discovery",
        metavar="NAME[=ARGUMENT]",
        help="a source of hosts that a package brings (entry points edriver.discovery)",
    )
    group.add_argument(
        "--launcher",
        metavar="NAME",
        help="what starts edriver on all hosts: local, ssh, or what a package brings (entry points edriver.launchers; "
        "default: what suits each host)",
    )
    group.add_argument(
        "--credentials", metavar="FILE", help="with --hosts-dial-in: where to write what those agents have to read"
    )
    group.add_argument(
        "--port",
        type=_count,
        metavar="PORT",
        help="the driver's one TCP port, for hosts other than its own (default: any that is free)",
    )
    group.add_argument(
        "--slots-per-host",
        type=_count,
        default=1,
        metavar="N",
        help="slots of a host that is listed without (default: %(default)s)",
    )


def _add_ssh_flags(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "-p",
        "--ssh-port",
        dest="ssh_port",
        type=_count,
        metavar="PORT",
        help="where sshd listens (default: as configured)",
    )
    group.add_argument(
        "-i",
        "--ssh-identity-file",
        dest="ssh_identity_file",
        metavar="FILE",
        help="the private key to show (default: as configured)",
    )
    group.add_argument(
        "--network-interface",
        metavar="NAME",
        help="through which hosts reach one another (default: whichever leads there)",
    )
    group.add_argument(
        "--insecure",
        action="store_true",
        help="neither TLS nor token between hosts: for networks of which you are sure",
    )


def _add_failure_flags(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--start-timeout",
        type=_seconds,
        default=defaults.START_TIMEOUT,
        metavar="S",
        help="wait so long for -np workers, then start with --min-np or more (default: %(default)g)",
    )
    group.add_argument(
        "--elastic-timeout",
        type=_seconds,
        default=defaults.ELASTIC_TIMEOUT,
        metavar="S",
        help="give up when fewer than --min-np workers are there for so long (default: %(default)g)",
    )
    group.add_argument(
        "--stall-timeout",
        action="append",
        default=[],
        metavar="[PHASE=]S",
        help="give up a worker that makes no step for so long; of one phase (init, step, commit, eval, save) or of "
        f"all, 0 for ever (default: {text_of(DEFAULT_STALL_LIMITS)})",
    )
    group.add_argument(
        "--exit-timeout",
        type=_seconds,
        default=defaults.EXIT_TIMEOUT,
        metavar="S",
        help="give up a worker whose script has ended and whose process has not, after so long without output or use "
        "of a processor: exit hooks that upload something may take their time (default: %(default)g)",
    )
    group.add_argument(
        "--worker-lease",
        type=_seconds,
        default=defaults.WORKER_LEASE,
        metavar="S",
        help="break the round of a worker whose process is stopped or frozen for so long (default: %(default)g)",
    )
    group.add_argument(
        "--driver-timeout",
        type=_seconds,
        default=defaults.DRIVER_TIMEOUT,
        metavar="S",
        help="let hosts train on while the driver is silent for so long; where it is known to be gone, they end "
        "within seconds (default: %(default)g)",
    )
    group.add_argument(
        "--reset-limit",
        "--max-restarts",
        dest="reset_limit",
        type=_count,
        metavar="N",
        help="give up after more than N failures; preemptions and resizes are none (default: never)",
    )
    group.add_argument(
        "--reset-window",
        type=_seconds,
        default=math.inf,
        metavar="S",
        help="count only the failures of the last S (default: all)",
    )
    group.add_argument(
        "--blacklist-cooldown-range",
        "--cooldown-range",
        dest="cooldown_range",
        type=_seconds,
        nargs=2,
        metavar=("LOW", "HIGH"),
        help="how long a slot whose worker failed, or a host whose slots did, is left alone before it is used again; "
        "doubles from LOW up to HIGH (default: a slot 0, then {:g} to {:g}; a host {:g} to {:g})".format(
            *SLOT_COOLDOWN, *HOST_COOLDOWN
        ),
    )


def _add_output_flags(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--output-filename", metavar="DIR", help="also write each worker's output to files below DIR")
    group.add_argument("--name", metavar="NAME", help="what you call this run, where runs are listed (edriver runs)")
    group.add_argument(
        "--tag",
        metavar="NAME=VALUE",
        action="append",
        default=[],
        help="by which you find it again: edriver runs --tag NAME=VALUE; may be given several times",
    )
    group.add_argument(
        "--no-logs",
        action="store_true",
        help="keep nothing of the workers' output for edriver logs and all others who may ask how the run stands",
    )
    group.add_argument("--event-log", metavar="FILE", help="append a line of JSON for everything that happens")
    group.add_argument(
        "--records",
        metavar="DIR",
        help="keep the run's records (what was run, all that happens, a trace for Perfetto) in DIR/RUN_ID (default: "
        f"in $XDG_STATE_HOME/edriver, or ~/.local/state/edriver, those of the latest {MAX_KEPT_RUNS} runs)",
    )
    group.add_argument("--no-records", action="store_true", help="keep none")
    group.add_argument(
        "--status-credentials",
        metavar="FILE",
        help="let others ask how the run stands, by `edriver status --credentials FILE`: where to write what they show",
    )
    group.add_argument(
        "--control-credentials",
        metavar="FILE",
        help="let others steer the run, by `edriver drain` and the like with --credentials FILE: where to write it",
    )
    group.add_argument(
        "--metrics-port",
        type=_count,
        metavar="PORT",
        help="have metrics for Prometheus at http://127.0.0.1:PORT/metrics (0: any port that is free; it is printed)",
    )
    group.add_argument(
        "--metrics-address",
        metavar="ADDRESS",
        help="the same at another address, for all who reach it: it asks for no token and does not encrypt",
    )
    group.add_argument(
        "--explain", action="store_true", help="print all settings, where they come from, and all bounds; start nothing"
    )
    group.add_argument("--verbose", action="store_true", help="print every event and every action of the driver")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    arguments = sys.argv[1:] if arguments is None else arguments
    try:
        raise_limit()
    except ValueError as error:
        sys.stderr.write(f"edriver: {error}\n")
        return EXIT_FAILED
    first = arguments[0] if arguments else ""
    if first in SUBCOMMANDS:
        return SUBCOMMANDS[first].run(arguments[1:])
    if first == "help":
        return main([*arguments[1:2], "--help"])
    if first == "run":
        arguments = arguments[1:]
    top = parser()
    flags, unknown = top.parse_known_args(arguments)
    if flags.version:
        return _print_version()
    if flags.print_completion:
        return _print_completion(flags.print_completion)
    if unknown:
        top.error(refusal_of(unknown[0]))

    if flags.np is None and (hint := hint_of(flags.command)):
        top.error(hint)

    from edriver.driver.options import UsageError, options_of

    # Before gRPC is imported: it would print a line for each failed handshake at the driver's port.
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
    try:
        options = options_of(flags)
    except UsageError as error:
        top.error(str(error))

    if flags.explain:
        from edriver.cli.explain import explanation

        sys.stdout.write(f"{explanation(top, arguments, options)}\n")
        return 0

    from edriver.driver.observe.console.output import Output
    from edriver.system.record_folder import make

    run_id = secrets.token_hex(4)
    records, no_records = None, ""
    try:
        if options.records is not None:
            records = make(options.records, run_id)
        elif not flags.no_records:
            no_records = "your home directory is not known"
    except OSError as error:
        no_records = f"{error.filename or options.records} cannot be made: {error.strerror}"
        if options.records_asked:
            top.error(f"--records: {no_records}")
    output = Output()
    output.take_logs(verbose=options.verbose)
    log = logging.getLogger("edriver")
    restarts = options.mode.mode is Mode.RESTART
    log.info("run %s: %s%s", run_id, options, f"; {options.mode}" if restarts else "")
    if records:
        log.info("records: %s", records)
    if no_records:
        log.warning("the run keeps no records: %s (--records DIR has them elsewhere)", no_records)
    try:
        from edriver.driver.session import run

        return run(options, run_id, output, records)
    finally:
        output.close()


def _print_version() -> int:
    from edriver.common.release import VERSION

    sys.stdout.write(f"edriver {VERSION}\n")
    return 0


def _print_completion(shell: str) -> int:
    from edriver.cli.completion import completion

    sys.stdout.write(completion(shell))
    return 0
