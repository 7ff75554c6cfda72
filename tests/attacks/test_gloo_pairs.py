"""Another account of the machine races for the connections of a run's Gloo groups (gloo_stranger.py).

python -m pytest tests/attacks/test_gloo_pairs.py             a few rounds
ATTACKED_ROUNDS=100 python -m pytest -s tests/attacks/...     as many as the figures in the docs are of
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from edriver.worker.group.membership_proof import PROOF_BYTES
from tests.linked_hosts import make_namespace
from tests.needs import NAMESPACES, ROOT_USER, require
from tests.process.running import Run, running

ROUNDS = int(os.environ.get("ATTACKED_ROUNDS", "6"))
OTHER_ACCOUNT = 65_534
LATE = 0.05
"""Seconds for which members' places are free in each round: the stranger has them if nothing keeps it from that."""

MOST_WON = 8
"""Rounds after which a stranger that has won as many leaves: it finds some devices before they are guarded."""

WITHOUT_FILTERS = ["setpriv", "--bounding-set", "-net_admin"]
"""As an ordinary user of a kernel that gives TCP sockets filters only with CAP_NET_ADMIN."""

WON = r"^edriver: round \S+ ended: .*did not prove"
"""A line of a run that says that the stranger has won a round."""

STRANGER, VICTIM = (Path(__file__).with_name(name) for name in ("gloo_stranger.py", "gloo_victim.py"))


class Stranger:
    """The attacker's process.

    Attributes:
        taken: how many connections victims took for a member's.
        asked: the lengths that victims have asked it for, and how often.
    """

    def __init__(self, namespace: str, folder: Path, how: str, size: int) -> None:
        self.taken = 0
        self.asked: Counter[int] = Counter()
        command = (
            *("nice", "-n", "-19", "ip", "netns", "exec", namespace),
            *("setpriv", f"--reuid={OTHER_ACCOUNT}", f"--regid={OTHER_ACCOUNT}", "--clear-groups"),
            *("/usr/bin/env", "python3", "-I", "-c", STRANGER.read_text()),
            *(str(os.getuid()), str(size), str(folder), how),
        )
        self.process = subprocess.Popen(
            command,
            cwd="/",
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        ready = self.process.stdout.readline()
        assert ready, "the stranger cannot be started"
        assert json.loads(ready)["ready"] == OTHER_ACCOUNT
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            message = json.loads(line)
            self.taken += "taken" in message
            self.asked.update([message["asked"]] if "asked" in message else [])

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        self._reader.join()
        assert self.process.stdout is not None
        self.process.stdout.close()


@pytest.fixture
def namespace() -> Iterator[str]:
    """A network of its own, so that nothing else of this machine is attacked."""
    require(ROOT_USER, NAMESPACES)
    with contextlib.ExitStack() as made:
        yield make_namespace(f"edriver-stranger-{os.getpid()}", made)


def rounds_of(run: Run) -> int:
    return len(re.findall(r"^edriver: round \S+: \d workers", run.text, re.MULTILINE))


@pytest.mark.long_except("answers")
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("how", "through"),
    [("answers", []), ("silent", []), ("answers", WITHOUT_FILTERS)],
    ids=["answers", "silent", "answers-without-filters"],
)
def test_another_account_that_races_for_connections_gets_nothing_into_the_run(
    namespace: str, how: str, through: list[str], tmp_path: Path
) -> None:
    loot = tmp_path / "made by the stranger"
    rounds = ROUNDS if how == "answers" else min(ROUNDS, 6)  # each that is won in silence takes PROOF_TIMEOUT
    environ = {"ROUNDS": str(rounds), "LATE": str(LATE)}
    reported = tmp_path / "events.jsonl"
    command = ["-np", "2", "--min-np", "1", "--verbose", "--event-log", str(reported), sys.executable, str(VICTIM)]
    with running(command, tmp_path, environ, through=["ip", "netns", "exec", namespace, *through]) as run:
        stranger = Stranger(namespace, loot, how, size=2)
        try:
            seen = 0
            for _ in range(max(MOST_WON, rounds)):
                ended = run.line(f"{WON}|edriver: (done|failed)", after=seen)
                if not re.search(WON, ended.string):
                    break
                seen = run.lines.index(ended.string) + 1
        finally:
            stranger.end()
        code = run.end()
    won = len(re.findall(WON, run.text, re.MULTILINE))
    print(
        f"\n{how}: {rounds_of(run)} rounds, {stranger.taken} connections taken for a member's, {won} rounds ended "
        f"by it, asked for {dict(stranger.asked)}, code run: {loot.exists()}"
    )
    assert not loot.exists(), "the stranger's code was run"
    assert set(stranger.asked) <= {PROOF_BYTES}, "more was asked of the stranger than to prove its membership"
    assert code == 0, run.text
    assert "secret" not in run.text + reported.read_text()
    assert "is done: trained" in run.text
    assert won, "the stranger was not fast enough to be in anyone's way"
    assert re.search(rf"edriver: done: .*, {won} unproven connections?, ", run.text), "counted as something else"
    assert f"(uid {OTHER_ACCOUNT})" in run.text
