"""A discovery script that answers wrongly in every way that we could think of, while a run trains."""

from __future__ import annotations

import os
import select
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.attacks.victim import Victim, victim
from tests.process.running import BOUND

GOOD = "echo localhost:2"

WRONG = {
    "binary": "head -c 100000 /dev/urandom",
    "nul": r"printf 'localhost\0:2\n'",
    "clears-the-screen": r"printf '\033[2J\033[31mlocalhost:2\n'",
    "renames-the-terminal": r"printf '\033]0;owned\007:2\n'",
    "bell-and-backspace": r"printf 'x\007\b\b:2\n'",
    "c1-controls": r"printf 'x\302\233 2J:2\n'",
    "right-to-left": r"printf '\342\200\256tsohlacol:2\n'",
    "not-utf-8": r"printf '\377\376l\000o\000\n'",
    "byte-order-mark": r"printf '\357\273\277localhost:2\n'",
    "negative-slots": "echo localhost:-2",
    "many-slots": "echo localhost:65537",
    "more-slots-than-any-number": "echo localhost:99999999999999999999999999999999999999",
    "four-thousand-digits": "echo localhost:$(head -c 4000 /dev/zero | tr '\\0' 9)",
    "half-a-slot": "echo localhost:1.5",
    "hexadecimal-slots": "echo localhost:0x2",
    "signed-slots": "echo localhost:+2",
    "digits-of-another-script": "echo localhost:２",
    "infinitely-many-slots": "echo localhost:inf",
    "a-host-twice": "echo localhost:2; echo localhost:1",
    "a-bad-line-among-good-ones": "echo localhost:2; echo ':::'; echo a:1",
    "an-error-page": "echo '<html><body>502 Bad Gateway</body></html>'",
    "json": """echo '{"hosts": [{"name": "localhost", "slots": 2}]}'""",
    "a-shell-prompt": "echo 'root@host:~# '",
    "ten-megabytes-in-a-line": "head -c 10000000 /dev/zero | tr '\\0' a",
    "ten-megabytes-of-lines": "yes localhost:2 | head -c 10000000",
    "a-hundred-thousand-hosts": "seq -f 'h%.0f:1' 100001",
    "endless": "yes localhost:2",
    "endless-blank-lines": "yes ''",
    "fails": "exit 3",
    "answers-and-fails": "echo localhost:5; exit 3",
    "killed": "echo localhost:5; kill -KILL $$",
    "crashes": "echo localhost:5; kill -SEGV $$",
    "a-flood-of-errors": "head -c 10000000 /dev/zero | tr '\\0' x >&2; exit 1",
    "errors-that-clear-the-screen": r"printf '\033[2J\033]0;owned\007\r' >&2; exit 1",
    "an-address-with-a-path": "echo 127.0.0.1/8:2",
    "a-url": "echo ssh://localhost:22/",
    "an-address-out-of-its-brackets": "echo ::1:2",
    "nothing-in-brackets": "echo '[]:2'",
}
"""What each wrong answer is made by; none of them says anything about hosts."""

HARMLESS = {
    "an-answer-and-a-child": "sleep 1000 & echo localhost:2",
    "an-answer-and-a-daemon": "setsid sleep 1000 >/dev/null 2>&1 </dev/null & echo localhost:2",
    "an-answer-without-an-end": "printf localhost:2",
    "an-answer-from-windows": r"printf 'localhost:2\r\n'",
    "a-good-answer-with-loud-errors": "yes x | head -c 1000000 >&2; echo localhost:2",
    "nothing-once": "{dir}/set good; exit 0",
    "closes-its-output-once": "{dir}/set good; exec >&-; exec 2>&-",
}
"""Odd answers that are to be taken as they are meant."""

SLOW = {
    "never-ends": "sleep 1000",
    "never-ends-and-hears-nothing": "trap '' TERM INT HUP; echo localhost:5; sleep 1000 & wait",
    "stops-itself": "kill -STOP $$",
    "one-letter-a-second": "while :; do printf l; sleep 1; done",
}
"""Each takes as long as the script may."""

NAMES = [
    "-oProxyCommand=touch${IFS}{canary}",
    "-oProxyCommand=touch {canary}",
    "--",
    "-V",
    "-F/dev/null",
    "$(touch {canary})",
    "`touch {canary}`",
    ";touch {canary};",
    "a;touch {canary}",
    "a|touch {canary}",
    "a&&touch {canary}",
    "a\\ttouch",
    "'a",
    '"a',
    "a'$(touch {canary})'",
    "../../../../{canary}",
    "/etc/passwd",
    "a/../b",
    ".",
    "..",
    "user@host",
    "-l root",
    "%h",
    "~",
    "*",
    "a\\\\nb",
    "localhost -p 22",
]
"""Names that are no names."""

FAILED = "edriver: discovery: poll failed, keeping 1 host, 2 slots: host discovery script "
EMPTY = "edriver: discovery: poll failed, keeping 1 host, 2 slots: an answer without any hosts is believed only when "
AGAIN = "edriver: discovery: discovery answers again: "


@dataclass(frozen=True, slots=True)
class Script:
    """A discovery script whose way of answering is changed at any time; it tells of each time that it is run."""

    folder: Path
    runs: int

    @property
    def path(self) -> Path:
        return self.folder / "discover"

    @classmethod
    def made(cls, folder: Path) -> Script:
        os.mkfifo(folder / "runs")
        script = cls(folder, os.open(folder / "runs", os.O_RDWR | os.O_NONBLOCK))
        script.answers("good", GOOD)
        (folder / "set").write_text(f"#!/bin/sh\nln -sfn '{folder}'/way-$1 '{folder}'/way\n")
        script.path.write_text(f"#!/bin/sh\necho > '{folder}'/runs\nexec '{folder}'/way\n")
        for file in ("set", "discover"):
            (folder / file).chmod(0o755)
        return script

    def answers(self, name: str, program: str) -> None:
        """Answer so from now on."""
        way = self.folder / f"way-{name}"
        new = way.with_suffix(".new")
        new.write_text(f"#!/bin/sh\n{program.replace('{dir}', shlex.quote(str(self.folder)))}\n")
        new.chmod(0o755)
        new.replace(way)  # a script that runs cannot be written to
        new = self.folder / "new"
        new.symlink_to(way)
        new.replace(self.folder / "way")

    def has_been_asked(self) -> None:
        """Wait until it has been run, and read to its end, since now."""
        while select.select([self.runs], [], [], 0)[0]:
            os.read(self.runs, 4096)
        for _ in range(2):  # polls do not overlap: when the second begins, the first has ended
            assert select.select([self.runs], [], [], BOUND)[0], "discovery is not asked any more"
            os.read(self.runs, 1)


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> Script:
    return Script.made(tmp_path_factory.mktemp("discovery"))


@pytest.fixture(scope="module")
def run(script: Script) -> Iterator[Victim]:
    with victim("--host-discovery-script", str(script.path)) as found:
        found.may_say(FAILED, EMPTY, AGAIN)
        found.trains()
        yield found
        found.is_unharmed()


FAST = ("binary", "clears-the-screen", "ten-megabytes-in-a-line", "endless", "answers-and-fails", "a-flood-of-errors")


@pytest.mark.parametrize(
    "way",
    [
        *FAST,
        *(pytest.param(way, marks=pytest.mark.long) for way in {**WRONG, **HARMLESS, **SLOW} if way not in FAST),
    ],
)
def test_wrong_answers_change_nothing(run: Victim, script: Script, way: str) -> None:
    before = len(run.run.lines)
    script.answers(way, {**WRONG, **HARMLESS, **SLOW}[way])
    script.has_been_asked()
    if way not in HARMLESS:
        run.run.line(FAILED, before)
    script.answers("good", GOOD)
    script.has_been_asked()
    run.goes_on()
    message = [line for line in run.run.lines[before:] if "discovery:" in line]
    assert message or way in HARMLESS
    assert all(line.isprintable() and len(line) < 2000 for line in message), message


def test_no_name_becomes_an_option_or_a_command(run: Victim, script: Script, tmp_path: Path) -> None:
    canary = tmp_path / "canary"
    answer = tmp_path / "answer"
    answer.write_text("".join(f"{name.replace('{canary}', str(canary))}:1\n" for name in NAMES))
    before = len(run.run.lines)
    script.answers("names", f"cat {shlex.quote(str(answer))}")
    script.has_been_asked()
    line = run.run.line(rf"{FAILED}.*; and (\d+) more", before)
    assert int(line[1]) == len(NAMES) - 5  # every one is refused, and five are shown
    script.answers("good", GOOD)
    script.has_been_asked()
    assert not canary.exists()
    run.goes_on()
