"""What discovery prints: valid lines are read as they were meant, and of all others one sentence says what is wrong."""

from __future__ import annotations

import ipaddress

from hypothesis import example, given
from hypothesis import strategies as st

from edriver.discovery.errors import DiscoveryError
from edriver.discovery.hosts import MAX_WRITTEN_SLOTS, parse_host_list, parse_hosts
from edriver.model.hosts import Host, HostSet
from edriver.model.limits import MAX_HOST_NAME_LENGTH, MAX_TOTAL_SLOTS, is_host_name
from tests.fuzz.strategies import check_sentence

NAMES = st.from_regex(r"\A[a-z0-9_][a-z0-9._-]{0,20}[a-z0-9]\Z").filter(lambda name: name != "localhost")
ADDRESSES = st.ip_addresses(v=6).map(str)
HOSTS = st.lists(
    st.builds(Host, NAMES | ADDRESSES, st.integers(1, MAX_WRITTEN_SLOTS)), max_size=8, unique_by=lambda host: host.name
)
SPACES = st.text(" \t\r", max_size=3)
PIECES = st.sampled_from(
    [
        "a",
        "b:2",
        "[::1]:2",
        "a slots=2",
        ":",
        "::",
        "@",
        "gpu",
        "0",
        "99999",
        "#",
        "\n",
        ",",
        " ",
        "\x1b[2J",
        "é",
        "]",
        "[",
    ]
)
LINES = st.lists(PIECES | st.text(max_size=5), max_size=12).map("".join)


@given(HOSTS, st.data())
def test_hosts_are_read_as_they_are_written(hosts: list[Host], data: st.DataObject) -> None:
    lines = [data.draw(SPACES) + _written(host, data.draw(st.booleans())) + data.draw(SPACES) for host in hosts]
    rest = st.lists(st.sampled_from(["", "  ", "# a comment", "#b:2"]), max_size=2)
    text = "\n".join(line for each in lines for line in (*data.draw(rest), each))
    assert parse_hosts(text, 1) == parse_hosts(text.encode(), 1) == HostSet(tuple(hosts))
    listed = ",".join(map(str, hosts))
    assert not hosts or parse_host_list(listed) == HostSet(tuple(hosts))


def _written(host: Host, as_mpirun_does: bool) -> str:
    if not as_mpirun_does or ":" in host.name:
        return str(host)
    return f"{host.name} slots={host.slots}"


@given(st.binary(max_size=60) | LINES.map(lambda text: text.encode("utf-8", "surrogatepass")))
@example(b"a:1\x00")
@example(b"\xff\xfe")
@example(b"[::1]:2")
@example(b"a" * 2000)
def test_whatever_is_printed_is_hosts_or_one_sentence(printed: bytes) -> None:
    try:
        found = parse_hosts(printed, 2)
    except DiscoveryError as error:
        check_sentence(str(error), 2500)
        return
    for host in found:
        assert is_host_name(host.name)
        assert len(host.name) <= MAX_HOST_NAME_LENGTH
        assert 0 <= host.slots <= MAX_WRITTEN_SLOTS
    assert found.total_slots <= MAX_TOTAL_SLOTS
    assert parse_hosts("\n".join(map(str, found)), 2) == found, "what edriver writes it reads back"


@given(LINES)
def test_whatever_is_given_on_the_command_line_is_hosts_or_one_sentence(text: str) -> None:
    try:
        parse_host_list(text)
    except DiscoveryError as error:
        check_sentence(str(error), 2500)


@given(st.text(max_size=40))
def test_a_name_of_a_host_is_safe_on_a_command_line(name: str) -> None:
    if is_host_name(name):
        assert not name.startswith("-")
        assert name.isascii()
        assert not set(name) & set(" \t\n'\"\\$`;&|<>(){}*?!~#/@,")
        if ":" in name:
            ipaddress.IPv6Address(name)
