"""For all tests: what they start ends with the session, however that ends; signals as a shell starts a program with,
also where the tests themselves are run by nohup; runs keep their records where no user of this machine looks for any;
and with --busy the machine has other things to do."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest

from tests.busy import busy
from tests.session_guard import guard_this_session

for _number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
    if signal.getsignal(_number) is signal.SIG_IGN:
        # A child would inherit that it is ignored, and the driver leaves what is ignored at its start alone.
        signal.signal(_number, signal.SIG_DFL)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--busy", type=int, default=0, metavar="N", help="let N processes compute beside the tests")


@pytest.hookimpl(tryfirst=True)
def pytest_sessionstart() -> None:
    guard_this_session()


@pytest.fixture(autouse=True, scope="session")
def no_records_at_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        yield


@pytest.fixture(autouse=True, scope="session")
def other_work(request: pytest.FixtureRequest) -> Iterator[None]:
    with busy(request.config.getoption("--busy")):
        yield
