"""The flags of a run, in horovodrun's words. The parser, --explain, completion and the reference follow this table."""

from __future__ import annotations

import argparse
import itertools
import math
import re
import sys
from collections.abc import Mapping, Sequence
from typing import Any, Final, NoReturn

from edriver.cli.exit_codes import EXIT_USAGE
from edriver.cli.torchrun_flags import COMMAND_FLAGS, OUTPUT_FLAGS, take_variables
from edriver.driver.config import engine_flags
from edriver.driver.config.flag import Flag
from edriver.model import defaults
from edriver.model.hosts import Devices, Slots
from edriver.model.settings import HOST_COOLDOWN, SLOT_COOLDOWN, WHOLE_HOSTS
from edriver.model.stall_limits import DEFAULT_STALL_LIMITS, text_of
from edriver.system.record_folder import MAX_KEPT_RUNS
from edriver.text.printable import printable_line

_ALL_FLAGS_TEXT = """\
These are the flags that most runs need. edriver run --help lists all of them: also those
for clusters (Slurm, Ray, Kubernetes), ssh, time limits, output, metrics and records.
"""

_EXAMPLE_TEXT = """\
example:
  edriver -np 4 --min-np 2 --max-np 8 --host-discovery-script ./discover_hosts.sh python train.py

  Training starts with 4 workers or, after --start-timeout, with as many as there are slots
  for, at least 2. From then on it follows the hosts that the script prints (host:slots, one
  per line), with 2 to 8 workers.

exit codes:
  0 success; 1 the run failed; 2 invalid flags; 75 another driver has the run (--etcd);
  128 + n stopped by signal n (130: Ctrl-C, 143: SIGTERM)
"""


class RunParser(argparse.ArgumentParser):
    """Reads the flags of a run.

    Attributes:
        helps_briefly: whether --help shows the flags of COMMON_FLAGS alone.
    """

    helps_briefly = False

    def format_help(self) -> str:
        """What --help prints."""
        if self.helps_briefly:
            for action in self._actions:
                if not COMMON_FLAGS & {*action.option_strings, action.metavar}:
                    action.help = argparse.SUPPRESS
            self.epilog = f"{_ALL_FLAGS_TEXT}\n{self.epilog}"
        return super().format_help()

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
        """A flag that is known with dashes in place of its underscores; empty if it is no such flag."""
        flag, equals, value = word.partition("=")
        dashed = flag[:2] + flag[2:].replace("_", "-")
        return dashed + equals + value if dashed != flag and dashed in self._option_string_actions else ""

    def error(self, message: str) -> NoReturn:
        """One sentence instead of the whole usage."""
        self.exit(EXIT_USAGE, f"edriver: {printable_line(message)} (see edriver --help)\n")


def _seconds(text: str) -> float:
    """A number of seconds; its range is for Settings to judge."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds")
    return value


def _bytes(text: str) -> int:
    """An amount of memory, as Kubernetes and systemd write it: 64G, 512M."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(?:i?B)?", text.strip(), re.IGNORECASE)
    if found is None or not float(found[1]):
        raise argparse.ArgumentTypeError(f"{text!r} is not an amount of memory: write it like 64G or 512M")
    return int(float(found[1]) * 1024 ** ("KMGT".index(found[2].upper()) + 1 if found[2] else 0))


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


class _ReplicaSize(argparse.Action):
    """A number of workers, or host; or all, which sets `one_replica`."""

    def __call__(
        self,
        _parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        _option_string: str | None = None,
    ) -> None:
        """Take it."""
        namespace.one_replica = values.lower() == "all"
        try:
            namespace.replica_size = 1 if namespace.one_replica else _replica_size(values)
        except argparse.ArgumentTypeError as error:
            raise argparse.ArgumentError(self, str(error)) from None


def _replica_size(text: str) -> int:
    """A number of workers, or host."""
    if text.lower() == "host":
        return WHOLE_HOSTS
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is neither a number of workers, at least 1, nor host or all")
    return int(text)


COMMON_FLAGS: Final = frozenset(
    {
        *("-h", "-v", "command", "-np", "--min-np", "--max-np", "--mode"),
        *("-H", "--hostfile", "--host-discovery-script", "--slots-per-host"),
        *("--stall-timeout", "--reset-limit", "--name", "--run", "--supervise", "--explain"),
    }
)
"""Those that `edriver --help` shows: what most runs need."""

_OPTIONS: Final = (
    Flag("-v", "--version", action="store_true", help="print the version and exit"),
    Flag(
        "--print-completion",
        choices=("bash", "zsh"),
        help="print a completion script for this shell and exit (bash: source it)",
    ),
)
"""Those that argparse shows with --help."""

_WORKERS: Final = (
    Flag(
        "-np",
        "--num-proc",
        dest="np",
        action=_Workers,
        metavar="N",
        help="number of workers to start with; auto: one for each slot of the hosts; of this machine, without other "
        "hosts, one for each GPU or, if it has none, for each core (default: auto if --slots-per-host is given)",
    ),
    Flag(
        "--min-np",
        "--min-num-proc",
        dest="min_np",
        type=_count,
        metavar="N",
        help="minimum number of workers (default: -np)",
    ),
    Flag(
        "--max-np",
        "--max-num-proc",
        dest="max_np",
        type=_count,
        metavar="N",
        help="maximum number of workers (default: no limit; -np if the hosts are fixed)",
    ),
    Flag(
        "--replica-size",
        action=_ReplicaSize,
        default=1,
        metavar="S",
        help="the run has whole replicas of S workers only, each on one host or, where hosts have fewer than S slots, "
        "on whole hosts; in elastic mode two halves of replicas on different hosts make up one, too. In restart mode "
        "also host: each replica is a whole host. all, in elastic mode: the workers, however many there are, hold the "
        "state of an edriver.ShardedState once between them, and cut it anew when their number changes "
        "(default: %(default)s)",
    ),
    Flag(
        "--on-loss",
        choices=("shrink", "wait"),
        default="shrink",
        help="what follows the loss of workers in elastic mode. shrink: the others go on at once, and replacements "
        "join when they are ready; wait: the others wait for replacements in their processes, for --elastic-timeout at "
        "most, so that the number of workers stays the same (default: %(default)s)",
    ),
    Flag(
        "--mode",
        choices=("elastic", "restart"),
        help="elastic: the script calls edriver.run, and its processes survive changes; restart: every change restarts "
        "the script from its checkpoint, as torchrun does (default: restart for a Python script that does not use "
        "edriver)",
    ),
    Flag(
        "--standby-workers",
        type=_count,
        metavar="N",
        help="number of standbys on each host: processes that have imported what the script imports, and wait to "
        "become workers; each takes 200 MB of memory or more; 0: none (default: 1; in restart mode one for each "
        "slot in use)",
    ),
    Flag(
        "--copy-environment",
        metavar="DIR",
        help="copy the Python environment of the command from the shared file system into a folder below DIR on each "
        "host's own disk, and start the workers from there; variables in '$DIR' have the host's values (default: no "
        "copy)",
    ),
    *COMMAND_FLAGS,
)

_HOSTS: Final = (
    Flag(
        "-H",
        "--hosts",
        metavar="HOST:SLOTS,...",
        help="a fixed list of hosts; slots are a number, or counted there: gpu, cpu, auto",
    ),
    Flag("-hostfile", "--hostfile", metavar="FILE", help="a file with a fixed list of hosts, one per line"),
    Flag(
        "--host-discovery-script",
        metavar="SCRIPT",
        help="a program, or a shell's command line, that prints the current hosts, one per line; run every second",
    ),
    Flag(
        "--hosts-dial-in",
        action="store_true",
        help="hosts that join on their own, with `edriver agent --driver HOST:PORT --credentials FILE`",
    ),
    Flag(
        "--discovery",
        metavar="NAME[=ARGUMENT]",
        help="a host source that an installed package provides (entry point group edriver.discovery)",
    ),
    Flag(
        "--launcher",
        metavar="NAME",
        help="how to start edriver on the hosts: local, ssh, or a launcher that an installed package provides (entry "
        "point "
        "group edriver.launchers; default: chosen for each host)",
    ),
    Flag(
        "--broker",
        metavar="NAME[=ARGUMENT]",
        help="a broker that requests hosts from a cluster, up to --max-np (default: -np), and gives back those that "
        "are "
        "not needed: provided by an installed package (entry point group edriver.brokers)",
    ),
    Flag(
        "--idle-timeout",
        type=_seconds,
        metavar="S",
        help="give a host back to its cluster when none of its slots has been used for this long "
        f"(default: {defaults.HOST_IDLE_TIMEOUT:g})",
    ),
    Flag(
        "--credentials",
        metavar="FILE",
        help="with --hosts-dial-in: the file to write, with the credentials of these agents",
    ),
    Flag(
        "--run-credentials",
        metavar="FILE",
        help="the file to read, with the run's ID, keys and tokens, made before the run starts by edriver credentials",
    ),
    Flag(
        "--port",
        type=_count,
        metavar="PORT",
        help="the driver's TCP port, which only other hosts use (default: any free port)",
    ),
    Flag(
        "--slots-per-host",
        "--nproc-per-node",
        dest="slots_per_host",
        type=_slots,
        metavar="N",
        help="number of slots of a host that is listed without one; gpu: as many as it has GPUs, cpu: as it has cores, "
        "auto: GPUs or, if there is none, cores (default: 1)",
    ),
)

_SSH: Final = (
    Flag(
        "-p",
        "--ssh-port",
        dest="ssh_port",
        type=_count,
        metavar="PORT",
        help="the port of sshd (default: as configured)",
    ),
    Flag(
        "-i",
        "--ssh-identity-file",
        dest="ssh_identity_file",
        metavar="FILE",
        help="the private key (default: as configured)",
    ),
    Flag(
        "--network-interface",
        metavar="NAME",
        help="the network interface through which hosts reach one another (default: by routing)",
    ),
    Flag(
        "--insecure",
        action="store_true",
        help="use neither TLS nor tokens between hosts; only for networks that you trust",
    ),
)

_FAILURES: Final = (
    Flag(
        "--start-timeout",
        type=_seconds,
        default=defaults.START_TIMEOUT,
        metavar="S",
        help="wait this long for -np workers, then start with at least --min-np (default: %(default)g)",
    ),
    Flag(
        "--elastic-timeout",
        type=_seconds,
        default=defaults.ELASTIC_TIMEOUT,
        metavar="S",
        help="end the run after this long with fewer than --min-np workers (default: %(default)g)",
    ),
    Flag(
        "--stall-timeout",
        action="append",
        default=[],
        metavar="[PHASE=]S",
        help="replace a worker that makes no progress for this long; for one phase (init, step, commit, eval, save) "
        "or for "
        f"all; 0: no limit (default: {text_of(DEFAULT_STALL_LIMITS)})",
    ),
    Flag(
        "--exit-timeout",
        type=_seconds,
        default=defaults.EXIT_TIMEOUT,
        metavar="S",
        help="kill a worker whose script has ended but whose process has not, after this long without output or use "
        "of a "
        "processor; exit handlers, such as uploads, have this time (default: %(default)g)",
    ),
    Flag(
        "--worker-lease",
        type=_seconds,
        default=defaults.WORKER_LEASE,
        metavar="S",
        help="end the round if a worker's process is stopped or frozen for this long (default: %(default)g)",
    ),
    Flag(
        "--driver-timeout",
        type=_seconds,
        default=defaults.DRIVER_TIMEOUT,
        metavar="S",
        help="let hosts continue training without a driver for this long: edriver resume takes the run over; without "
        "a journal (--no-journal, --no-records) it cannot, and hosts end within seconds once the driver is known to be "
        "gone (default: %(default)g)",
    ),
    Flag(
        "--resize-pause",
        type=_seconds,
        default=0.0,
        metavar="S",
        help="let training run this long before new workers join it, so that a cluster that adds one host after the "
        "other interrupts it once; hosts that leave do not wait (default: %(default)g)",
    ),
    Flag(
        "--reset-limit",
        "--max-restarts",
        dest="reset_limit",
        type=_count,
        metavar="N",
        help="end the run after more than N failures, not counting preemptions and resizes (default: no limit)",
    ),
    Flag(
        "--reset-window",
        type=_seconds,
        default=math.inf,
        metavar="S",
        help="count only failures of the last S seconds (default: all)",
    ),
    Flag(
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
    ),
)

_CHECKPOINTS: Final = (
    Flag(
        "--checkpoint-memory",
        type=_bytes,
        metavar="SIZE",
        help="memory of each host that checkpoints may use, for example 64G (default: half of the host's memory)",
    ),
    Flag(
        "--checkpoint-copies",
        type=_count,
        default=1,
        metavar="N",
        help="keep copies of each host's checkpoints in the memory of N other hosts, so that the loss of N hosts loses "
        "no checkpoint (default: %(default)s)",
    ),
    Flag(
        "--checkpoint-bandwidth",
        type=_bytes,
        metavar="SIZE",
        help="bytes per second that each host receives for these copies at most, for example 1G (default: no limit)",
    ),
)

_OUTPUT: Final = (
    Flag("--output-filename", metavar="DIR", help="also write the output of each worker to files below DIR"),
    Flag("--name", metavar="NAME", help="a name for the run: all commands take it, as in edriver top --run NAME"),
    Flag(
        "--run",
        metavar="NAME",
        help="like --name; but if the latest run of this name has lost its driver, resume that run: for command lines "
        "that are started again, by systemd for instance",
    ),
    Flag("--supervise", action="store_true", help="start the driver again, and resume the run, if it is killed"),
    Flag("--no-journal", action="store_true", help="end the run if its driver is killed: it cannot be resumed then"),
    Flag(
        "--etcd",
        metavar="URL,...",
        help="keep the journal in etcd instead of the run's records, so that a driver on another machine can take "
        "over: the members, as https://HOST:PORT; their TLS files as for etcdctl (ETCDCTL_CACERT, ETCDCTL_CERT, "
        "ETCDCTL_KEY)",
    ),
    Flag(
        "--standby",
        action="store_true",
        help="with --etcd: if the run already has a driver, wait until it is gone, and take over",
    ),
    Flag(
        "--driver-addresses",
        metavar="HOST:PORT,...",
        help="where hosts look for the run's driver if it is no longer where it was: the addresses of this machine and "
        "of those on which the run may be resumed, each with its --port",
    ),
    Flag(
        "--tag",
        metavar="NAME=VALUE",
        action="append",
        default=[],
        help="a tag for the run, to find it with edriver runs --tag NAME=VALUE; may be repeated",
    ),
    Flag(
        "--no-logs",
        action="store_true",
        help="do not keep the output of the workers, neither in the records nor for edriver logs and other observers",
    ),
    Flag("--event-log", metavar="FILE", help="append a line of JSON for each event"),
    Flag(
        "--records",
        metavar="DIR",
        help="write the run's records (its command, all events, its workers' output, a trace for Perfetto) to "
        f"DIR/RUN_ID (default: $XDG_STATE_HOME/edriver or ~/.local/state/edriver, where the latest {MAX_KEPT_RUNS} "
        "runs are kept)",
    ),
    Flag("--no-records", action="store_true", help="write no records"),
    Flag(
        "--status-credentials",
        metavar="FILE",
        help="the file to write, with credentials to watch the run: `edriver status --credentials FILE`",
    ),
    Flag(
        "--control-credentials",
        metavar="FILE",
        help="the file to write, with credentials to control the run: `edriver drain --credentials FILE`",
    ),
    Flag(
        "--report-to",
        metavar="NAME,...",
        help="report the run, with the values that the script gives to state.report, to wandb (Weights & Biases), "
        "mlflow, or both: their packages are needed on this machine alone, and their variables hold (WANDB_PROJECT, "
        "MLFLOW_TRACKING_URI, ...)",
    ),
    Flag(
        "--metrics-port",
        type=_count,
        metavar="PORT",
        help="serve metrics for Prometheus at http://127.0.0.1:PORT/metrics (0: any free port, which is printed)",
    ),
    Flag(
        "--metrics-address",
        metavar="ADDRESS",
        help="serve the metrics at this address, without encryption or a token, to everyone who can reach it",
    ),
    Flag(
        "--health-port",
        type=_count,
        metavar="PORT",
        help="serve grpc.health.v1 at this port, without TLS or a token, for probes of the driver: liveness, readiness",
    ),
    Flag("--explain", action="store_true", help="print all settings with their origins, and all time limits, and exit"),
    Flag("--verbose", action="store_true", help="log every event and every action of the driver"),
)

FLAGS: Final[Mapping[str, Sequence[Flag]]] = {
    "workers": _WORKERS,
    "hosts (named in one way; default: this machine)": _HOSTS,
    "hosts of a cluster (at most one, in place of the flags above)": engine_flags.FLAGS,
    "other hosts (reached by ssh, with your ssh configuration)": _SSH,
    "waiting and failures (times in seconds)": _FAILURES,
    "checkpoints in memory, in restart mode": _CHECKPOINTS,
    "output": _OUTPUT,
    "output of workers in restart mode (torchrun's flags)": OUTPUT_FLAGS,
}
"""The others, by the titles of their groups; driver/config/options.py says which are needed, and which go together."""


def all_flags() -> list[Flag]:
    """All of them, in the order of the help."""
    return [*_OPTIONS, *itertools.chain(*FLAGS.values())]


def flags_parser(description: str = "") -> RunParser:
    """The flags alone.

    Args:
        description: what the help says before them.
    """
    top = RunParser(
        prog="edriver",
        usage="edriver -np N [options] command [argument ...]",
        description=description,
        epilog=_EXAMPLE_TEXT,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    for flag in _OPTIONS:
        flag.add_to(top)
    for title, flags in FLAGS.items():
        group = top.add_argument_group(title)
        for flag in flags:
            flag.add_to(group)
    return top


def parser(environ: Mapping[str, str] | None = None, description: str = "") -> RunParser:
    """The flags, and the command that they run.

    Args:
        environ: where torchrun's variables are flags that were not given; None: nowhere.
        description: what the help says before the flags.
    """
    top = flags_parser(description)
    take_variables(top, environ or {})
    top.set_defaults(one_replica=False)
    top.add_argument(
        "command",
        nargs=argparse.REMAINDER,
        metavar="command",
        help="the program that each worker runs, and its arguments; a script (*.py) that is not executable, or "
        "does not begin with #!, is run by this Python",
    )
    return top
