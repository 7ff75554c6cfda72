"""Real discovery scripts, good and bad: what they answer, what their failures say, and that nothing is left
of them."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from edriver.discovery import script as script_source
from edriver.discovery.errors import DiscoveryError, UnusableSourceError
from edriver.discovery.hosts import parse_host_list
from edriver.discovery.script import HostDiscoveryScript
from edriver.model.hosts import HostSet

AMPLE = 300.0
"""A time limit that no test is to reach."""

WriteScript = Callable[..., Path]


class Lifeline:
    """A named pipe that every process of a script holds open: it ends when the last of them is gone."""

    def __init__(self, path: Path) -> None:
        os.mkfifo(path)
        self.path = path
        self._fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        # A writer of our own, so that a read blocks until another one writes, instead of returning end of file.
        self._own_end = os.open(path, os.O_WRONLY)
        os.set_blocking(self._fd, True)
        self._seen = b""

    def wait_for(self, text: bytes) -> None:
        """Wait until the script's processes have written this text."""
        while text not in self._seen:
            self._seen += os.read(self._fd, 4096)

    def wait_for_the_end(self) -> bytes:
        """Wait until no process of the script is left; what they wrote."""
        os.close(self._own_end)
        self._own_end = -1
        while chunk := os.read(self._fd, 4096):
            self._seen += chunk
        return self._seen

    def close(self) -> None:
        os.close(self._fd)
        if self._own_end >= 0:
            os.close(self._own_end)


@pytest.fixture
def lifeline(tmp_path: Path) -> Iterator[Lifeline]:
    line = Lifeline(tmp_path / "lifeline")
    yield line
    line.close()


@pytest.fixture
def write_script(tmp_path: Path) -> WriteScript:
    def write(body: str | bytes, first_line: str = "#!/bin/sh\n", mode: int = 0o755) -> Path:
        path = tmp_path / "discover hosts.sh"  # a space: paths are not split into words
        path.write_bytes(first_line.encode() + (body if isinstance(body, bytes) else body.encode()))
        path.chmod(mode)
        return path

    return write


@pytest.fixture(autouse=True)
def nothing_is_left_unreaped() -> Iterator[None]:
    before = children()
    yield
    assert children() == before


def children() -> set[str]:
    """The pids of the processes that this thread has started and that were not reaped, zombies included."""
    return set(Path("/proc/thread-self/children").read_text().split())


def running() -> set[str]:
    """Those of them that have not exited."""
    return {pid for pid in children() if Path("/proc", pid, "stat").read_text().rpartition(")")[2].split()[0] != "Z"}


def find(script: Path | str, timeout: float = AMPLE) -> HostSet:
    return asyncio.run(HostDiscoveryScript(str(script), default_slots=3, timeout=timeout).find())


def failure(script: Path | str, timeout: float = AMPLE) -> str:
    with pytest.raises(DiscoveryError) as caught:
        find(script, timeout)
    message = str(caught.value)
    assert message.startswith(f"host discovery script {str(script)!r}: ")
    return message


def test_an_answer_is_read(write_script: WriteScript) -> None:
    assert find(write_script("echo a:2; echo b")) == parse_host_list("a:2,b:3")


def test_an_empty_answer_is_an_answer(write_script: WriteScript) -> None:
    assert find(write_script("echo '# no hosts'")) == HostSet()


def test_a_command_may_have_arguments() -> None:
    assert find("printf '%s\\n' a:2 'b:4'") == parse_host_list("a:2,b:4")


@pytest.mark.parametrize(
    ("script", "hosts"),
    [
        pytest.param("printf 'a:2\\nb:4\\n' | grep b", "b:4", id="pipeline"),
        pytest.param("echo a:2; echo b:4", "a:2,b:4", id="list-of-commands"),
        pytest.param('for h in $SOME; do echo "$h:2"; done', "x:2,y:2", id="variable"),
        pytest.param("NAME=c sh -c 'echo $NAME:1'", "c:1", id="assignment"),
        pytest.param("yes a:2 | head -1", "a:2", id="a-reader-that-has-enough"),
        pytest.param("cat ~/hosts", "h:7", id="home"),
    ],
)
def test_a_command_line_is_run_by_a_shell(
    script: str, hosts: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "hosts").write_text("h:7\n")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("SOME", "x y")
    assert find(script) == parse_host_list(hosts)


def test_a_file_is_no_command_line(tmp_path: Path) -> None:
    path = tmp_path / "hosts | of $team (a).sh"
    path.write_text("#!/bin/sh\necho a:2\n")
    path.chmod(0o755)
    assert find(path) == parse_host_list("a:2")


@pytest.mark.parametrize(
    ("script", "message", "kind"),
    [
        pytest.param("(echo a:2; echo down >&2; exit 3) | cat", "code 3; the last of its stderr: down", DiscoveryError),
        pytest.param("echo a:2 | (cat; exit 4)", "exited with code 4; its stderr is empty", DiscoveryError),
        pytest.param("echo a:2 | no-such-command", "no-such-command: command not found", UnusableSourceError),
        pytest.param("echo a:2 |", "syntax error", DiscoveryError),
    ],
    ids=["first", "last", "missing", "syntax"],
)
def test_a_pipeline_fails_with_any_of_its_parts(script: str, message: str, kind: type[DiscoveryError]) -> None:
    with pytest.raises(DiscoveryError) as caught:
        find(script)
    assert message in str(caught.value)
    assert type(caught.value) is kind


def test_a_pipeline_that_hangs_is_killed_with_all_its_parts(lifeline: Lifeline) -> None:
    hang = f"exec 3>'{lifeline.path}'; (echo one >&3; exec sleep 1000) | (echo two >&3; cat)"
    assert "did not exit within 2 s and was killed" in failure(hang, timeout=2.0)
    assert set(lifeline.wait_for_the_end().split()) == {b"one", b"two"}


def test_a_shell_without_pipefail_runs_it_where_there_is_no_bash(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda _: None)
    assert find("echo a:2 | cat") == parse_host_list("a:2")


def test_a_script_in_this_directory_needs_no_slash(write_script: WriteScript, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_script("echo a:2")
    monkeypatch.chdir(path.parent)
    assert find(path.name) == parse_host_list("a:2")


def test_stdin_is_empty(write_script: WriteScript) -> None:
    assert find(write_script("cat; echo a:2")) == parse_host_list("a:2")


def test_words_on_stderr_do_no_harm(write_script: WriteScript) -> None:
    assert find(write_script("head -c 3000000 /dev/zero >&2; echo a:2")) == parse_host_list("a:2")


@pytest.mark.parametrize(
    ("first_line", "body", "mode", "message"),
    [
        pytest.param("#!/bin/sh\n", "echo a", 0o644, "is not executable: chmod +x '", id="not-executable"),
        pytest.param("", "echo a", 0o755, "make its first line #!/bin/sh", id="no-first-line"),
        pytest.param("#!/no/such/sh\n", "echo a", 0o755, "its first line is '#!/no/such/sh'", id="no-interpreter"),
        pytest.param("#!/bin/sh\r\n", "echo a", 0o755, r"its first line is '#!/bin/sh\r'", id="windows-line-ends"),
        pytest.param("#!/\n", "echo a", 0o755, "may not be executed", id="interpreter-is-a-directory"),
        pytest.param("#!/bin/sh\n", "exit 3", 0o755, "exited with code 3; its stderr is empty", id="exits-3"),
        pytest.param(
            "#!/bin/sh\n",
            "echo one >&2; printf '\\033[2Jno quota' >&2; exit 3",
            0o755,
            r"exited with code 3; the last of its stderr: one | \x1b[2Jno quota",
            id="exits-3-and-says-why",
        ),
        pytest.param("#!/bin/sh\n", "kill -SEGV $$", 0o755, "was killed by SIGSEGV", id="killed"),
        pytest.param("#!/bin/sh\n", "kill -40 $$", 0o755, "was killed by signal 40", id="nameless-signal"),
        pytest.param("#!/bin/sh\n", "echo a:2; echo b:zero", 0o755, "line 2: 'b:zero'", id="bad-line"),
        pytest.param("#!/bin/sh\n", "printf '\\377\\376\\000'", 0o755, "is not UTF-8 text", id="binary"),
        pytest.param("#!/bin/sh\n", "echo a:2; exit 1", 0o755, "exited with code 1", id="half-an-answer-is-none"),
    ],
)
def test_failures_of_a_script_are_explained(
    write_script: WriteScript, first_line: str, body: str, mode: int, message: str
) -> None:
    assert message in failure(write_script(body, first_line, mode))


@pytest.mark.parametrize(
    ("script", "message"),
    [
        pytest.param("/no/such/script.sh", "there is no such file: give the path", id="missing"),
        pytest.param("no-such-command", "no such file here, and no such command on PATH", id="missing-command"),
        pytest.param("/", "is a directory: give the path", id="directory"),
        pytest.param("", "is empty: give the path", id="empty"),
        pytest.param("echo 'a", "is neither a file nor a command", id="open-quote"),
        pytest.param("a\0b", "cannot hold a NUL", id="nul"),
        pytest.param("/" + "x" * 5000, "File name too long", id="long-name"),
    ],
)
def test_a_script_that_cannot_be_started_reports_why(script: str, message: str) -> None:
    assert message in failure(script)


def test_a_flood_is_cut_off_and_killed(write_script: WriteScript, lifeline: Lifeline) -> None:
    message = failure(write_script(f"exec 3>'{lifeline.path}'; echo up >&3; yes | tr -d '\\n'"))
    assert "printed more than 4 MiB and was killed" in message
    assert len(message) < 300
    assert lifeline.wait_for_the_end() == b"up\n"


def test_ten_megabytes_in_one_line_are_refused(write_script: WriteScript) -> None:
    message = failure(write_script("head -c 10000000 /dev/zero | tr '\\0' x"))
    assert "printed more than 4 MiB" in message


def test_one_long_line_is_refused_by_number(write_script: WriteScript) -> None:
    message = failure(write_script("echo a:2; head -c 1000000 /dev/zero | tr '\\0' x"))
    assert "line 2: 'xxxx" in message
    assert len(message) < 500


HANG = """exec 3>'{lifeline}'
trap '' TERM INT HUP
(echo child >&3; exec sleep 1000) &
echo stuck >&2
echo parent >&3
wait
"""


def test_a_hanging_script_is_killed_with_its_children(write_script: WriteScript, lifeline: Lifeline) -> None:
    message = failure(write_script(HANG.format(lifeline=lifeline.path)), timeout=2.0)
    assert "did not exit within 2 s and was killed; the last of its stderr: stuck" in message
    assert set(lifeline.wait_for_the_end().split()) == {b"child", b"parent"}


def test_a_script_that_stops_itself_is_killed(write_script: WriteScript) -> None:
    assert "did not exit within 0.5 s" in failure(write_script("kill -STOP $$"), timeout=0.5)


def test_cancelling_kills_the_script_with_its_children(write_script: WriteScript, lifeline: Lifeline) -> None:
    source = HostDiscoveryScript(str(write_script(HANG.format(lifeline=lifeline.path))), 1, AMPLE)

    async def cancel_when_up() -> None:
        poll = asyncio.ensure_future(source.find())
        await asyncio.to_thread(lifeline.wait_for, b"child")
        await asyncio.to_thread(lifeline.wait_for, b"parent")
        poll.cancel()
        with pytest.raises(asyncio.CancelledError):
            await poll

    asyncio.run(cancel_when_up())
    lifeline.wait_for_the_end()


@pytest.mark.parametrize("turns", range(6))
def test_cancelling_in_mid_start_leaves_nothing(write_script: WriteScript, lifeline: Lifeline, turns: int) -> None:
    source = HostDiscoveryScript(str(write_script(HANG.format(lifeline=lifeline.path))), 1, AMPLE)

    async def cancel_early() -> None:
        poll = asyncio.ensure_future(source.find())
        for _ in range(turns):
            await asyncio.sleep(0)
        if turns > 2:  # the script and its child run, and asyncio has not seen it start yet
            lifeline.wait_for(b"parent")
        poll.cancel()
        with pytest.raises(asyncio.CancelledError):
            await poll

    asyncio.run(cancel_early())
    lifeline.wait_for_the_end()


def test_a_script_that_cannot_be_watched_does_not_stay(
    write_script: WriteScript, lifeline: Lifeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_pid: int) -> int:
        lifeline.wait_for(b"parent")
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(os, "pidfd_open", full)
    assert "Too many open files" in failure(write_script(HANG.format(lifeline=lifeline.path)))
    lifeline.wait_for_the_end()


def test_a_background_child_neither_holds_the_poll_up_nor_stays(write_script: WriteScript, lifeline: Lifeline) -> None:
    path = write_script(f"exec 3>'{lifeline.path}'; sleep 1000 & echo a:2; echo up >&3")
    assert find(path) == parse_host_list("a:2")
    assert lifeline.wait_for_the_end() == b"up\n"


def test_a_child_in_a_session_of_its_own_does_not_hold_the_poll_up(write_script: WriteScript, tmp_path: Path) -> None:
    path = write_script(f"setsid sleep 1000 & echo $! >'{tmp_path}/pid'; echo a:2")
    try:
        assert find(path) == parse_host_list("a:2")
    finally:
        os.kill(int((tmp_path / "pid").read_text()), signal.SIGKILL)


def test_output_that_comes_just_after_the_exit_counts(
    write_script: WriteScript, lifeline: Lifeline, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(script_source, "DRAIN_TIMEOUT", AMPLE)
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    gate_end = os.open(gate, os.O_RDWR)
    path = write_script(f"(read go <'{gate}'; echo b:2) & echo a:2; echo up >'{lifeline.path}'")

    others = children()  # of tests before this one

    async def open_the_gate_after_the_exit() -> HostSet:
        poll = asyncio.ensure_future(HostDiscoveryScript(str(path), 1, AMPLE).find())
        await asyncio.to_thread(lifeline.wait_for, b"up")
        while running() - others:  # noqa: ASYNC110  another process's exit fires no event here
            await asyncio.sleep(0)
        for _ in range(100):  # the loop hears of the exit
            await asyncio.sleep(0)
        os.write(gate_end, b"go\n")
        return await poll

    assert asyncio.run(open_the_gate_after_the_exit()) == parse_host_list("a:2,b:2")
    os.close(gate_end)


def test_a_script_may_be_repaired_between_polls(write_script: WriteScript) -> None:
    path = write_script("echo a:2", mode=0o644)
    assert "chmod" in failure(path)
    path.chmod(0o755)
    assert find(path) == parse_host_list("a:2")
