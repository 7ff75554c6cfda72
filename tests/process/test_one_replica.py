"""A model that all workers hold once between them, under a real driver: it is cut anew when one is lost, and back."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from tests.process.running import SCRIPTS, running

SCRIPT = [sys.executable, str(SCRIPTS / "one_replica.py")]

HOSTS = ["-H", "localhost:2,127.0.0.2:2", "--replica-size", "all"]


def steps_of(text: str, rank: int) -> list[tuple[int, int]]:
    """The steps that a rank has made, and of how many workers each."""
    found = re.findall(rf"step (\d+) of (\d+) by rank {rank} ", text)
    return [(int(step), int(size)) for step, size in found]


def test_four_train_on_as_three_and_then_as_four_again(tmp_path: Path) -> None:
    with running(["-np", "4", "--min-np", "2", *HOSTS, *SCRIPT], tmp_path, {"DIE": "3 10"}) as run:
        run.line("worker 5 makes its model ahead of its first round, for 3 workers$")
        run.line("worker 5 warms up as one of 3$")
        run.line("round 1.3: 4 workers")
        assert run.end() == 0, run.text
        assert not re.search("worker 5 makes its model in a round", run.text)
        assert run.gone(), run.left_behind()
        made = steps_of(run.text, rank=0)
        assert [step for step, _ in made] == list(range(1, len(made) + 1)), "each step is made once"
        assert made[:11] == [*((step, 4) for step in range(1, 11)), (11, 3)]
        assert made[-1][1] == 4


@pytest.mark.long
def test_three_wait_for_the_fourth(tmp_path: Path) -> None:
    flags = ["-np", "4", "--min-np", "2", "--on-loss", "wait", *HOSTS]
    with running([*flags, *SCRIPT], tmp_path, {"DIE": "2 6", "WAITS": "1"}) as run:
        run.line("round 1.2: 4 workers")
        assert run.end() == 0, run.text
        made = steps_of(run.text, rank=0)
        assert len(made) > 6, "more than before the loss"
        assert made == [(step, 4) for step in range(1, len(made) + 1)]


def test_a_state_that_each_worker_holds_is_refused(tmp_path: Path) -> None:
    script = tmp_path / "whole.py"
    script.write_text(
        "import tests.torch_stand_ins\n"
        "import edriver\n"
        "@edriver.run\n"
        "def train(state):\n    state.check_host_updates()\n"
        "train(edriver.ObjectState(step=0))\n"
    )
    with running(["-np", "2", "--replica-size", "all", sys.executable, str(script)], tmp_path) as run:
        assert run.end() != 0
        assert "use edriver.ShardedState, or leave out --replica-size" in run.text
