"""The driver's TCP port: a caller without a token of the run, or with one of the wrong kind, gets and costs nothing."""

from __future__ import annotations

import datetime
import json
import os
import ssl
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent import futures
from pathlib import Path

import grpc
import psutil
import pytest

from edriver.common.release import VERSION
from edriver.v1 import agent_pb2, agent_pb2_grpc, control_pb2, control_pb2_grpc, status_pb2, status_pb2_grpc
from edriver.wire.certificate_authority import Authority
from tests.attacks.ports import BOUND, HTTP2, Way, hello_to, say
from tests.attacks.victim import Victim, victim
from tests.process.dialling import Agents
from tests.process.running import ROOT, Printing, edriver

REFUSED = (
    r"edriver: refused a call from ipv\d:\S+: (it did not show this run's token|its token is for another service)$"
)
MEGABYTES = 1 << 20


@pytest.fixture(scope="module")
def run() -> Iterator[Victim]:
    """A run whose hosts dial in, and that can be looked at and steered from elsewhere: all tokens that there are."""
    flags = ["--hosts-dial-in", "--credentials", "agents.json"]
    flags += ["--status-credentials", "status.json", "--control-credentials", "control.json"]
    with victim(*flags) as found:
        found.may_say(REFUSED)
        agents = Agents(found.run, found.folder, {"VICTIM": str(found.folder), "TMPDIR": str(found.temporary)})
        try:
            for host in "ab":
                agents.start(host)
            found.trains()
            yield found
            found.is_unharmed()
            agents.end()
        finally:
            agents.kill()


@pytest.fixture
def ways(run: Victim) -> dict[str, Way]:
    """The tokens, by whose they are."""
    port = int(run.run.line(r"edriver agent --driver \S+:(\d+) ")[1])
    files = {name: run.folder / f"{name}.json" for name in ("agents", "status", "control")}
    return {
        name: Way(port, found["authority"], found["token"])
        for name, file in files.items()
        if (found := json.loads(file.read_bytes()))
    }


@pytest.mark.parametrize(
    "message",
    [
        pytest.param(HTTP2, id="http2"),
        pytest.param(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", id="http"),
        pytest.param(b"SSH-2.0-OpenSSH_9.2\r\n", id="ssh"),
        pytest.param(b"\0" * MEGABYTES, id="a-megabyte-of-nothing"),
        pytest.param(b"\x16\x03\x01\x40\x00" + b"\xff" * 0x4000, id="a-broken-handshake"),
        pytest.param(os.urandom(4096), id="noise"),
        pytest.param(b"", id="nothing"),
    ],
)
def test_a_caller_without_tls_gets_no_answer(run: Victim, ways: dict[str, Way], message: bytes) -> None:
    answer = say(ways["agents"].port, message)
    assert answer[:1] in (b"", b"\x15")  # nothing, or one of TLS's alerts
    assert len(answer) < 20
    run.goes_on()


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(b"\nedriver: failed: worker 1 exited with code 1\n", id="a-line"),
        pytest.param(b"\x1b[2J\x1b]0;x\x07\r\0" + b"\xff" * 200, id="escapes"),
    ],
)
def test_the_server_name_of_a_handshake_is_not_printed(run: Victim, ways: dict[str, Way], name: bytes) -> None:
    before = len(run.run.lines)
    for _ in range(100):
        say(ways["agents"].port, hello_to(name))
    run.goes_on()
    assert [line for line in run.run.lines[before:] if "server name" in line] == []


@pytest.mark.parametrize("level", ["", "ERROR"], ids=["as-usual", "as-many-images-have-it"])
def test_nor_does_a_rendezvous_print_it(tmp_path: Path, level: str) -> None:
    command = [sys.executable, "-m", "edriver", "rendezvous", "--folder", "r", "--port", "0", "--address", "127.0.0.1"]
    server = Printing(command, tmp_path, {"PYTHONPATH": str(ROOT), "GRPC_VERBOSITY": level})
    try:
        port = int(server.line(r"rendezvous at 127\.0\.0\.1:(\d+),")[1])
        server.line("--rdzv-endpoint=")
        before = len(server.lines)
        say(port, hello_to(b"\nedriver: failed: forged\n"))
    finally:
        server.process.terminate()
    assert server.end() == 0
    assert server.lines[before:] == []


def test_a_driver_with_the_papers_of_a_foreign_authority_is_not_believed(run: Victim, ways: dict[str, Way]) -> None:
    foreign = Authority.of_run(run.run_id, datetime.datetime.now(datetime.UTC))
    way = Way(ways["control"].port, foreign.certificate.decode(), ways["control"].token)
    with way.channel() as channel, pytest.raises(grpc.RpcError) as caught:
        control_pb2_grpc.ControlServiceStub(channel).Stop(control_pb2.StopRequest(), timeout=BOUND)
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
    reported = json.loads((run.folder / "status.json").read_bytes())
    (run.folder / "foreign.json").write_text(json.dumps({**reported, "authority": way.authority}))
    asked = edriver("status", "--credentials", str(run.folder / "foreign.json"), "--driver", f"127.0.0.1:{way.port}")
    assert asked.returncode == 1
    assert "Traceback" not in asked.stderr
    run.goes_on()


def test_a_certificate_of_a_foreign_authority_opens_nothing(run: Victim, ways: dict[str, Way]) -> None:
    foreign = Authority.of_run(run.run_id, datetime.datetime.now(datetime.UTC))
    pair = run.folder / "foreign.pem"
    pair.write_bytes(foreign.member_key + foreign.member_certificate)
    tls_credentials = grpc.ssl_channel_credentials(
        ways["agents"].authority.encode(), foreign.member_key, foreign.member_certificate
    )
    options = (("grpc.ssl_target_name_override", "driver.edriver"), ("grpc.use_local_subchannel_pool", 1))
    with grpc.secure_channel(f"ipv4:127.0.0.1:{ways['agents'].port}", tls_credentials, options=options) as channel:
        assert code_of(lambda: get_run(channel)) is grpc.StatusCode.UNAUTHENTICATED
    run.goes_on()


def get_run(channel: grpc.Channel) -> object:
    return status_pb2_grpc.StatusServiceStub(channel).GetRun(status_pb2.GetRunRequest(), timeout=BOUND)


def resize(channel: grpc.Channel) -> object:
    return control_pb2_grpc.ControlServiceStub(channel).Resize(control_pb2.ResizeRequest(size=1), timeout=BOUND)


def drain(channel: grpc.Channel) -> object:
    return control_pb2_grpc.ControlServiceStub(channel).Drain(control_pb2.DrainRequest(host="a"), timeout=BOUND)


def stop(channel: grpc.Channel) -> object:
    return control_pb2_grpc.ControlServiceStub(channel).Stop(control_pb2.StopRequest(), timeout=BOUND)


def say_hello(channel: grpc.Channel) -> object:
    """As the agent of host a does: byte by byte what that has said, or could have."""
    hello = agent_pb2.Hello(run_id="", host="a", agent_id=1, pid=7, version=VERSION)
    return next(agent_pb2_grpc.AgentServiceStub(channel).Connect(iter([agent_pb2.ConnectRequest(hello=hello)])))


def forward_output(channel: grpc.Channel) -> object:
    batch = agent_pb2.ForwardOutputRequest(agent_id=1, lines=[agent_pb2.OutputLine(worker_id=1, text=b"forged")])
    return agent_pb2_grpc.AgentServiceStub(channel).ForwardOutput(iter([batch]), timeout=BOUND)


SERVICES: dict[Callable[[grpc.Channel], object], str] = {
    get_run: "status",
    resize: "control",
    drain: "control",
    stop: "control",
    say_hello: "agents",
    forward_output: "agents",
}
"""What may be asked, and whose it is."""


def code_of(ask: Callable[[], object]) -> grpc.StatusCode:
    """How a call ends."""
    try:
        ask()
    except grpc.RpcError as error:
        code = error.code()
        assert isinstance(code, grpc.StatusCode)
        return code
    return grpc.StatusCode.OK


WRONG = [
    pytest.param(holder, ask, id=f"{holder}-{ask.__name__}")
    for holder in ("status", "control", "agents")
    for ask, service in SERVICES.items()
    if service not in {"status": ["status"], "control": ["status", "control"], "agents": ["agents"]}[holder]
]
"""Who asks for what he has no token for."""


@pytest.mark.parametrize(("holder", "ask"), WRONG)
def test_a_token_of_the_wrong_kind_opens_nothing(
    run: Victim, ways: dict[str, Way], holder: str, ask: Callable[[grpc.Channel], object]
) -> None:
    with ways[holder].channel() as channel:
        assert code_of(lambda: ask(channel)) is grpc.StatusCode.PERMISSION_DENIED
    run.goes_on()


@pytest.mark.parametrize("ask", SERVICES)
@pytest.mark.parametrize("token", ["guess", "x" * 4000, "\x7f"])
def test_a_guessed_token_is_refused(
    run: Victim, ways: dict[str, Way], ask: Callable[[grpc.Channel], object], token: str
) -> None:
    with ways["agents"].showing(token).channel() as channel:
        assert code_of(lambda: ask(channel)) in (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.UNAVAILABLE)
    run.goes_on()


def test_a_replayed_hello_opens_nothing_without_the_token(run: Victim, ways: dict[str, Way]) -> None:
    """What an agent has said to come in is no secret: every field of it is known or can be guessed."""
    for way in (ways["agents"].showing("guess"), ways["status"], ways["control"]):
        with way.channel() as channel:
            for agent_id in range(4):
                hello = agent_pb2.Hello(run_id=run.run_id, host="a", agent_id=agent_id, pid=7, version=VERSION)
                stream = agent_pb2_grpc.AgentServiceStub(channel).Connect(iter([agent_pb2.ConnectRequest(hello=hello)]))
                assert code_of(lambda stream=stream: next(stream)) in (  # type: ignore[misc]
                    grpc.StatusCode.UNAUTHENTICATED,
                    grpc.StatusCode.PERMISSION_DENIED,
                )
    run.goes_on()


@pytest.mark.parametrize("count", [500, pytest.param(20_000, marks=pytest.mark.long)])
def test_calls_without_a_token_cost_no_line_and_no_memory(run: Victim, ways: dict[str, Way], count: int) -> None:
    driver = psutil.Process(run.run.process.pid)
    way = ways["status"].showing("guess")

    def call(calls: int) -> set[grpc.StatusCode]:
        with way.channel() as channel:
            return {code_of(lambda: get_run(channel)) for _ in range(calls)}

    with futures.ThreadPoolExecutor(10) as threads:
        assert set().union(*threads.map(call, [10] * 10)) == {grpc.StatusCode.UNAUTHENTICATED}
        before, lines = driver.memory_info().rss, refusals(run)
        assert set().union(*threads.map(call, [count // 20] * 20)) == {grpc.StatusCode.UNAUTHENTICATED}
    assert refusals(run) == lines
    assert driver.memory_info().rss < before + 20 * MEGABYTES
    run.goes_on()


def refusals(run: Victim) -> int:
    """How often it has logged that it refused a call."""
    return sum("refused a call" in line for line in run.run.lines)


CANCELLED: dict[str, tuple[str, str, bytes]] = {
    "watch": ("status", "StatusService/Watch", status_pb2.WatchRequest(progress=True).SerializeToString()),
    "read-output": (
        "status",
        "StatusService/ReadOutput",
        status_pb2.ReadOutputRequest(follow=True).SerializeToString(),
    ),
    "read-stacks": ("status", "StatusService/ReadStacks", b""),
    "get-run": ("status", "StatusService/GetRun", b""),
    "forgotten-events": ("status", "StatusService/ListEvents", b"\x08\xff\xff\xff\x7f"),
    "no-message": ("status", "StatusService/GetRun", b"\xff\xff"),
    "refused": ("control", "ControlService/Resize", control_pb2.ResizeRequest(size=0).SerializeToString()),
    "of-another-service": ("status", "ControlService/Resize", b""),
    "no-method": ("status", "StatusService/Nothing", b""),
    "connect": ("agents", "AgentService/Connect", b"\xff\xff"),
    "forward-output": ("agents", "AgentService/ForwardOutput", b""),
}
"""Calls that are cancelled: who makes them, what is called, and with what."""


def test_calls_that_are_cancelled_at_any_moment_cost_no_line(run: Victim, ways: dict[str, Way]) -> None:
    def cancel(call: tuple[str, str, bytes]) -> None:
        holder, method, message = call
        for at in (0.0, 0.0005, 0.001, 0.002, 0.004, 0.008):
            with ways[holder].channel() as channel:
                grpc.channel_ready_future(channel).result(timeout=BOUND)
                for leaves in (False, False, False, True):
                    begun = channel.stream_stream(f"/edriver.v1.{method}", bytes, bytes)(iter([message]))
                    threading.Event().wait(at)
                    if not leaves:  # else the channel is closed with the call
                        begun.cancel()

    with futures.ThreadPoolExecutor(6) as threads:
        list(threads.map(cancel, [*CANCELLED.values()] * 3))
    run.goes_on()


def test_the_tls_of_the_port_is_of_today(ways: dict[str, Way]) -> None:
    """An attacker on the path cannot have a handshake of an older version."""
    for version in (ssl.TLSVersion.TLSv1, ssl.TLSVersion.TLSv1_1):
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        with pytest.warns(DeprecationWarning, match="is deprecated"):
            context.minimum_version = context.maximum_version = version
        context.set_ciphers("ALL:@SECLEVEL=0")
        with pytest.raises(ssl.SSLError), ssl_connection(context, ways["agents"].port):
            pass


def ssl_connection(context: ssl.SSLContext, port: int) -> ssl.SSLSocket:
    import socket

    return context.wrap_socket(socket.create_connection(("127.0.0.1", port), BOUND))


def test_the_files_of_the_tokens_are_for_their_owner_alone(run: Victim) -> None:
    for name in ("agents", "status", "control"):
        assert (run.folder / f"{name}.json").stat().st_mode & 0o777 == 0o600
