"""The one way in which tests wait: it ends with what was found, or with a sentence."""

from __future__ import annotations

import asyncio

import pytest

from tests.waiting import until, until_async


def test_what_is_found_is_returned() -> None:
    looks = iter([None, "", "found", "more"])
    assert until(lambda: next(looks), every=0.0) == "found"
    assert asyncio.run(until_async(lambda: next(looks), every=0.0)) == "more"


def test_what_never_comes_fails_the_test_and_is_named() -> None:
    with pytest.raises(AssertionError, match="not within 0 s: three workers"):
        until(lambda: False, "three workers", bound=0.0, every=0.0)
    with pytest.raises(AssertionError, match="not within 0 s: two of them"):
        until(lambda: False, lambda: "two of them", bound=0.0, every=0.0)
    with pytest.raises(AssertionError, match="not within 0 s: a pod"):
        asyncio.run(until_async(lambda: False, "a pod", bound=0.0, every=0.0))
