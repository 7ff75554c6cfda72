from __future__ import annotations

from edriver.text.phrases import some_of


def test_of_many_names_some_are_listed() -> None:
    assert some_of(["a"], 2) == "a"
    assert some_of(["a", "b"], 2) == "a, b"
    assert some_of(["a", "b", "c", "d"], 2) == "a, b and 2 more"
    assert len(some_of([f"host-{number}" for number in range(1000)])) < 200
