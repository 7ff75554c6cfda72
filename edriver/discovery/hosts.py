"""Hosts: sets of them in order of age, what changed between two sets, and how people and scripts write them. Pure.

What is parsed here is whatever a script printed: nothing is trusted, and no message repeats more than a few dozen
characters of it.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable
from typing import Final

from edriver.discovery.errors import DiscoveryError
from edriver.model.hosts import LOCALHOST, Devices, Host, HostSet, Slots, UncountedHost
from edriver.model.limits import MAX_HOST_NAME_LENGTH, MAX_TOTAL_SLOTS, is_host_name

MAX_LINES = 100_000
MAX_LINE_CHARACTERS = 1024
_MAX_SHOWN_CHARACTERS = 60
_MAX_SHOWN_FAULTS = 5

MAX_WRITTEN_SLOTS: Final = 1024
"""Most slots of a host that is written down: a larger number is a port, as torchrun's tools print it."""

_SLOTS_RULE = rf"slots must be a whole number from 1 to {MAX_WRITTEN_SLOTS}, or gpu, cpu, auto"
_NONE_RULE = ", or 0 for no workers"
_EXPECTED_FORMS = "expected host:slots, or host alone"

_BRACKETED_PATTERN = re.compile(r"\[([0-9A-Za-z:.%_-]+)\]")
_LEAVING_PATTERN = re.compile(r"(.*\S)\s+leaving\s*=\s*(\S*)")
_MPIRUN_PATTERN = re.compile(r"(\S+)\s+slots\s*=\s*(\S+)", re.IGNORECASE)


_DEVICES: Final = frozenset(each.value for each in Devices)


def parse_hosts(text: str | bytes, default_slots: Slots) -> HostSet:
    """Read one host a line, as a discovery script prints them or a hostfile holds them.

    A line is `host:slots`, `host` (then it has `default_slots`), or mpirun's `host slots=n`; an IPv6 address
    stands in brackets. Slots are a number, or one of Devices. A host with 0 slots is to have no worker, as if it were
    not listed. At the end of a line, `leaving=120` gives notice that the host will be lost in so many seconds. Space
    around a line, blank lines and lines that begin with # are ignored.

    Returns:
        the hosts in the order of their lines; may be empty.

    Raises:
        DiscoveryError: some lines are not of that form; the first few are named by number, with what was
            expected.
    """
    data = text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text
    if data.count(b"\n") > MAX_LINES:
        raise DiscoveryError(f"more than {MAX_LINES} lines: {_EXPECTED_FORMS}, one a line")
    lines = ((f"line {number}", line.strip()) for number, line in enumerate(data.split(b"\n"), start=1))
    return _collect(((where, line) for where, line in lines if line and not line.startswith(b"#")), default_slots, 0)


def parse_host_list(text: str, default_slots: Slots = 1) -> HostSet:
    """Read the list that `-H` takes: `a:2,b:4`; an item without slots has `default_slots`.

    Raises:
        DiscoveryError: some items are not `host:slots` or `host`; the first few are named by their place.
    """
    items = text.encode("utf-8", "surrogatepass").split(b",")
    return _collect(((f"item {n}", item.strip()) for n, item in enumerate(items, start=1)), default_slots, 1)


def _collect(entries: Iterable[tuple[str, bytes]], default_slots: Slots, least: int) -> HostSet:
    """Parse entries, each with a description of its position; one message names the first few faults.

    Args:
        entries: the entries.
        default_slots: the slots of a host without a number of them.
        least: the minimum number of slots of a host; may be 0.
    """
    hosts: dict[str, Host] = {}
    places: dict[str, str] = {}
    faults: list[str] = []
    fault_count = 0
    for where, entry in entries:
        try:
            host = _parse_entry(entry, default_slots, least)
            key = host.name.lower()  # DNS knows no capitals
            if key in places:
                raise DiscoveryError(f"{_shown(entry)} is listed twice, first in {places[key]}: list it once")
            places[key] = where
            if host.slots or isinstance(host, UncountedHost):
                hosts[host.name] = host
        except DiscoveryError as error:
            fault_count += 1
            if len(faults) < _MAX_SHOWN_FAULTS:
                faults.append(f"{where}: {error}")
    if faults:
        more = f"; and {fault_count - len(faults)} more" if fault_count > len(faults) else ""
        raise DiscoveryError("; ".join(faults) + more)
    found = HostSet(tuple(hosts.values()))
    if found.total_slots > MAX_TOTAL_SLOTS:
        raise DiscoveryError(f"{found.total_slots} slots in all: a run has at most {MAX_TOTAL_SLOTS}")
    return found


def _parse_entry(entry: bytes, default_slots: Slots, least: int) -> Host:
    if len(entry) > MAX_LINE_CHARACTERS:
        raise DiscoveryError(f"{_shown(entry)} is longer than {MAX_LINE_CHARACTERS} characters: {_EXPECTED_FORMS}")
    try:
        text = entry.decode("utf-8")
    except UnicodeDecodeError:
        raise DiscoveryError(f"{_shown(entry)} is not UTF-8 text: {_EXPECTED_FORMS}") from None
    if not text.isprintable():
        raise DiscoveryError(f"{_shown(entry)} has control characters in it: {_EXPECTED_FORMS}")
    leaving = None
    if notice := _LEAVING_PATTERN.fullmatch(text):
        text, leaving = notice[1], _parse_leaving(notice[2], entry)
    written, text_of_slots = _split_slots(text)
    name = _parse_name(written, entry)
    slots = default_slots if text_of_slots is None else _parse_slots(text_of_slots, entry, least)
    if isinstance(slots, Devices):
        return UncountedHost(name, devices=slots, leaving=leaving)
    return Host(name, slots, leaving)


def _parse_leaving(text: str, entry: bytes) -> float:
    if not re.fullmatch(r"[0-9]{1,9}(\.[0-9]{1,9})?", text):
        raise DiscoveryError(
            f"{_shown(entry)}: leaving takes the seconds after which the host will be lost, as leaving=120"
        )
    return float(text)


def _split_slots(text: str) -> tuple[str, str | None]:
    """Split off the number of slots, without checking it; None if the text has no number."""
    if mpirun := _MPIRUN_PATTERN.fullmatch(text):
        return mpirun[1], mpirun[2]
    name, colon, slots = text.rpartition(":")
    if not colon or text.endswith("]"):
        return text, None
    return name, slots


def _parse_slots(slots: str, entry: bytes, least: int) -> Slots:
    if slots.lower() in _DEVICES:
        return Devices(slots.lower())
    if re.fullmatch(r"[0-9]{4,5}", slots) and MAX_WRITTEN_SLOTS < int(slots) < 65536:
        raise DiscoveryError(
            f"{_shown(entry)}: is {slots} a port? The number after the colon is the host's number of slots, "
            f"{MAX_WRITTEN_SLOTS} at most"
        )
    if slots.lower().startswith("slots"):
        raise DiscoveryError(f"{_shown(entry)}: write host:4, or mpirun's host slots=4")
    if not re.fullmatch(r"[0-9]{1,9}", slots) or not least <= int(slots) <= MAX_WRITTEN_SLOTS:
        raise DiscoveryError(f"{_shown(entry)}: {_SLOTS_RULE}{'' if least else _NONE_RULE}")
    return int(slots)


def _parse_name(name: str, entry: bytes) -> str:
    if len(name) > MAX_HOST_NAME_LENGTH:
        raise DiscoveryError(
            f"{_shown(entry)} has a host name of {len(name)} characters: at most {MAX_HOST_NAME_LENGTH} are allowed"
        )
    if is_host_name(name) and ":" not in name:
        name = name.removesuffix(".") or name  # a whole name may end so, and is the same
        return LOCALHOST if name.lower() == LOCALHOST else name
    _, at, host = name.rpartition("@")
    if at and is_host_name(host.strip("[]")):
        raise DiscoveryError(
            f"{_shown(entry)} names an account: write the host alone, and its account as User in your ssh "
            f"configuration (Host {host})"
        )
    if " " in name or re.match("slots *=", name, re.IGNORECASE):
        raise DiscoveryError(
            f"{_shown(entry)} is more than a host and its slots: write host:4, or mpirun's host slots=4"
        )
    if bracketed := _BRACKETED_PATTERN.fullmatch(name):
        try:
            ipaddress.IPv6Address(bracketed[1])
        except ValueError:
            raise DiscoveryError(f"{_shown(entry)} has no IPv6 address in its brackets: {_EXPECTED_FORMS}") from None
        return bracketed[1]
    if ":" in name and not name.startswith("["):
        raise DiscoveryError(
            f"{_shown(entry)} has too many colons: {_EXPECTED_FORMS}; write an IPv6 address in brackets, [::1]:slots"
        )
    raise DiscoveryError(
        f"{_shown(entry)} has no host name (letters, digits, '.', '-', '_'; alphanumeric first): {_EXPECTED_FORMS}"
    )


def _shown(entry: bytes) -> str:
    """The entry's beginning, fit for a terminal: quoted, in ASCII, with all else as escapes."""
    return repr(entry[:_MAX_SHOWN_CHARACTERS])[1:] + ("..." if len(entry) > _MAX_SHOWN_CHARACTERS else "")
