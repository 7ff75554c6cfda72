"""For all tests: what they start ends with the session, however that ends, and with a test that fails; signals as a
shell starts a program with, also where the tests themselves are run by nohup; runs keep their records and folders where
neither a user of this machine nor a test beside them (pytest-xdist) finds any; the long ones come first; and with
--busy the machine has other things to do. What tests need of this machine: needs.py.
"""

from __future__ import annotations

import gc
import multiprocessing.util
import os
import secrets
import signal
import subprocess
import tempfile
from collections import defaultdict
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest

from edriver.worker import context
from tests.busy import busy
from tests.session_guard import TEST_MARK, end_all, guard_this_session

pytest_plugins = ["tests.needs"]

for _number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
    if signal.getsignal(_number) is signal.SIG_IGN:
        # A child would inherit that it is ignored, and the driver leaves what is ignored at its start alone.
        signal.signal(_number, signal.SIG_DFL)


os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "0"  # as in all of edriver's processes; gRPC looks at it when it is imported
os.environ.setdefault(
    "OMP_NUM_THREADS", "1"
)  # as in workers: threads of several processes wait for one another, busily

gc.disable()  # until all is imported and collected: it would look through it again and again

SHORT = 20
"""Characters of a folder below which the paths of unix sockets, whose length is limited, are short enough."""

FOLDER = pytest.StashKey[str]()
"""For temporary files of what the tests start."""

LONG_FIRST = ("trouble", "etcd", "process", "attacks", "torch")
"""The folders whose tests start processes. Where tests run beside one another (pytest-xdist, file by file), the short
ones of the others are left for the end, so that none has to be waited for alone."""


@pytest.hookimpl(tryfirst=True)  # before -m chooses among them
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    ids = defaultdict[tuple[str, tuple[str, ...]], set[str]](set)  # of each test and what its mark names
    for item in items:
        if (mark := item.get_closest_marker("long_except")) is not None:
            test, _, rest = item.nodeid.partition("[")
            parameters = rest.removesuffix("]")
            ids[test, mark.args].add(parameters)
            if parameters not in mark.args:
                item.add_marker(pytest.mark.long)
    for (test, named), found in ids.items():
        if len(found) > 1 and (unknown := set(named) - found):  # one alone: the command line has chosen it
            raise pytest.UsageError(f"{test}: long_except names {unknown}, and no set of parameters has that ID")
    items.sort(key=lambda item: LONG_FIRST.index(name) if (name := item.path.parent.name) in LONG_FIRST else 9)


def pytest_collection_finish() -> None:
    """What has been imported stays: no collection while tests run looks through torch and thousands of tests."""
    gc.freeze()
    gc.enable()


@pytest.fixture(autouse=True)
def context_of_this_test(monkeypatch: pytest.MonkeyPatch) -> context.WorkerContext:
    """No test sees the place, the rounds or the phase of another: each has a worker's context of its own."""
    own = context.WorkerContext()
    monkeypatch.setattr(context, "current", own)
    return own


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--busy", type=int, default=0, metavar="N", help="let N processes compute beside the tests")


@pytest.hookimpl(tryfirst=True)
def pytest_sessionstart(session: pytest.Session) -> None:
    short = len(tempfile.gettempdir()) <= SHORT  # sockets lie in it
    session.config.stash[FOLDER] = folder = tempfile.mkdtemp(prefix="e-", dir=None if short else "/tmp")
    Path(folder).chmod(0o1777)  # as /tmp is: other accounts take part in some tests
    guard_this_session(folder)


@pytest.fixture(autouse=True, scope="session")
def runs_of_their_own(tmp_path_factory: pytest.TempPathFactory, pytestconfig: pytest.Config) -> Iterator[None]:
    """Records and folders of runs lie apart from those of others, who list them and clear up after the dead."""
    multiprocessing.util.get_temp_dir()  # it is removed at the very end, so it cannot lie in a folder that goes before
    records = tmp_path_factory.mktemp("state")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(records))
        patch.setenv("TMPDIR", pytestconfig.stash[FOLDER])
        patch.setattr(tempfile, "tempdir", None)
        yield


FAILED = pytest.StashKey[bool]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    item.stash[FAILED] = item.stash.get(FAILED, False) or report.failed
    return report


@pytest.fixture(autouse=True)
def ended_with_its_test(request: pytest.FixtureRequest) -> Iterator[None]:
    """What a test has started does not outlive its failure: it would disturb those that come after."""
    name = f"{TEST_MARK}{secrets.token_hex(8)}"
    os.environ[name] = "1"
    yield
    os.environ.pop(name, None)
    if request.node.stash.get(FAILED, False):
        end_all(name)
        for each in gc.get_objects():
            if isinstance(each, subprocess.Popen):
                each.poll()  # else one that nobody has waited for warns in a later test


@pytest.fixture(autouse=True, scope="session")
def other_work(request: pytest.FixtureRequest) -> Iterator[None]:
    first = os.environ.get("PYTEST_XDIST_WORKER", "gw0") == "gw0"  # the machine is the same for all of them
    with busy(request.config.getoption("--busy") if first else 0):
        yield
