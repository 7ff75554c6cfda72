"""Which states of a progress bar are written where they cannot be replaced, and what a terminal shows of them."""

from __future__ import annotations

from edriver.text.unfinished_lines import (
    MAX_STATES_SHOWN,
    STALE_AGE,
    STATE_INTERVAL,
    StatesInFile,
    StatesOnTerminal,
    erased,
)
from edriver.v1.agent_pb2 import OutputLine


def state(text: str, worker: int = 1, stderr: bool = True) -> OutputLine:
    return OutputLine(worker_id=worker, stderr=stderr, text=text.encode(), unfinished=True)


def ended(text: str, worker: int = 1, stderr: bool = True) -> OutputLine:
    return OutputLine(worker_id=worker, stderr=stderr, text=text.encode())


def test_into_a_file_a_state_is_written_now_and_then_and_the_line_once_it_has_ended() -> None:
    states: StatesInFile[OutputLine] = StatesInFile()
    story = [(float(second), state(f"{second} %")) for second in range(25)]
    story += [(25.0, ended("100 %")), (25.5, state("next")), (26.0, ended("next"))]
    written = [line.text.decode() for now, line in story if states.take(line, now)]
    assert written == ["0 %", f"{STATE_INTERVAL:.0f} %", f"{2 * STATE_INTERVAL:.0f} %", "100 %", "next"]
    assert states.rest() == []


def test_into_a_file_streams_and_workers_are_apart_and_the_latest_states_are_written_at_the_end() -> None:
    states: StatesInFile[OutputLine] = StatesInFile()
    assert states.take(state("1 %"), 0.0)
    assert states.take(state("1 %", worker=2), 0.0)
    assert states.take(ended("a line", stderr=False), 0.1)
    assert not states.take(state("2 %"), 0.2)
    assert [line.text for line in states.rest()] == [b"2 %"]
    assert states.rest() == []


def test_a_terminal_shows_the_latest_states_below_in_the_order_of_workers() -> None:
    terminal = StatesOnTerminal()
    assert list(terminal.take(state("7 %", worker=2), b"[1]:7 %\n", 0.0)) == []
    assert list(terminal.take(state("5 %"), b"[0]:5 %\n", 0.1)) == []
    assert list(terminal.take(state("6 %"), b"[0]:6 %\n", 1.1)) == []
    assert terminal.rows(80) == [b"[0]:6 %", b"[1]:7 %"]
    assert list(terminal.take(ended("a line", stderr=False), b"[0]:a line\n", 1.2)) == [b"[0]:a line\n"]
    assert list(terminal.take(ended("100 %"), b"[0]:100 %\n", 1.3)) == [b"[0]:100 %\n"]
    assert terminal.rows(80) == [b"[1]:7 %"]
    assert terminal.rest() == [b"[1]:7 %\n"]
    assert terminal.rows(80) == []


def test_what_no_longer_changes_moves_up_and_so_does_what_there_is_no_room_for() -> None:
    terminal = StatesOnTerminal()
    for worker in range(MAX_STATES_SHOWN):
        assert list(terminal.take(state("x", worker), b"%d\n" % worker, float(worker))) == []
    assert list(terminal.take(state("x", 99), b"99\n", 10.0)) == [b"0\n"]
    assert terminal.stale(STALE_AGE + 0.5) == []
    assert terminal.stale(STALE_AGE + 2.0) == [b"1\n", b"2\n"]
    assert terminal.rows(80) == [b"3", b"99"]


def test_rows_are_narrower_than_the_terminal_and_nothing_in_them_acts_on_it() -> None:
    terminal = StatesOnTerminal()
    text = "[0]:\x1b[32m50 %\x1b[0m\x1b[A \x07|深い|"
    assert list(terminal.take(state(text), text.encode() + b"\n", 0.0)) == []
    assert terminal.rows(80) == ["[0]:50 % \\x07|深い|".encode()]
    assert terminal.rows(17) == ["[0]:50 % \\x07|深".encode()]
    assert terminal.rows(16) == [b"[0]:50 % \\x07|"]
    assert terminal.rows(2) == [b"["]


def test_what_was_drawn_is_removed_from_its_first_row_on() -> None:
    assert erased(b"") == b""
    assert erased(b"one") == b"\r\x1b[J"
    assert erased(b"one\ntwo\nthree") == b"\r\x1b[2A\x1b[J"
