"""State and ObjectState: commit and restore, boundaries, callbacks, digests."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import pytest

from edriver.worker import reports
from edriver.worker.errors import HostsUpdatedInterrupt
from edriver.worker.state.digests import MAX_DIGEST_LENGTH, digest_text, with_modes
from edriver.worker.state.object_state import ObjectState


class RecordingRounds:
    """Notes boundaries, and interrupts at one of them."""

    abort_cause = None

    def __init__(self, stop_at: int | None = None) -> None:
        self.boundaries: list[bool] = []
        self._stop_at = stop_at

    def boundary(self, committed: bool) -> None:
        self.boundaries.append(committed)
        if len(self.boundaries) == self._stop_at:
            raise HostsUpdatedInterrupt

    def check(self) -> None:
        raise AssertionError("plain objects are never half done")

    def clipped(self, norm: float) -> None:
        pass

    def seal_broken(self, error: Exception) -> None:
        raise error


def test_restore_goes_back_to_the_last_commit() -> None:
    state = ObjectState(epoch=0, losses=[1.0], nested={"a": [1]})
    state.commit()
    state.epoch = 5
    state.losses.append(2.0)
    state.nested["a"].append(2)
    state.restore()
    assert (state.epoch, state.losses, state.nested) == (0, [1.0], {"a": [1]})


def test_a_commit_can_be_restored_more_than_once() -> None:
    state = ObjectState(losses=[1.0])
    state.commit()
    for _ in range(2):
        state.losses.append(2.0)
        state.restore()
        assert state.losses == [1.0]


def test_what_attributes_share_their_copies_share() -> None:
    shared: list[int] = []
    state = ObjectState(a=shared, b=shared)
    state.commit()
    state.restore()
    state.a.append(1)
    assert state.b == [1]


def test_without_a_commit_restore_changes_nothing() -> None:
    state = ObjectState(epoch=0)
    state.epoch = 3
    assert not state.has_commit
    state.restore()
    assert state.epoch == 3
    state.save()
    assert state.has_commit


def test_an_attribute_that_cannot_be_copied_is_named_and_the_last_commit_stays() -> None:
    state = ObjectState(epoch=0, thing=None)
    state.commit()
    state.epoch, state.thing = 1, threading.Lock()
    with pytest.raises(TypeError, match="attribute 'thing' cannot be copied"):
        state.commit()
    state.restore()
    assert (state.epoch, state.thing) == (0, None)


@pytest.mark.parametrize("name", ["commit", "_saved", "last_hosts_update"])
def test_names_that_would_clash_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match=f"cannot have an attribute named '{name}'"):
        ObjectState(**{name: 1})  # type: ignore[arg-type]


def test_boundaries_reach_the_run() -> None:
    state, rounds = ObjectState(step=0), RecordingRounds()
    state.commit()  # outside of run: local only
    state.bind(rounds)
    state.commit()
    state.check_host_updates()
    state.bind(None)
    state.check_host_updates()
    assert rounds.boundaries == [True, False]


def test_a_commit_saves_before_its_boundary_interrupts() -> None:
    state = ObjectState(step=0)
    state.bind(RecordingRounds(stop_at=1))
    state.step = 7
    with pytest.raises(HostsUpdatedInterrupt):
        state.commit()
    state.step = 8
    state.restore()
    assert state.step == 7


def test_check_host_updates_does_not_save() -> None:
    state = ObjectState(step=0)
    state.check_host_updates()
    assert not state.has_commit


def test_reset_comes_before_the_callbacks_in_their_order() -> None:
    calls: list[str] = []

    class Watched(ObjectState):
        def reset(self) -> None:
            calls.append("reset")

    def noting(name: str) -> Callable[[], None]:
        return lambda: calls.append(name)

    state = Watched()
    state.register_reset_callbacks([noting("first"), noting("second")])
    state.register_reset_callbacks([noting("third")])
    state.on_reset()
    assert calls == ["reset", "first", "second", "third"]


def test_news_about_hosts_is_kept() -> None:
    state = ObjectState()
    state.on_hosts_updated(12.5, 2)
    assert state.last_hosts_update == (12.5, 2)


def test_sync_in_a_world_of_one_counts_as_a_commit() -> None:
    state = ObjectState(epoch=2)
    state.sync()
    state.epoch = 3
    state.restore()
    assert state.epoch == 2


def test_a_sync_resets_before_it_saves() -> None:
    class Split(ObjectState):
        def reset(self) -> None:
            self.share = 5

    state = Split(share=0)
    state.sync()
    state.share = 1
    state.restore()
    assert state.share == 5


def test_torch_is_not_imported() -> None:
    code = (
        "import sys; import edriver.worker.state.object_state as s, edriver.worker.sampler.cursor; state = "
        "s.ObjectState(epoch=0); state.sync(); state.commit(); state.restore(); "
        "state.digest(committed=True); sys.exit('torch' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def digests(*states: ObjectState) -> list[str]:
    return [state.digest(committed=False) for state in states]


def test_equal_states_have_equal_digests() -> None:
    one, other = digests(
        ObjectState(epoch=1, lr=0.1, parts={"a": 1, "b": (None, True)}),
        ObjectState(parts={"b": (None, True), "a": 1}, lr=0.1, epoch=1),
    )
    assert one == other == "epoch=1 lr=0.1 parts={'a': 1, 'b': (None, True)}"


@pytest.mark.parametrize(
    ("one", "other"),
    [
        pytest.param(1, 2, id="int"),
        pytest.param(1, 1.0, id="type"),
        pytest.param(0.1, 0.1 + 2**-55, id="last-bit"),
        pytest.param(1, "1", id="quotes"),
        pytest.param([1], (1,), id="list-tuple"),
        pytest.param({"a": 1}, {"a": 2}, id="dict"),
        pytest.param("x" * 2000 + "a", "x" * 2000 + "b", id="beyond-the-head"),
    ],
)
def test_unequal_states_have_unequal_digests(one: Any, other: Any) -> None:
    first, second = digests(ObjectState(value=one), ObjectState(value=other))
    assert first != second


class CountLike(int):
    """Its repr differs between processes."""

    def __repr__(self) -> str:
        return f"<{id(self)}>"


@pytest.mark.parametrize(
    "value",
    [object(), CountLike(3), [1, object()], {"a": object()}, OrderedDict(a=1), {1, 2}],
    ids=["object", "subclass", "list", "dict", "ordered-dict", "set"],
)
def test_what_has_no_canonical_text_is_left_out(value: Any) -> None:
    assert digests(ObjectState(epoch=1, value=value)) == ["epoch=1"]


def test_what_is_taken_from_rank_0_is_not_compared() -> None:
    one, other = (
        ObjectState(epoch=1, best=1.0, from_rank_0=["best"]),
        ObjectState(epoch=1, best=2.0, from_rank_0=["best"]),
    )
    assert digests(one, other) == ["epoch=1", "epoch=1"]
    one.save()
    assert one.digest(committed=True) == "epoch=1"


def test_from_rank_0_names_attributes() -> None:
    with pytest.raises(ValueError, match="from_rank_0 names 'best', which is not an attribute"):
        ObjectState(epoch=1, from_rank_0=("best",))


def test_a_digest_is_short_and_ascii() -> None:
    text = ObjectState(a="ä" * 100, b=list(range(10_000))).digest(committed=False)
    assert len(text) == MAX_DIGEST_LENGTH
    assert text.isascii()


def test_the_committed_digest_is_of_the_last_commit() -> None:
    state = ObjectState(epoch=0)
    assert state.digest(committed=True) == ""
    state.commit()
    state.epoch = 1
    assert (state.digest(committed=True), state.digest(committed=False)) == ("epoch=0", "epoch=1")


def test_commits_of_all_states_of_a_process_are_counted() -> None:
    before = reports.commits.count, reports.commits.seconds
    for state in (ObjectState(a=1), ObjectState(b=2)):
        state.commit()
        state.commit()
    assert reports.commits.count == before[0] + 4
    assert reports.commits.seconds > before[1]


def test_a_digest_with_modes_is_as_long_as_any_at_most_and_has_the_modes_whole() -> None:
    assert with_modes("step=1", "gradients on") == "step=1 _modes=gradients on"
    assert with_modes("", "gradients on") == "_modes=gradients on"
    assert with_modes("step=1", None) == "step=1"
    long = with_modes(digest_text({"x": "a" * 5000}), "gradients on; in eval mode: mod\xe8le")
    assert len(long) == MAX_DIGEST_LENGTH
    assert long.endswith(" _modes=gradients on; in eval mode: mod?le")
    other = with_modes(digest_text({"x": "a" * 4999 + "b"}), "gradients on; in eval mode: mod\xe8le")
    assert long != other
