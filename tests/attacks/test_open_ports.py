"""What strangers, and holders of the agents' token, do to a run that goes on: nothing."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import resource
import signal
import socket
from collections.abc import Iterator
from contextlib import AsyncExitStack, ExitStack, contextmanager
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from edriver.common.join_config import SERVER_NAME, JoinConfig
from edriver.common.release import PROTOCOL, VERSION
from edriver.v1 import agent_pb2, agent_pb2_grpc
from edriver.v1.agent_pb2 import ConnectRequest
from edriver.wire import health_port, port_watch
from edriver.wire.health_port import LIVENESS, MAX_CONNECTIONS, HealthPort
from tests.attacks.ports import HTTP2
from tests.process.dialling import CREDENTIALS, TRAIN, Agents, dialled
from tests.process.running import Run, running

STRANGERS = 1300
LIMITED = ("sh", "-c", 'ulimit -n 1024; exec "$@"', "sh")
BOUND = 240.0


@pytest.fixture
def many_descriptors() -> Iterator[None]:
    """Raise the limit of open files of this process, which opens the connections of all strangers."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 4 * STRANGERS)), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def port_of(run: Run) -> int:
    return int(run.line(r"edriver agent --driver \S+:(\d+)")[1])


@pytest.mark.usefixtures("many_descriptors")
def test_1300_strangers_at_ulimit_1024_cost_no_event_and_keep_no_host_out(tmp_path: Path) -> None:
    log = tmp_path / "events.jsonl"
    flags = ("--hosts-dial-in", "--credentials", str(tmp_path / "run.json"), "--event-log", str(log))
    environ = {"EPOCHS": "400"}
    sizes = ("-np", "2", "--min-np", "1", "--max-np", "3")
    with (
        running([*flags, *sizes, *TRAIN], tmp_path, environ, through=LIMITED) as run,
        ExitStack() as strangers,
    ):
        agents = Agents(run, tmp_path, environ)
        strangers.callback(agents.kill)
        agents.start("a")
        agents.start("b")
        run.line("rank 1 passed step 5")
        for _ in range(STRANGERS):
            strangers.enter_context(socket.create_connection(("127.0.0.1", port_of(run)), BOUND))
        run.line("showed no token: their connections are closed")
        after = len(run.lines)
        os.kill(run.pids()[1], signal.SIGKILL)
        run.line(r"rank 0 of 1 .* at step", after)
        agents.start("c")
        run.line(r"discovery: added c:1", after)
        run.process.send_signal(signal.SIGINT)
        assert run.end() == 130
        assert run.gone(), run.left_behind()
    reported = [json.loads(line) for line in log.read_text().splitlines()]
    assert [int(event["seq"]) for event in reported] == list(range(1, len(reported) + 1))
    assert "run_ended" in reported[-1]
    assert "cannot be written" not in run.text


class Holder:
    """An attacker that holds the agents' token, and sends arbitrary messages.

    Args:
        run: the run's driver.
        credentials: the file that it has written.
    """

    def __init__(self, channel: grpc.Channel) -> None:
        self._stub = agent_pb2_grpc.AgentServiceStub(channel)

    def says(self, run_id: str, *messages: ConnectRequest, **hello: object) -> Iterator[agent_pb2.ConnectResponse]:
        """What the driver answers; the stream stays open until it ends it."""
        message = agent_pb2.Hello(**{"run_id": run_id, "version": VERSION, "protocol": PROTOCOL, "pid": 1, **hello})  # type: ignore[arg-type]
        return self._stub.Connect(iter([ConnectRequest(hello=message), *messages]), timeout=BOUND)

    def is_refused(self, run_id: str, **hello: object) -> tuple[grpc.StatusCode, str]:
        """How the driver refuses a Hello."""
        with pytest.raises(grpc.RpcError) as caught:
            next(self.says(run_id, **hello))
        return caught.value.code(), caught.value.details() or ""


@contextmanager
def holder_of(credentials: Path, port: int) -> Iterator[tuple[Holder, str]]:
    shown = JoinConfig.from_json(credentials.read_bytes())
    tls_credentials = grpc.composite_channel_credentials(
        grpc.ssl_channel_credentials(shown.authority.encode()), grpc.access_token_call_credentials(shown.token)
    )
    options = (("grpc.ssl_target_name_override", SERVER_NAME), ("grpc.enable_http_proxy", 0))
    with grpc.secure_channel(f"127.0.0.1:{port}", tls_credentials, options=options) as channel:
        yield Holder(channel), shown.run_id


def test_a_holder_of_the_agents_token_speaks_for_no_other_host(tmp_path: Path) -> None:
    with dialled(tmp_path, "-np", "2", "--min-np", "1", "--max-np", "3") as (run, agents):
        agents.start("a")
        agents.start("b")
        run.line("rank 1 passed step 5")
        before = run.pids()
        with holder_of(tmp_path / CREDENTIALS, port_of(run)) as (holder, run_id):
            for host in ("a", "b"):
                refusals = [holder.is_refused(run_id, host=host, agent_id=number) for number in (1, 2)]
                assert grpc.StatusCode.OK not in {code for code, _ in refusals}
                assert f"of host {host} must show its secret" in " ".join(text for _, text in refusals)
            assert holder.is_refused(run_id, host="a", slots=1)[0] is grpc.StatusCode.ALREADY_EXISTS
            # As a host of its own it is let in, and says of the others' workers what it likes.
            forged = [
                ConnectRequest(seq=seq, worker_exited=agent_pb2.WorkerExited(worker_id=seq, code=-9)) for seq in (1, 2)
            ]
            answers = holder.says(run_id, *forged, host="evil", slots=1)
            assert next(answers).welcome.secret
            run.line("the agent of host evil reports on worker 1, which it does not own: that is left out")
        after = len(run.lines)
        run.line("host evil is lost", after)
        run.line(r"rank 1 passed step \d+", len(run.lines))
        assert run.pids() == before
        run.process.send_signal(signal.SIGINT)
        assert run.end() == 130
        assert run.gone(), run.left_behind()


def test_one_message_of_an_agent_does_not_take_the_driver_down(tmp_path: Path) -> None:
    with dialled(tmp_path, "-np", "1") as (run, agents):
        agents.start("a")
        run.line("rank 0 passed step 5")
        with holder_of(tmp_path / CREDENTIALS, port_of(run)) as (holder, run_id):
            code, text = holder.is_refused(run_id, host="h", slots=4294967295)
            assert (code, text) == (
                grpc.StatusCode.INVALID_ARGUMENT,
                "Hello.slots is 4294967295: at most 4096 is allowed",
            )
            assert holder.is_refused(run_id, host="\x1b[2J", slots=1)[0] is grpc.StatusCode.INVALID_ARGUMENT
        run.line(r"rank 0 passed step \d+", len(run.lines))
        run.process.send_signal(signal.SIGINT)
        assert run.end() == 130
        assert "\x1b" not in run.text


class Told(logging.Handler):
    """What was logged, and that something was."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []
        self.some = asyncio.Event()

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())
        self.some.set()


@pytest.mark.parametrize("calls", ["nothing", "http2", "a-watch"])
def test_strangers_at_the_health_port_make_room_for_probes(calls: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever they do with their connections: a probe has no token to be told by."""
    monkeypatch.setattr(port_watch, "CHECK_INTERVALS", (0.01, 0.01))
    # Or the first would be gone for want of a word before the last is there, on a busy machine.
    patient = dict(health_port._OPTIONS) | {"grpc.server_handshake_timeout_ms": int(BOUND * 1000)}
    monkeypatch.setattr(health_port, "_OPTIONS", tuple(patient.items()))
    question = health_pb2.HealthCheckRequest(service=LIVENESS)
    options = (("grpc.use_local_subchannel_pool", 1), ("grpc.enable_http_proxy", 0))

    async def attacked() -> None:
        told, health = Told(), HealthPort(0, asyncio.Event())
        logging.getLogger("edriver.health").addHandler(told)
        port = await health.open()
        where = f"127.0.0.1:{port}"
        async with AsyncExitStack() as strangers:
            strangers.push_async_callback(health.close)
            strangers.callback(logging.getLogger("edriver.health").removeHandler, told)
            for _ in range(2 * MAX_CONNECTIONS):
                if calls == "a-watch":
                    channel = await strangers.enter_async_context(grpc.aio.insecure_channel(where, options=options))
                    watch = health_pb2_grpc.HealthStub(channel).Watch(question, timeout=BOUND)
                    assert (await watch.read()).status is health_pb2.HealthCheckResponse.SERVING
                else:
                    caller = strangers.enter_context(socket.create_connection(("127.0.0.1", port), BOUND))
                    caller.sendall(HTTP2 if calls == "http2" else b"")
            async with grpc.aio.insecure_channel(where, options=options) as channel:
                answer = await health_pb2_grpc.HealthStub(channel).Check(question, timeout=BOUND)
            assert answer.status is health_pb2.HealthCheckResponse.SERVING
            await told.some.wait()
        words = f"too many connections to the health port {port}, from 127.0.0.1 and perhaps others: "
        assert told.lines == [f"{words}the oldest ones are closed"]

    asyncio.run(asyncio.wait_for(attacked(), BOUND))


def test_the_files_of_a_run_are_readable_by_its_user_alone(tmp_path: Path) -> None:
    flags = ["-np", "1", "--output-filename", "new/out", "--event-log", "log", "--records", "new/records"]
    umask = ("sh", "-c", 'umask 0; exec "$@"', "sh")
    with running([*flags, "sh", "-c", "echo hello"], tmp_path, through=umask) as run:
        run.end()
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert {"log", "run.json", "events.jsonl", "trace.json"} <= {path.name for path in files}
    assert any(path.name.endswith(".stdout") for path in files)
    everything = list(tmp_path.rglob("*"))
    assert {path.name: oct(path.stat().st_mode & 0o777) for path in everything if path.stat().st_mode & 0o077} == {}
