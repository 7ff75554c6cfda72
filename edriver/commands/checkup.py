"""What `edriver doctor` makes of what it has found: pure, from data to sentences and an exit code."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from edriver.system.descriptors import MIN_DESCRIPTORS
from edriver.text.phrases import count_text

OK, NOTE, FAILED = "ok", "note", "FAILED"
"""The state of an item; FAILED makes the command exit with code 1."""

MAX_CLOCK_SKEW: Final = 86400.0
"""Seconds by which a host's clock may differ: a run's certificates are valid from a day before it began."""

NOTED_CLOCK_SKEW: Final = 1.0
"""Seconds of difference that are reported: times in the outputs of hosts do not fit together then."""


TESTED_TORCH: Final = ((2, 11), (2, 15))
"""The oldest and the newest minor version of torch that edriver is tested with, as pyproject.toml has them."""


@dataclass(frozen=True, slots=True)
class Item:
    """One thing that was looked at.

    Attributes:
        subject: this machine, or a host's name.
        state: OK, NOTE or FAILED.
        text: the result; for a failed check also the consequence and what to do.
    """

    subject: str
    state: str
    text: str


@dataclass(frozen=True, slots=True)
class HostFindings:
    """The findings about another host.

    Attributes:
        name: its name for ssh.
        trouble: why it could not be queried; empty if it could.
        introduction: its report about itself (host_probe.py).
        clock: the seconds by which its clock is ahead of this machine's.
        uncertain: the uncertainty of that, in seconds.
        reaches_us: why it cannot reach a port of this machine, by address; "" if it can.
        reached_by_us: why this machine cannot reach its port; empty if it can.
        reaches: why it cannot reach each of the other hosts, by name; "" if it can.
    """

    name: str
    trouble: str
    introduction: Mapping[str, Any]
    clock: float
    uncertain: float
    reaches_us: Mapping[str, str]
    reached_by_us: str
    reaches: Mapping[str, str]


def local_items(version: str, found: Mapping[str, Any], descriptors: int) -> Iterator[Item]:
    """The findings about this machine.

    Args:
        version: edriver's.
        found: what `python -m edriver.worker.backend.checks` has printed; or "trouble", why it has not.
        descriptors: the hard limit of open files; -1: none.
    """
    here = "this machine"
    if trouble := found.get("trouble"):
        yield Item(here, FAILED, f"torch could not be checked, so no worker would start: {trouble}")
    else:
        versions = found["versions"]
        names = ("python", "torch", "grpcio", "protobuf")
        yield Item(here, OK, ", ".join([f"edriver {version}", *(f"{name} {versions[name]}" for name in names)]))
        yield from _torch_items(here, versions["torch"])
        yield _gpu_item(here, versions)
        yield _filters_item(here, found["no_filters"])
    yield _descriptors_item(here, descriptors)
    for finding in found.get("findings", ()):
        if finding["trouble"]:
            yield Item(
                here,
                FAILED,
                f"{finding['name']}: {finding['relies']} does not work: {finding['trouble']}. {finding['fallback']}",
            )
        else:
            yield Item(here, OK, f"{finding['name']}: {finding['relies']}")


def _torch_items(here: str, version: str) -> Iterator[Item]:
    oldest, newest = TESTED_TORCH
    if not oldest <= tuple(map(int, version.split(".")[:2])) <= newest:
        tested = f"torch {oldest[0]}.{oldest[1]} to {newest[0]}.{newest[1]}"
        consequence = "A check below fails if something that edriver relies on is different in this version"
        yield Item(here, NOTE, f"torch {version}: edriver is tested with {tested}. {consequence}")


def _filters_item(here: str, trouble: str) -> Item:
    if not trouble:
        return Item(here, OK, "filters: keeping out processes that race members for connections")
    consequence = (
        "A process that races a member for a connection can cost more rounds, and a worker that sends to one that dies "
        "may hang for a second and be replaced. Some kernels give filters only with CAP_NET_ADMIN."
    )
    return Item(here, NOTE, f"filters: {trouble}. {consequence}")


def host_items(host: HostFindings, version: str, python: str, we_take_part: bool) -> Iterator[Item]:
    """The findings about another host.

    Args:
        host: what was found.
        version: edriver's on this machine.
        python: the path of Python here and there.
        we_take_part: whether this machine is among the hosts, so that workers here and there have to reach one another.
    """
    if host.trouble:
        yield Item(host.name, FAILED, host.trouble)
        return
    introduction = host.introduction
    yield Item(host.name, OK, f"ssh answers; Python {introduction['python']} at {python}")
    if introduction["edriver"] == version:
        yield Item(host.name, OK, f"edriver {version}")
    elif introduction["edriver"]:
        text = (
            f"it has edriver {introduction['edriver']}, and this machine has {version}: install the same release on "
            "both"
        )
        yield Item(host.name, FAILED, text)
    else:
        text = f"Python at {python} has no edriver installed there: pip install edriver=={version} on that host"
        yield Item(host.name, FAILED, text)
    yield _descriptors_item(host.name, introduction["descriptors"])
    yield _clock_item(host)
    yield _dial_item(host)
    if not host.reached_by_us:
        yield Item(host.name, OK, f"this machine reaches it at {introduction['address']}")
    else:
        text = f"this machine cannot reach a port of it at {introduction['address']} ({host.reached_by_us})"
        if we_take_part:
            yield Item(host.name, FAILED, f"{text}: workers here and there cannot train together; {_OPEN_PORTS}")
        else:
            yield Item(host.name, NOTE, f"{text}: this matters only if this machine has workers, too")
    for other, trouble in host.reaches.items():
        if trouble:
            text = f"it cannot reach a port of host {other} ({trouble}): their workers cannot train together"
            yield Item(host.name, FAILED, f"{text}; {_OPEN_PORTS}")
        else:
            yield Item(host.name, OK, f"it reaches host {other}")


_OPEN_PORTS: Final = "allow TCP between them on all ports above 1023, or give --network-interface"


def exit_code(items: Sequence[Item]) -> int:
    """0 if all required checks pass, else 1."""
    return int(any(item.state == FAILED for item in items))


def rendered(items: Sequence[Item]) -> str:
    """The items as text, by subject; the last line has the number of failed ones."""
    lines = []
    subject = None
    for item in items:
        if item.subject != subject:
            subject = item.subject
            lines.append(subject)
        lines.append(f"  {item.state:<6}  {item.text}")
    failed = sum(item.state == FAILED for item in items)
    lines.append(f"{count_text(failed, 'check')} failed" if failed else "all required checks pass")
    return "\n".join(lines)


def plain(items: Sequence[Item]) -> dict[str, Any]:
    """All of it as JSON has it."""
    return {"ok": not exit_code(items), "items": [asdict(item) for item in items]}


def _gpu_item(subject: str, versions: Mapping[str, Any]) -> Item:
    gpus = versions["gpus"]
    if not gpus:
        return Item(subject, NOTE, "torch sees no GPU here: rounds use Gloo")
    nccl = f"NCCL {versions['nccl']}" if versions["nccl"] else "no NCCL, so rounds use Gloo"
    return Item(subject, OK, f"{count_text(len(gpus), 'GPU')} ({', '.join(dict.fromkeys(gpus))}), {nccl}")


def _descriptors_item(subject: str, limit: int) -> Item:
    if limit < 0:
        return Item(subject, OK, "open files: no limit")
    if limit < MIN_DESCRIPTORS:
        needs = f"edriver needs {MIN_DESCRIPTORS}: raise the hard limit (ulimit -Hn)"
        text = f"a process may have {limit} open files, and {needs}"
        return Item(subject, FAILED, text)
    return Item(
        subject,
        OK,
        f"open files: {limit:,} per process, enough for rounds of about {max(1, (limit - MIN_DESCRIPTORS) // 2):,}",
    )


def _clock_item(host: HostFindings) -> Item:
    apart = abs(host.clock)
    way = "ahead" if host.clock > 0 else "behind"
    if apart > MAX_CLOCK_SKEW:
        text = f"its clock is {apart:,.0f} s {way}: it would reject the run's certificate as not valid; set it (NTP)"
        return Item(host.name, FAILED, text)
    if apart > NOTED_CLOCK_SKEW + host.uncertain:
        text = (
            f"its clock is {apart:,.1f} s {way}: the times that its workers print do not match those of other hosts "
            "(NTP)"
        )
        return Item(host.name, NOTE, text)
    return Item(host.name, OK, f"its clock differs by {apart:.2f} s, give or take {host.uncertain:.2f} s")


def _dial_item(host: HostFindings) -> Item:
    reached = [address for address, trouble in host.reaches_us.items() if not trouble]
    if reached:
        return Item(host.name, OK, f"it reaches this machine at {reached[0]}")
    tried = "; ".join(f"{address}: {trouble}" for address, trouble in host.reaches_us.items())
    text = (
        f"it cannot reach a TCP port of this machine ({tried}), so its agent could not dial the driver: open a port "
        "and give --port here and to the run"
    )
    return Item(host.name, FAILED, text)
