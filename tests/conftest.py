"""For all tests: signals as a shell starts a program with, also where the tests themselves are run by nohup; and runs
keep their records where no user of this machine looks for any."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest

for _number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
    if signal.getsignal(_number) is signal.SIG_IGN:
        # A child would inherit that it is ignored, and the driver leaves what is ignored at its start alone.
        signal.signal(_number, signal.SIG_DFL)


@pytest.fixture(autouse=True, scope="session")
def no_records_at_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        yield
