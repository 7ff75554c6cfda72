"""A stranger on the network of a run over ssh: a host of its own that knows every address and every port."""

from __future__ import annotations

import datetime
import re
import subprocess
from pathlib import Path

from edriver.wire.certificate_authority import Authority
from tests.attacks.attackers import on_host, site_with_a_stranger
from tests.attacks.victim import victim
from tests.process.sites import environment_of


def knock(targets: list[list[object]], certificate: str) -> list[str]:
    """Send various messages to these ports; returns those that answered with anything but a TLS alert."""
    import contextlib
    import socket
    import ssl
    import tempfile
    from concurrent import futures

    http2 = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00"
    sayings = [b"", http2, b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b"\x00" * 4096, b"\xff" * 4096, b"set\x00key\x00value"]

    def received(connection: socket.socket) -> bytes:
        connection.settimeout(2.0)
        with contextlib.suppress(OSError):
            connection.shutdown(socket.SHUT_WR)
        with contextlib.suppress(OSError):
            return connection.recv(4096)
        return b""

    def answers(host: str, port: int, pair: str) -> list[str]:
        answered = []
        for number, message in enumerate(sayings):
            with contextlib.suppress(OSError), socket.create_connection((host, port), 5.0) as line:
                line.sendall(message)
                if received(line)[:1] not in (b"", b"\x15"):
                    answered.append(f"{host}:{port} to {number}")
        for shown in (False, True):
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
            if shown:
                context.load_cert_chain(pair)
            with contextlib.suppress(OSError), socket.create_connection((host, port), 5.0) as line:
                line.settimeout(5.0)
                with context.wrap_socket(line) as secure:
                    secure.sendall(http2)
                    if b"edriver" in received(secure):
                        answered.append(f"{host}:{port} over TLS")
        return answered

    with tempfile.NamedTemporaryFile("w", suffix=".pem") as pair, futures.ThreadPoolExecutor(len(targets)) as threads:
        pair.write(certificate)
        pair.flush()
        answers_of = [threads.submit(answers, str(host), int(str(port)), pair.name) for host, port in targets]
        return [answered for answer in answers_of for answered in answer.result()]


def foreign_papers() -> str:
    """A certificate as a run's workers have, of another run's authority, with its key."""
    foreign = Authority.of_run("foreign", datetime.datetime.now(datetime.UTC))
    return (foreign.member_key + foreign.member_certificate).decode()


def test_a_stranger_at_every_port_of_a_run_over_ssh_costs_nothing(tmp_path: Path) -> None:
    with site_with_a_stranger(tmp_path, 2) as (there, stranger):
        through = ["ip", "netns", "exec", there.hosts[0].namespace]
        ours = {"PATH": there.ssh.path}
        with victim("-H", "host1:1,host2:1", environ=ours, through=through) as run:
            run.may_say(r"edriver: refused a call from ")
            run.trains()
            assert all(environment_of(pid)["EDRIVER_HOST"].startswith("host") for pid in run.workers())
            targets: list[list[object]] = []
            for host in there.hosts:
                targets += [[host.address, port] for port in ports_of(host.namespace)]
            assert len(targets) >= 5  # the driver's; two workers' stores, and Gloo's
            assert on_host(stranger, knock, targets, foreign_papers()) == []
            run.goes_on()
            run.is_unharmed()
        assert [left for left in there.left() if "torchinductor" not in left] == []  # a cache of torch's


def ports_of(namespace: str) -> list[int]:
    """The ports at which a host listens for others, but for ssh's."""
    listed = subprocess.run(
        ["ip", "netns", "exec", namespace, "ss", "--no-header", "--numeric", "--tcp", "--listening"],
        check=True,
        capture_output=True,
        text=True,
        timeout=120,
    )
    return sorted({int(port) for port in re.findall(r":(\d+)\s+\S+:\*", listed.stdout)} - {22})
