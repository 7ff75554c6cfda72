"""`edriver doctor` as a command: this machine alone, and hosts with a real sshd."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.process.running import BOUND, ROOT
from tests.process.sites import Site, site
from tests.strict_json import strict


def doctor(*flags: str, there: Site | None = None) -> subprocess.CompletedProcess[str]:
    """Run it; on a site, on the driver's host."""
    through = [] if there is None else ["ip", "netns", "exec", there.hosts[0].namespace]
    environ = {**os.environ, "PYTHONPATH": str(ROOT)} | ({} if there is None else {"PATH": there.ssh.path})
    command = [*through, sys.executable, "-m", "edriver", "doctor", *flags]
    return subprocess.run(command, env=environ, capture_output=True, text=True, timeout=BOUND, check=False)


def test_this_machine_has_what_a_run_needs() -> None:
    done = doctor("--json")
    assert done.returncode == 0, done.stdout + done.stderr
    found = strict(done.stdout)
    assert found["ok"] is True
    texts = [item["text"] for item in found["items"]]
    assert any(re.match(r"edriver \S+, python \S+, torch \S+, grpcio \S+, protobuf \S+", text) for text in texts)
    assert "freeing: freeing a collective that hangs on a silent peer (tried with two processes)" in texts


@pytest.mark.long
def test_hosts_that_have_what_a_run_needs_and_one_that_is_not_there(tmp_path: Path) -> None:
    with site(tmp_path) as there:
        done = doctor("--hosts", "host1,host2:4", there=there)
        assert done.returncode == 0, done.stdout + done.stderr
        for host, other in (("host1", "host2"), ("host2", "host1")):
            section = re.search(rf"^{host}$\n((?:  .*\n)*)", done.stdout, re.MULTILINE)
            assert section, done.stdout
            assert "ssh answers; Python" in section[1]
            assert "its clock differs by 0." in section[1]
            assert f"it reaches this machine at {there.hosts[0].address}" in section[1]
            assert f"it reaches host {other}" in section[1]
        there.hosts[2].cut()
        done = doctor("--hosts", "host1,host2", there=there)
        assert done.returncode == 1, done.stdout + done.stderr
        assert re.search(r"^host2$\n  FAILED  ssh to it failed: .*timed out", done.stdout, re.MULTILINE), done.stdout
        assert there.left() == []
