"""`edriver kubernetes manifest`: prints what to apply."""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from edriver.driver.engines.kubernetes.plan import Kind, RunSpec, RunSpecError
from edriver.text.command_parser import CommandParser

MANIFEST: Final = "manifest"

EXIT_FAILED, EXIT_USAGE = 1, 2

MISSING_EXTRA: Final = "it needs a package that is not installed: pip install 'edriver[kubernetes]'"


def parser() -> argparse.ArgumentParser:
    """The flags."""
    made = CommandParser(
        prog="edriver kubernetes manifest",
        description="Prints the objects of a run for `kubectl apply -f -`: the driver, its agents, their Secrets and "
        "rights. The output holds the run's secrets: pipe it, or write it to a file that you alone can read.",
    )
    made.usage = f"{made.prog} --image IMAGE -np N [options] command [argument ...]"
    made.add_argument("--image", required=True, help="the image of all pods, with edriver and the script in it")
    made.add_argument(
        "-np", "--num-proc", dest="np", type=int, required=True, metavar="N", help="workers to start with"
    )
    made.add_argument("--min-np", type=int, metavar="N", help="minimum number of workers (default: -np)")
    made.add_argument("--max-np", type=int, metavar="N", help="maximum number of workers (default: -np)")
    made.add_argument(
        "--kind",
        type=Kind,
        choices=tuple(Kind),
        default=Kind.INDEXED_JOB,
        help="what starts the agents' pods: %(choices)s (default: %(default)s)",
        metavar="KIND",
    )
    made.add_argument("--name", default="train", help="the run's name (default: %(default)s)")
    made.add_argument("-n", "--namespace", default="default", help="the namespace (default: %(default)s)")
    made.add_argument(
        "--gpus", type=int, default=0, metavar="N", help="GPUs of a pod, one for each worker (default: 0)"
    )
    made.add_argument("--gpu-resource", default="nvidia.com/gpu", metavar="NAME", help="their resource (%(default)s)")
    made.add_argument("--slots", type=int, metavar="N", help="workers in a pod (default: one for each GPU, or 1)")
    made.add_argument("--cpu", default="", metavar="QUANTITY", help="processors that a pod requests")
    made.add_argument("--memory", default="", metavar="QUANTITY", help="memory that a pod requests and may use")
    made.add_argument(
        "--user", type=int, metavar="UID", help="the user and group of all containers (default: the image's)"
    )
    made.add_argument(
        "--env", action="append", default=[], metavar="NAME=VALUE", help="a variable for the workers; may be repeated"
    )
    made.add_argument(
        "--driver-flags", default="", metavar="FLAGS", help="more flags of edriver, for example '--start-timeout 3600'"
    )
    made.add_argument(
        "--watch-nodes",
        action="store_true",
        help="let the driver watch the nodes, so that it leaves a cordoned one before its pods are evicted; needs a "
        "ClusterRole",
    )
    made.add_argument(
        "--kustomize", type=Path, metavar="DIR", help="write a base for kustomize to DIR, and print nothing"
    )
    made.add_argument("command", nargs=argparse.REMAINDER, metavar="command", help="what each worker runs")
    return made


def kubernetes(arguments: Sequence[str], credentials: Callable[[], tuple[bytes, bytes]]) -> int:
    """Run `edriver kubernetes`; returns the exit code.

    Args:
        arguments: the words behind it.
        credentials: makes a run's credentials: the driver's, and the agents'.
    """
    if not arguments or arguments[0] not in (MANIFEST, "-h", "--help"):
        sys.stderr.write(f"edriver kubernetes: say what to print: edriver kubernetes {MANIFEST} ...\n")
        return EXIT_USAGE
    flags = parser().parse_args(arguments[1:] if arguments[0] == MANIFEST else arguments)
    try:
        plan = plan_of(flags)
        from edriver.driver.engines.kubernetes.manifest import manifest, write_kustomize_base

        if flags.kustomize is None:
            sys.stdout.write(manifest(plan, *credentials(), watch_nodes=flags.watch_nodes))
        else:
            write_kustomize_base(plan, flags.kustomize, *credentials(), watch_nodes=flags.watch_nodes)
    except RunSpecError as error:
        sys.stderr.write(f"edriver kubernetes: {error}\n")
        return EXIT_USAGE
    except ModuleNotFoundError:
        sys.stderr.write(f"edriver kubernetes: {MISSING_EXTRA}\n")
        return EXIT_FAILED
    except OSError as error:
        sys.stderr.write(f"edriver kubernetes: {error.filename} cannot be written: {error.strerror}\n")
        return EXIT_FAILED
    return 0


def plan_of(flags: argparse.Namespace) -> RunSpec:
    """What the flags ask for.

    Raises:
        PlanError: it cannot be.
    """
    environment = dict(map(_variable, flags.env))
    return RunSpec(
        name=flags.name,
        namespace=flags.namespace,
        image=flags.image,
        kind=flags.kind,
        np=flags.np,
        min_np=flags.np if flags.min_np is None else flags.min_np,
        max_np=flags.np if flags.max_np is None else flags.max_np,
        slots=max(1, flags.gpus) if flags.slots is None else flags.slots,
        gpus=flags.gpus,
        gpu_resource=flags.gpu_resource,
        cpu=flags.cpu,
        memory=flags.memory,
        user=flags.user,
        environment=environment,
        driver_flags=tuple(shlex.split(flags.driver_flags)),
        command=tuple(flags.command[1:] if flags.command[:1] == ["--"] else flags.command),
    )


def _variable(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not (name and equals):
        raise RunSpecError(f"--env {text!r}: give NAME=VALUE")
    return name, value
