"""What hypothesis draws, for several tests, and what holds for any message of an error."""

from __future__ import annotations

from google.protobuf.message import Message
from hypothesis import strategies as st

from edriver.model.ids import RoundId, Version
from tests.fuzz.messages import Fuzzer

NUMBERS = st.integers(0, 3) | st.integers(0, 2**32 - 1)
ROUND_IDS = st.builds(RoundId, NUMBERS, NUMBERS)
VERSIONS = st.builds(Version, ROUND_IDS, NUMBERS)
SOURCES = st.randoms(use_true_random=False)


def messages(kind: type[Message]) -> st.SearchStrategy[Message]:
    return SOURCES.map(lambda source: Fuzzer(source).message(kind))


def check_sentence(text: str, longest: int) -> None:
    assert text.isprintable()
    assert len(text) < longest, "a message repeats what has come"
