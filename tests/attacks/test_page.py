"""The page of a run, its report, and the commands that read records: hostile names, paths and files."""

from __future__ import annotations

import html.parser
import os
import re
import signal
import socket
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from edriver.system.record_folder import USAGE_FILE
from tests.attacks.victim import Victim, victim
from tests.process.running import BOUND, ROOT, edriver

HOSTILE = "</script><img src=x onerror=alert(1)>&lt;b&gt;<!--"


class Tags(html.parser.HTMLParser):
    """The tags of a page, as a browser finds them."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: Counter[str] = Counter()
        self.handlers: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.found[tag] += 1
        self.handlers += [name for name, _ in attributes if name.startswith("on")]


def measured(run: Victim) -> None:
    """Let it train until its memory has been recorded, which makes a row of its report."""
    record = run.folder / "state" / "edriver" / run.run_id / USAGE_FILE
    while not record.exists() or not record.stat().st_size:
        run.trains()


def report_of(run: Victim) -> str:
    """The HTML of its report."""
    output = run.folder / "report.html"
    made = edriver("report", str(run.folder / "state" / "edriver" / run.run_id), "--output", str(output))
    assert made.returncode == 0, made.stderr
    return output.read_text()


@pytest.fixture(scope="module")
def calm() -> Iterator[Counter[str]]:
    """The tags of a report in which nothing is hostile."""
    with victim(size=1) as run:
        measured(run)
        edriver("stop", "--run", run.run_id, "--reason", "enough", environ={"TMPDIR": str(run.temporary)})
        run.run.end()
        yield Tags(report_of(run)).found


def test_names_from_outside_are_escaped(calm: Counter[str]) -> None:
    with victim(size=1, environ={"METRIC": HOSTILE}) as run:
        measured(run)
        reported = edriver("stop", "--run", run.run_id, "--reason", HOSTILE, environ={"TMPDIR": str(run.temporary)})
        assert reported.returncode == 0, reported.stderr
        run.run.end()
        page = report_of(run)
    assert "onerror" in page
    tags = Tags(page)
    assert tags.found == calm
    assert "img" not in tags.found
    assert tags.handlers == []


@pytest.fixture(scope="module")
def run() -> Iterator[Victim]:
    with victim(environ={"METRIC": HOSTILE}) as found:
        found.may_say(r"edriver: step \d+, ")
        found.trains()
        yield found
        found.is_unharmed()


@pytest.fixture(scope="module")
def page(run: Victim) -> Iterator[str]:
    """The address of its page, as `edriver dashboard` prints it."""
    process = subprocess.Popen(
        [sys.executable, "-m", "edriver", "dashboard", "--run", run.run_id],
        env={**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(run.temporary)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        assert process.stdout is not None
        try:
            found = re.search(r"(http://\S+/)", process.stdout.readline())
            assert found
            yield found[1]
            process.send_signal(signal.SIGINT)
            assert process.wait(BOUND) == 0
        finally:
            process.kill()


def get(page: str, path: str, method: str = "GET") -> tuple[int, str]:
    """The status and the whole answer to a path that is sent as it is."""
    where = urlsplit(page)
    with socket.create_connection((str(where.hostname), int(where.port or 0)), BOUND) as connection:
        connection.settimeout(BOUND)
        connection.sendall(f"{method} {path} HTTP/1.1\r\nHost: {where.netloc}\r\nConnection: close\r\n\r\n".encode())
        answer = b""
        while chunk := connection.recv(65536):
            answer += chunk
    return int(answer.split()[1]), answer.decode(errors="replace")


def test_the_page_itself_holds_no_name_of_others(run: Victim, page: str) -> None:
    status, answer = get(page, urlsplit(page).path)
    assert status == 200
    assert "onerror" not in answer
    assert "default-src 'none'" in answer
    run.goes_on()


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "/page.css",
        "/plotly.js",
        "/events",
        "/index.html",
        "//",
        "/../../../../etc/passwd",
        "/%2e%2e/%2e%2e/etc/passwd",
        "//etc/passwd",
        "/{secret}/../../../../../etc/passwd",
        "/{secret}/..%2f..%2f..%2f..%2fetc%2fpasswd",
        "/{secret}/%2e%2e/%2e%2e/server.py",
        "/{secret}/..\\..\\server.py",
        "/{secret}/server.py",
        "/{secret}//etc/passwd",
        "/{secret}/index.html",
        "/{secret}/page.css%00.js",
        "/{secret}/page.css/../server.py",
        "/{secret}/%00",
        "/{secret}" + "/x" * 2000,
        "/{secret[:-1]}/",
        "/{secret}x/",
        "/" + "A" * 7000,
        "/%ff%fe/",
    ],
)
def test_every_other_path_leads_nowhere(run: Victim, page: str, path: str) -> None:
    secret = urlsplit(page).path.strip("/")
    path = path.replace("{secret[:-1]}", secret[:-1]).replace("{secret}", secret)
    status, answer = get(page, path)
    assert 400 <= status < 500
    assert "root:" not in answer
    assert "Traceback" not in answer
    assert secret not in answer
    run.goes_on()


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "TRACE", "PROPFIND"])
def test_the_page_refuses_methods_that_change_something(run: Victim, page: str, method: str) -> None:
    status, _ = get(page, urlsplit(page).path, method)
    assert 400 <= status < 500
    run.goes_on()


@pytest.mark.parametrize(
    "words",
    [
        ["report", "/etc/passwd"],
        ["report", "../../../../etc"],
        ["report", "/etc"],
        ["report", "/dev/null"],
        ["status", "--run", "../../../../etc/passwd"],
        ["status", "--run", "*"],
        ["status", "--credentials", "/etc/passwd"],
        ["status", "--credentials", "/dev/null"],
        ["status", "--credentials", "/"],
    ],
    ids=" ".join,
)
def test_a_name_that_leads_elsewhere_is_a_sentence(tmp_path: Path, words: list[str]) -> None:
    reported = edriver(*words, environ={"XDG_STATE_HOME": str(tmp_path)})
    assert reported.returncode in (1, 2)
    assert "Traceback" not in reported.stderr
    assert reported.stderr.startswith("edriver")
    assert "root:" not in reported.stderr + reported.stdout
