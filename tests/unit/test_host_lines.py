"""Host lines, lists and hostfiles: what is read, and how everything else is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from edriver.discovery.errors import DiscoveryError
from edriver.discovery.hosts import MAX_LINE_CHARACTERS, MAX_LINES, parse_host_list, parse_hosts
from edriver.discovery.sources import read_hostfile
from edriver.model.hosts import Devices


def pairs(text: str | bytes) -> list[tuple[str, int]]:
    return [(host.name, host.slots) for host in parse_hosts(text, default_slots=7)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param("a:2\nb:4\n", [("a", 2), ("b", 4)], id="slots"),
        pytest.param("a\n", [("a", 7)], id="default-slots"),
        pytest.param(b"a:2", [("a", 2)], id="bytes-without-line-end"),
        pytest.param("a:2\r\nb\r\n", [("a", 2), ("b", 7)], id="windows-line-ends"),
        pytest.param("\n  a:2\t\n\n", [("a", 2)], id="space-and-blank-lines"),
        pytest.param("# hosts\na:2\n  #b:2\n", [("a", 2)], id="comments"),
        pytest.param(b"# caf\xe9 \x00\na:2\n", [("a", 2)], id="comments-are-not-judged"),
        pytest.param("10.0.0.1:2", [("10.0.0.1", 2)], id="ipv4"),
        pytest.param("[::1]:2\n[fe80::1%eth0]", [("::1", 2), ("fe80::1%eth0", 7)], id="ipv6"),
        pytest.param("gpu-1.rack_2.example.org:2", [("gpu-1.rack_2.example.org", 2)], id="long-name"),
        pytest.param("a slots=4\nb  slots = 2\n[::1] slots=1", [("a", 4), ("b", 2), ("::1", 1)], id="mpirun"),
        pytest.param("a:1\nb:1024", [("a", 1), ("b", 1024)], id="slots-limits"),
        pytest.param("z:1\na:1\n", [("z", 1), ("a", 1)], id="order-kept"),
        pytest.param("a:0\nb:2\nc slots=0", [("b", 2)], id="no-worker-there"),
        pytest.param("LOCALHOST:2", [("localhost", 2)], id="localhost-in-capitals"),
        pytest.param("localhost.\nb.example.org.:2", [("localhost", 7), ("b.example.org", 2)], id="whole-names"),
        pytest.param("a SLOTS=4", [("a", 4)], id="mpirun-in-capitals"),
        pytest.param("", [], id="empty"),
        pytest.param("# none today\n", [], id="only-comments"),
    ],
)
def test_reads(text: str | bytes, expected: list[tuple[str, int]]) -> None:
    assert pairs(text) == expected


@pytest.mark.parametrize(
    ("text", "written"),
    [
        pytest.param("a:gpu\nb:2", ["a:gpu", "b:2"], id="gpu"),
        pytest.param("a:CPU\n[::1]:auto", ["a:cpu", "[::1]:auto"], id="cpu-and-auto"),
        pytest.param("a slots=gpu", ["a:gpu"], id="mpirun"),
        pytest.param("a\nb:2", ["a:auto", "b:2"], id="default"),
    ],
)
def test_slots_that_are_counted_on_the_host(text: str, written: list[str]) -> None:
    hosts = parse_hosts(text, Devices.AUTO)
    assert [str(host) for host in hosts] == written
    assert not hosts.is_counted
    assert hosts.total_slots == sum(int(each[2:]) for each in written if each[2:].isdecimal())


SLOTS = "slots must be a whole number from 1 to 1024, or gpu, cpu, auto"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        pytest.param("a:2\nb:zero\n", f"line 2: 'b:zero': {SLOTS}", id="word"),
        pytest.param("a:-1", f"line 1: 'a:-1': {SLOTS}", id="negative"),
        pytest.param("a:+2", f"line 1: 'a:+2': {SLOTS}", id="sign"),
        pytest.param("a:2.5", f"line 1: 'a:2.5': {SLOTS}", id="fraction"),
        pytest.param("a:", f"line 1: 'a:': {SLOTS}", id="nothing-after-colon"),
        pytest.param("a: 2", f"line 1: 'a: 2': {SLOTS}", id="space-after-colon"),
        pytest.param("a:100000", f"line 1: 'a:100000': {SLOTS}", id="too-many"),
        pytest.param("a:29500", "line 1: 'a:29500': is 29500 a port? The number after the colon", id="port"),
        pytest.param(
            "a:1025", "is 1025 a port? The number after the colon is the host's number of slots, 1024", id="low-port"
        ),
        pytest.param("a:" + "9" * 900, SLOTS, id="absurdly-many"),
        pytest.param("a:\u0662", SLOTS, id="digits-of-another-script"),
        pytest.param("a:2\n\n#\na:4", "line 4: 'a:4' is listed twice, first in line 1: list it once", id="duplicate"),
        pytest.param("::1:2", "too many colons", id="ipv6-without-brackets"),
        pytest.param("[::1:2", "no host name", id="open-bracket"),
        pytest.param("[::zz]:2", "no IPv6 address in its brackets", id="no-ipv6"),
        pytest.param("[::1%;reboot]", "no host name", id="strange-scope"),
        pytest.param(":2", "no host name", id="no-name"),
        pytest.param("a b:2", "more than a host and its slots: write host:4", id="space-in-name"),
        pytest.param("user@a:2", "names an account: write the host alone, and its account as User", id="user-in-name"),
        pytest.param("user@[::1]", "names an account", id="user-of-an-address"),
        pytest.param("slots=4", "write host:4, or mpirun's host slots=4", id="slots-without-a-host"),
        pytest.param("a:slots=4", "write host:4, or mpirun's host slots=4", id="slots-after-a-colon"),
        pytest.param("a slots=", "write host:4, or mpirun's host slots=4", id="slots-without-a-number"),
        pytest.param("a 4", "write host:4, or mpirun's host slots=4", id="number-after-a-space"),
        pytest.param("a slots=4 max_slots=8", "write host:4, or mpirun's host slots=4", id="more-of-mpirun"),
        pytest.param("a:2\nA.:4", "line 2: 'A.:4' is listed twice, first in line 1", id="duplicate-in-capitals"),
        pytest.param("a:0\na:4", "line 2: 'a:4' is listed twice, first in line 1", id="duplicate-without-slots"),
        pytest.param("-oProxyCommand=x:2", "no host name", id="ssh-option"),
        pytest.param("-v:2", "no host name", id="ssh-flag"),
        pytest.param("a max_slots=4", "write host:4, or mpirun's host slots=4", id="other-mpirun-words"),
        pytest.param("h\u00f6st:2", "no host name", id="non-ascii-name"),
        pytest.param(b"ok:1\n\xff\xfe\x00", r"line 2: '\xff\xfe\x00' is not UTF-8 text", id="binary"),
        pytest.param(b"\x1b[2J:1", r"line 1: '\x1b[2J:1' has control characters in it", id="terminal-escapes"),
        pytest.param("a\x00:2", "has control characters in it", id="nul"),
        pytest.param("a\ud800:2", "is not UTF-8 text", id="lone-surrogate"),
        pytest.param("x" * (MAX_LINE_CHARACTERS + 1), "is longer than 1024 characters", id="long-line"),
        pytest.param("\n".join(f"h{n}:1024" for n in range(65)), "66560 slots in all: a run has", id="too-many-in-all"),
        pytest.param(f"{'x' * 254}:1", "a host name of 254 characters: at most 253", id="long-name"),
        pytest.param("a\n" * (MAX_LINES + 1), f"more than {MAX_LINES} lines", id="too-many-lines"),
    ],
)
def test_refuses(text: str | bytes, message: str) -> None:
    with pytest.raises(DiscoveryError) as caught:
        parse_hosts(text, default_slots=1)
    assert message in str(caught.value)


def test_a_huge_line_is_refused_without_being_repeated() -> None:
    with pytest.raises(DiscoveryError) as caught:
        parse_hosts(b"a:2\n" + b"x" * 10_000_000, default_slots=1)
    assert str(caught.value).startswith("line 2: 'xxxx")
    assert len(str(caught.value)) < 200


def test_a_hostile_file_is_read_in_linear_time() -> None:
    # Backtracking over the spaces of these lines would take minutes, and the suite's timeout would end it.
    with pytest.raises(DiscoveryError, match="and 3995 more"):
        parse_hosts(("a" + " " * 1000 + "b\n") * 4000, default_slots=1)


def test_several_bad_lines_come_in_one_message() -> None:
    with pytest.raises(DiscoveryError) as caught:
        parse_hosts("".join(f"h{n}:x\n" for n in range(8)), default_slots=1)
    message = str(caught.value)
    assert [f"line {n}:" in message for n in range(1, 9)] == [True] * 5 + [False] * 3
    assert message.endswith("; and 3 more")
    assert "\n" not in message


def test_list_reads_items() -> None:
    hosts = parse_host_list("a:2, b ,[::1]:4", default_slots=3)
    assert [(host.name, host.slots) for host in hosts] == [("a", 2), ("b", 3), ("::1", 4)]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        pytest.param("a:2,b:x", f"item 2: 'b:x': {SLOTS}", id="bad-slots"),
        pytest.param("a:2,a:2", "item 2: 'a:2' is listed twice, first in item 1", id="duplicate"),
        pytest.param("a:2,,b:2", "item 2: '' has no host name", id="hole"),
        pytest.param("a:2,", "item 2: '' has no host name", id="trailing-comma"),
        pytest.param("", "item 1: '' has no host name", id="empty"),
    ],
)
def test_list_refuses(text: str, message: str) -> None:
    with pytest.raises(DiscoveryError) as caught:
        parse_host_list(text)
    assert message in str(caught.value)


def test_a_hostfile_is_read(tmp_path: Path) -> None:
    path = tmp_path / "hosts"
    path.write_text("# two\na slots=2\nb:2\n")
    assert read_hostfile(path, default_slots=1) == parse_host_list("a:2,b:2")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        pytest.param(None, "cannot be read: No such file or directory", id="missing"),
        pytest.param(b"", "it names no host", id="empty"),
        pytest.param(b"a:2\nb:zero\n", "line 2: 'b:zero'", id="bad-line"),
        pytest.param(b"#" * (4 * 1024 * 1024 + 1), "larger than 4 MiB", id="too-large"),
    ],
)
def test_a_bad_hostfile_is_refused_by_name(tmp_path: Path, content: bytes | None, message: str) -> None:
    path = tmp_path / "hosts"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(DiscoveryError) as caught:
        read_hostfile(path, default_slots=1)
    assert message in str(caught.value)
    assert str(path) in str(caught.value)
