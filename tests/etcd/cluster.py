"""A real etcd cluster on this machine: three members, on loopback, with TLS if asked for."""

from __future__ import annotations

import contextlib
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import trustme

from edriver.driver.journal.etcd_client import EtcdAddress, EtcdClient, EtcdError
from tests.needs import ETCD, require

MEMBERS = 3
START_TIMEOUT = 60.0


class TlsFiles:
    """An authority, a certificate that it has signed for the members and for who calls them, and that one's key."""

    def __init__(self, folder: Path) -> None:
        authority = trustme.CA()
        issued = authority.issue_cert("127.0.0.1")
        self.authority, self.certificate, self.key = (folder / f"{name}.pem" for name in ("authority", "cert", "key"))
        authority.cert_pem.write_to_path(str(self.authority))
        issued.cert_chain_pems[0].write_to_path(str(self.certificate))
        issued.private_key_pem.write_to_path(str(self.key))

    @property
    def environ(self) -> dict[str, str]:
        """As etcdctl has them."""
        return {
            "ETCDCTL_CACERT": str(self.authority),
            "ETCDCTL_CERT": str(self.certificate),
            "ETCDCTL_KEY": str(self.key),
        }

    @property
    def words(self) -> dict[str, str]:
        """As a member has them, which wants one of those who call it, too."""
        return {
            "trusted-ca-file": str(self.authority),
            "cert-file": str(self.certificate),
            "key-file": str(self.key),
            "client-cert-auth": "true",
        }


class Cluster:
    """Its members, by number."""

    def __init__(self, folder: Path, tls: TlsFiles | None = None) -> None:
        self._folder = folder
        self._tls = tls
        self._held = [socket.create_server(("127.0.0.1", 0)) for _ in range(2 * MEMBERS)]
        ports = [held.getsockname()[1] for held in self._held]
        self._clients = [f"{'https' if tls else 'http'}://127.0.0.1:{port}" for port in ports[::2]]
        self._peers = [f"http://127.0.0.1:{port}" for port in ports[1::2]]
        self.urls = ",".join(self._clients)
        self._processes: dict[int, subprocess.Popen[bytes]] = {}

    def start(self) -> None:
        for held in self._held:  # until all ports are known, so that none is given out twice
            held.close()
        for n in range(MEMBERS):
            self.start_member(n)
        client = self.client()
        try:
            self._wait_until_it_answers(client)
        finally:
            client.close()

    def start_member(self, n: int) -> None:
        words = {
            "name": f"m{n}",
            "data-dir": str(self._folder / f"m{n}"),
            "listen-client-urls": self._clients[n],
            "advertise-client-urls": self._clients[n],
            "listen-peer-urls": self._peers[n],
            "initial-advertise-peer-urls": self._peers[n],
            "initial-cluster": ",".join(f"m{k}={peer}" for k, peer in enumerate(self._peers)),
            "logger": "zap",
            "log-outputs": str(self._folder / f"m{n}.log"),
            **(self._tls.words if self._tls else {}),
        }
        command = ["etcd", *(f"--{name}={value}" for name, value in words.items())]
        self._processes[n] = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def kill_member(self, n: int) -> None:
        process = self._processes.pop(n)
        process.kill()
        process.wait()

    def signal_all(self, number: int) -> None:
        for process in self._processes.values():
            process.send_signal(number)

    def client(self) -> EtcdClient:
        return EtcdClient(EtcdAddress.parse(self.urls, self._tls.environ if self._tls else {}))

    def close(self) -> None:
        for n in [*self._processes]:
            self._processes[n].send_signal(signal.SIGCONT)
            self.kill_member(n)

    def _wait_until_it_answers(self, client: EtcdClient) -> None:
        waiter = Waiter(START_TIMEOUT)
        while True:
            with contextlib.suppress(EtcdError):
                client.range(b"there?")
                return
            waiter.wait(self._processes[0])


class Waiter:
    """Waits a moment at a time, for a process that must not end meanwhile."""

    def __init__(self, timeout: float) -> None:
        self._left = timeout

    def wait(self, process: subprocess.Popen[bytes]) -> None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(0.1)
            raise AssertionError(f"etcd has ended: {process.returncode}")
        self._left -= 0.1
        assert self._left > 0, "etcd does not answer"


@contextlib.contextmanager
def etcd_cluster(folder: Path, tls: TlsFiles | None = None) -> Iterator[Cluster]:
    require(ETCD)
    cluster = Cluster(folder, tls)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.close()
