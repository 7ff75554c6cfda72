"""The site that `make docs` builds: by what the extra `docs` installs alone, and its search as a reader uses it."""

from __future__ import annotations

import functools
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

import pytest
from playwright.sync_api import Browser

from tests import needs
from tests.process.running import BOUND, ROOT

pytestmark = pytest.mark.needs(needs.MKDOCS, needs.CHROMIUM)

BUILD = """
import sys
sys.modules.update(dict.fromkeys(["edriver", "google.protobuf", "grpc", "grpc_tools", "prometheus_client", "torch"]))
sys.path.remove("")
from mkdocs.__main__ import cli
cli()
"""
"""`mkdocs`, without what the extra does not install."""


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of the built site."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-c", BUILD, "build", "--quiet", "--site-dir", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=BOUND, check=False)
    assert done.returncode == 0, done.stderr
    with ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(folder))) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


@pytest.mark.parametrize(
    ("typed", "found"),
    [
        ("NaN", "symptoms.html#the-loss-is-nan-or-infinite"),
        ("stuck", "symptoms.html#training-is-stuck-hangs-or-makes-no-progress"),
        ("hang", "symptoms.html#training-is-stuck-hangs-or-makes-no-progress"),
        ("out of memory", "symptoms.html#out-of-memory-oom"),
        ("OOM", "symptoms.html#out-of-memory-oom"),
        ("crash", "symptoms.html#a-worker-crashed-was-killed-or-ended-with-an-exit-code"),
        ("firewall", "symptoms.html#a-host-is-not-used-or-cannot-be-reached"),
        ("slow", "find-what-is-slow.html"),
        ("checkpoint", "checkpoints.html"),
        ("spot", "batch-systems.html"),
    ],
)
def test_the_search_finds_what_people_type(browser: Browser, site: str, typed: str, found: str) -> None:
    """It is among the first page's hits."""
    page = browser.new_page()
    page.set_default_timeout(BOUND * 1000)
    page.goto(f"{site}/index.html")
    page.locator("[data-md-component=search-query]").click()
    page.locator("[data-md-component=search-query]").fill(typed)
    first = page.locator(".md-search-result__item").first
    first.wait_for(state="attached")
    targets = [str(link.get_attribute("href")) for link in first.locator("a").all()]
    page.close()
    plain = [f"{target.partition('?')[0]}{''.join(target.partition('#')[1:])}" for target in targets]
    assert f"{site}/how-to/{found}" in plain
