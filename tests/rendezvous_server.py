"""A real `edriver rendezvous`, as tests start, kill and restart it."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from edriver.common.join_config import JoinConfig
from edriver.rendezvous.address import CREDENTIALS_FILE


class Server:
    """The process. Its folder outlives it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.credentials_file = folder / CREDENTIALS_FILE
        self.port = 0
        self.process: subprocess.Popen[str] | None = None
        self.start()

    def start(self) -> None:
        command = [sys.executable, "-m", "edriver", "rendezvous", "--folder", str(self.folder)]
        self.process = subprocess.Popen(
            [*command, "--address", "127.0.0.1", "--port", str(self.port)], stdout=subprocess.PIPE, text=True
        )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        match = re.search(r"rendezvous at 127.0.0.1:(\d+), credentials: ", line)
        assert match, line
        self.port = int(match[1])

    def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()

    @property
    def endpoint(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def credentials(self) -> JoinConfig:
        return JoinConfig.from_json(self.credentials_file.read_bytes())


@contextmanager
def serving(folder: Path) -> Iterator[Server]:
    server = Server(folder)
    try:
        yield server
    finally:
        server.kill()
