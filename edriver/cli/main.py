"""The command line, in horovodrun's words: `edriver -np 4 --host-discovery-script ./hosts.sh python train.py`.

Kept light: what takes long to import is imported once the first line has been printed.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from edriver.cli.complaint import complain
from edriver.cli.hints import hint_of
from edriver.cli.refusals import refusal_of
from edriver.cli.resuming.resume_flags import add_resume_flags
from edriver.cli.subcommands import EXIT_FAILED, EXIT_USAGE, GROUPS, SUBCOMMANDS
from edriver.cli.torchrun_flags import TORCHRUN_GROUP, add_command_flags, add_torchrun_flags, take_variables
from edriver.common import defaults
from edriver.common.stall_limits import DEFAULT_STALL_LIMITS, text_of
from edriver.discovery.hosts import Devices, Slots
from edriver.driver.core.settings import HOST_COOLDOWN, SLOT_COOLDOWN
from edriver.driver.flags.engine_flags import add_engine_flags
from edriver.system.descriptors import raise_limit
from edriver.system.record_folder import MAX_KEPT_RUNS
from edriver.text.printable import printable_line
from edriver.wire.grpc_log import silence_grpc

_DESCRIPTION_TEXT = """\
Elastic training for PyTorch: starts the command once per slot and keeps training, in the same
processes, while hosts are added, removed or lost.

  edriver [run] -np N [options] command [argument ...]
"""

_EXAMPLE_TEXT = """\
example:
  edriver -np 4 --min-np 2 --max-np 8 --host-discovery-script ./discover_hosts.sh python train.py

  Training starts with 4 workers or, after --start-timeout, with as many as there are slots for, at least 2. From then
  on it follows the hosts that the script prints (host:slots, one per line), with 2 to 8 workers.

exit codes:
  0 success; 1 the run failed; 2 invalid flags; 75 another driver has the run (--etcd); 128 + n stopped by signal n
  (130: Ctrl-C, 143: SIGTERM)
"""


class _Parser(argparse.ArgumentParser):
    def parse_known_args(self, args: Any = None, namespace: Any = None) -> tuple[Any, list[str]]:
        """Flags may be written with underscores, as torchrun's often are."""
        words = list(sys.argv[1:] if args is None else args)
        while True:
            copy = None if namespace is None else argparse.Namespace(**vars(namespace))
            flags, unknown = super().parse_known_args(words, copy)
            at = next((at for at, word in enumerate(words) if word in unknown and self._with_dashes(word)), None)
            if at is None:
                return flags, unknown
            words[at] = self._with_dashes(words[at])

    def _with_dashes(self, word: str) -> str:
        """A flag that is known with dashes in place of its underscores; empty: it is none."""
        flag, equals, value = word.partition("=")
        dashed = flag[:2] + flag[2:].replace("_", "-")
        return dashed + equals + value if dashed != flag and dashed in self._option_string_actions else ""

    def error(self, message: str) -> NoReturn:
        """One sentence instead of the whole usage."""
        self.exit(EXIT_USAGE, f"edriver: {printable_line(message)} (see edriver --help)\n")


def _subcommands_text() -> str:
    lines: list[str] = []
    for title, group in GROUPS.items():
        usages = [f"edriver {each.name} {each.arguments}" for each in group]
        lines += [f"{title}:", *(f"  {usage:32} {each.summary}" for usage, each in zip(usages, group, strict=True))]
    return "\n".join([*lines, "", "See edriver COMMAND --help for the flags of each."])


def _seconds(text: str) -> float:
    """A number of seconds; its range is for Settings to judge."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds")
    return value


class _Workers(argparse.Action):
    """A number, or `auto`; this does not replace a number, which is what it came to when the run started."""

    def __call__(
        self,
        _parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        _option_string: str | None = None,
    ) -> None:
        """Take it."""
        if values != Devices.AUTO:
            try:
                setattr(namespace, self.dest, int(values))
            except ValueError:
                raise argparse.ArgumentError(self, f"{values!r} is neither a whole number nor auto") from None
        elif not isinstance(getattr(namespace, self.dest, None), int):
            setattr(namespace, self.dest, Devices.AUTO)


def _slots(text: str) -> Slots:
    """A number, or what is counted."""
    try:
        return Devices(text.lower())
    except ValueError:
        pass
    try:
        return int(text)
    except ValueError:
        counted = ", ".join(Devices)
        raise argparse.ArgumentTypeError(
            f"{text!r} is neither a whole number nor one of {counted}: other devices are not counted"
        ) from None


def _count(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number") from None


def parser(environ: Mapping[str, str] | None = None) -> argparse.ArgumentParser:
    """The flags, and the command that they run.

    Args:
        environ: where torchrun's variables are flags that were not given; None: nowhere.
    """
    top = flags_parser()
    take_variables(top, environ or {})
    top.add_argument(
        "command",
        nargs=argparse.REMAINDER,
        metavar="command",
        help="the program that each worker runs, and its arguments",
    )
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
        help="print a completion script for this shell and exit (bash: source it)",
    )
    _add_worker_flags(top.add_argument_group("workers"))
    _add_host_flags(top.add_argument_group("hosts (at most one of the first five; default: this machine)"))
    add_engine_flags(top.add_argument_group("hosts of a cluster (at most one, in place of the flags above)"))
    _add_ssh_flags(top.add_argument_group("other hosts (reached by ssh, with your ssh configuration)"))
    _add_failure_flags(top.add_argument_group("waiting and failures (times in seconds)"))
    _add_output_flags(top.add_argument_group("output"))
    add_torchrun_flags(top.add_argument_group(TORCHRUN_GROUP))
    return top


def _add_worker_flags(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "-np",
        "--num-proc",
        dest="np",
        action=_Workers,
        metavar="N",
        help="number of workers to start with; auto: one for each slot of the hosts; of this machine, without other "
        "hosts, one for each GPU or, if it has none, for each core (default: auto if --slots-per-host is given)",
    )
    group.add_argument(
        "--min-np",
        "--min-num-proc",
        dest="min_np",
        type=_count,
        metavar="N",
        help="minimum number of workers (default: -np)",
    )
    group.add_argument(
        "--max-np",
        "--max-num-proc",
        dest="max_np",
        type=_count,
        metavar="N",
        help="maximum number of workers (default: no limit; -np if the hosts are fixed)",
    )
    group.add_argument(
        "--mode",
        choices=("elastic", "restart"),
        help="elastic: the script calls edriver.run, and its processes survive changes; restart: every change restarts "
        "the script from its checkpoint, as torchrun does (default: restart for a Python script that does not use "
        "edriver)",
    )
    add_command_flags(group)


def _add_host_flags(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "-H",
        "--hosts",
        metavar="HOST:SLOTS,...",
        help="a fixed list of hosts; slots are a number, or counted there: gpu, cpu, auto",
    )
    group.add_argument(
        "-hostfile", "--hostfile", metavar="FILE", help="a file with a fixed list of hosts, one per line"
    )
    group.add_argument(
        "--host-discovery-script",
        metavar="SCRIPT",
        help="a program, or a shell's command line, that prints the current hosts, one per line; run every second",
    )
    group.add_argument(
        "--hosts-dial-in",
        action="store_true",
        help="hosts that join by themselves, with `edriver agent --driver HOST:PORT --credentials FILE`",
    )
    group.add_argument(
        "--discovery",
        metavar="NAME[=ARGUMENT]",
        help="a host source that an installed package provides (entry point group edriver.discovery)",
    )
    group.add_argument(
        "--launcher",
        metavar="NAME",
        help="how to start edriver on the hosts: local, ssh, or a launcher that an installed package provides (entry "
        "point "
        "group edriver.launchers; default: chosen for each host)",
    )
    group.add_argument(
        "--broker",
        metavar="NAME[=ARGUMENT]",
        help="what asks a cluster for hosts up to --max-np (default: -np), and gives back those that are not needed: "
        "provided by an installed package (entry point group edriver.brokers)",
    )
    group.add_argument(
        "--idle-timeout",
        type=_seconds,
        metavar="S",
        help="give a host back to its cluster when none of its slots has been used for this long "
        f"(default: {defaults.HOST_IDLE_TIMEOUT:g})",
    )
    group.add_argument(
        "--credentials",
        metavar="FILE",
        help="with --hosts-dial-in: the file to write, with the credentials of these agents",
    )
    group.add_argument(
        "--run-credentials",
        metavar="FILE",
        help="the file to read, with the run's ID, keys and tokens, made before the run starts by edriver credentials",
    )
    group.add_argument(
        "--port",
        type=_count,
        metavar="PORT",
        help="the driver's TCP port, which only other hosts use (default: any free port)",
    )
    group.add_argument(
        "--slots-per-host",
        "--nproc-per-node",
        dest="slots_per_host",
        type=_slots,
        metavar="N",
        help="number of slots of a host that is listed without one; gpu: as many as it has GPUs, cpu: as it has cores, "
        "auto: GPUs or, if there is none, cores (default: 1)",
    )


def _add_ssh_flags(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "-p",
        "--ssh-port",
        dest="ssh_port",
        type=_count,
        metavar="PORT",
        help="the port of sshd (default: as configured)",
    )
    group.add_argument(
        "-i",
        "--ssh-identity-file",
        dest="ssh_identity_file",
        metavar="FILE",
        help="the private key (default: as configured)",
    )
    group.add_argument(
        "--network-interface",
        metavar="NAME",
        help="the network interface through which hosts reach one another (default: by routing)",
    )
    group.add_argument(
        "--insecure",
        action="store_true",
        help="use neither TLS nor tokens between hosts; only for networks that you trust",
    )


def _add_failure_flags(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--start-timeout",
        type=_seconds,
        default=defaults.START_TIMEOUT,
        metavar="S",
        help="wait this long for -np workers, then start with at least --min-np (default: %(default)g)",
    )
    group.add_argument(
        "--elastic-timeout",
        type=_seconds,
        default=defaults.ELASTIC_TIMEOUT,
        metavar="S",
        help="end the run after this long with fewer than --min-np workers (default: %(default)g)",
    )
    group.add_argument(
        "--stall-timeout",
        action="append",
        default=[],
        metavar="[PHASE=]S",
        help="replace a worker that makes no progress for this long; for one phase (init, step, commit, eval, save) "
        "or for "
        f"all; 0: no limit (default: {text_of(DEFAULT_STALL_LIMITS)})",
    )
    group.add_argument(
        "--exit-timeout",
        type=_seconds,
        default=defaults.EXIT_TIMEOUT,
        metavar="S",
        help="kill a worker whose script has ended but whose process has not, after this long without output or use "
        "of a "
        "processor; exit handlers, such as uploads, have this time (default: %(default)g)",
    )
    group.add_argument(
        "--worker-lease",
        type=_seconds,
        default=defaults.WORKER_LEASE,
        metavar="S",
        help="end the round if a worker's process is stopped or frozen for this long (default: %(default)g)",
    )
    group.add_argument(
        "--driver-timeout",
        type=_seconds,
        default=defaults.DRIVER_TIMEOUT,
        metavar="S",
        help="let hosts continue training without a driver for this long: edriver resume takes the run over; without "
        "a journal (--no-journal, --no-records) it cannot, and hosts end within seconds once the driver is known to be "
        "gone (default: %(default)g)",
    )
    group.add_argument(
        "--resize-pause",
        type=_seconds,
        default=0.0,
        metavar="S",
        help="let training run this long before new workers join it, so that a cluster that adds one host after the "
        "other interrupts it once; hosts that leave do not wait (default: %(default)g)",
    )
    group.add_argument(
        "--reset-limit",
        "--max-restarts",
        dest="reset_limit",
        type=_count,
        metavar="N",
        help="end the run after more than N failures, not counting preemptions and resizes (default: no limit)",
    )
    group.add_argument(
        "--reset-window",
        type=_seconds,
        default=math.inf,
        metavar="S",
        help="count only failures of the last S seconds (default: all)",
    )
    group.add_argument(
        "--blacklist-cooldown-range",
        "--cooldown-range",
        dest="cooldown_range",
        type=_seconds,
        nargs=2,
        metavar=("LOW", "HIGH"),
        help="how long not to use a slot whose worker has failed, or a host whose workers have; doubles with each "
        "failure "
        "from LOW to HIGH (default: slot 0, then {:g} to {:g}; host {:g} to {:g})".format(
            *SLOT_COOLDOWN, *HOST_COOLDOWN
        ),
    )


def _add_output_flags(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--output-filename", metavar="DIR", help="also write the output of each worker to files below DIR"
    )
    group.add_argument("--name", metavar="NAME", help="a name for the run, shown by edriver runs")
    add_resume_flags(group)
    group.add_argument(
        "--tag",
        metavar="NAME=VALUE",
        action="append",
        default=[],
        help="a tag for the run, to find it with edriver runs --tag NAME=VALUE; may be repeated",
    )
    group.add_argument(
        "--no-logs",
        action="store_true",
        help="do not keep the output of the workers for edriver logs and other observers",
    )
    group.add_argument("--event-log", metavar="FILE", help="append a line of JSON for each event")
    group.add_argument(
        "--records",
        metavar="DIR",
        help="write the run's records (its command, all events, a trace for Perfetto) to DIR/RUN_ID (default: "
        f"$XDG_STATE_HOME/edriver or ~/.local/state/edriver, where the latest {MAX_KEPT_RUNS} runs are kept)",
    )
    group.add_argument("--no-records", action="store_true", help="write no records")
    group.add_argument(
        "--status-credentials",
        metavar="FILE",
        help="the file to write, with credentials to watch the run: `edriver status --credentials FILE`",
    )
    group.add_argument(
        "--control-credentials",
        metavar="FILE",
        help="the file to write, with credentials to control the run: `edriver drain --credentials FILE`",
    )
    group.add_argument(
        "--metrics-port",
        type=_count,
        metavar="PORT",
        help="serve metrics for Prometheus at http://127.0.0.1:PORT/metrics (0: any free port, which is printed)",
    )
    group.add_argument(
        "--metrics-address",
        metavar="ADDRESS",
        help="serve the metrics at this address, without encryption or a token, to everyone who can reach it",
    )
    group.add_argument(
        "--health-port",
        type=_count,
        metavar="PORT",
        help="serve grpc.health.v1 at this port, without TLS or a token, for probes of the driver: liveness, readiness",
    )
    group.add_argument(
        "--explain", action="store_true", help="print all settings with their origins, and all time limits, and exit"
    )
    group.add_argument("--verbose", action="store_true", help="log every event and every action of the driver")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    arguments = sys.argv[1:] if arguments is None else arguments
    silence_grpc()
    try:
        raise_limit()
    except ValueError as error:
        complain(f"edriver: {error}")
        return EXIT_FAILED
    first = arguments[0] if arguments else ""
    if first in SUBCOMMANDS:
        return SUBCOMMANDS[first].run(arguments[1:])
    if first == "help":
        return main([*arguments[1:2], "--help"])
    if first == "run":
        arguments = arguments[1:]
    top = parser(os.environ)
    flags, unknown = top.parse_known_args(arguments)
    if flags.version:
        return _print_version()
    if flags.print_completion:
        return _print_completion(flags.print_completion)
    if unknown:
        top.error(refusal_of(unknown[0]))

    if flags.supervise:
        from edriver.cli.resuming.supervise import driver_arguments, supervise

        return supervise(driver_arguments(arguments, named=flags.run is not None))

    if flags.np is None and flags.slots_per_host is None and (hint := hint_of(flags.command)):
        top.error(hint)

    from edriver.driver.flags.usage_error import UsageError
    from edriver.driver.journal.journal import JournalError
    from edriver.driver.options import options_of, takes_all_slots

    flags.name = flags.name or flags.run
    try:
        options = options_of(flags)
    except UsageError as error:
        top.error(str(error))

    if flags.explain:
        from edriver.cli.all_slots import with_counted_slots
        from edriver.cli.explain import explanation

        if takes_all_slots(flags):
            try:
                options = options_of(with_counted_slots(flags, options, arguments)[0])
            except UsageError as error:
                top.error(str(error))
        sys.stdout.write(f"{explanation(top, arguments, options)}\n")
        return 0

    from edriver.cli.run import run_or_resume

    try:
        return run_or_resume(flags, options, arguments)
    except (JournalError, UsageError) as error:
        top.error(str(error))


def _print_version() -> int:
    from edriver.common.release import VERSION

    sys.stdout.write(f"edriver {VERSION}\n")
    return 0


def _print_completion(shell: str) -> int:
    from edriver.cli.completion import completion

    sys.stdout.write(completion(shell))
    return 0
