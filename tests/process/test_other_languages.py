"""docs/how-to/other-languages.md, as it is printed: clients that have nothing of edriver's but its proto files."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from edriver.common.release import VERSION
from tests import needs
from tests.process.running import BOUND, ROOT, Run, edriver, running

PAGE = (ROOT / "docs/how-to/other-languages.md").read_text()


def block(language: str) -> str:
    """The page's one block in a language."""
    (found,) = re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
    return str(found)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Run, Path]]:
    """A run that waits for its worker, and the folder with its credentials."""
    folder = tmp_path_factory.mktemp("run")
    with running(["-np", "1", "--status-credentials", "status.json", "sh", "-c", "sleep 600"], folder) as found:
        found.line("waiting: no worker is ready yet")
        yield found, folder


@pytest.mark.needs(needs.NPM)
def test_a_client_in_node_asks_and_watches(run: tuple[Run, Path]) -> None:
    driver, folder = run
    (folder / "client.js").write_text(block("js"))
    (folder / "node_modules").symlink_to(needs.NPM_PACKAGES)
    (folder / "proto").symlink_to(ROOT / "proto")
    with subprocess.Popen(["node", "client.js"], cwd=folder, stdout=subprocess.PIPE, text=True) as client:
        assert client.stdout is not None
        try:
            assert client.stdout.readline() == "0 workers; waiting: no worker is ready yet\n"
            run_id = driver.line(r"^edriver: run (\w+):")[1]
            assert edriver("drain", "localhost:0", "--run", run_id).returncode == 1  # too few would be left
            assert edriver("resize", "1", "--run", run_id).returncode == 0
            assert client.stdout.readline().startswith("at most 1 worker from now on: requested by ")
        finally:
            client.kill()
            client.wait(BOUND)


def test_without_the_servers_name_the_handshake_fails(run: tuple[Run, Path]) -> None:
    import grpc

    shown = json.loads((run[1] / "status.json").read_text())
    credentials = grpc.ssl_channel_credentials(shown["authority"].encode())
    options = (("grpc.enable_http_proxy", 0),)
    with grpc.secure_channel(shown["drivers"][0], credentials, options) as channel:
        call: grpc.UnaryUnaryMultiCallable[None, bytes] = channel.unary_unary(
            "/edriver.v1.StatusService/GetRun", lambda _: b"", bytes
        )
        with pytest.raises(grpc.RpcError) as caught:
            call(None, timeout=BOUND)
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE


@pytest.mark.needs(needs.GRPCURL)
def test_grpcurl_asks(run: tuple[Run, Path]) -> None:
    done = subprocess.run(["sh", "-ec", block("sh")], cwd=run[1], capture_output=True, text=True, timeout=BOUND)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["run"]["version"] == VERSION
