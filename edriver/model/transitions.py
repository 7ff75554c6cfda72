"""Tables of transitions: which state follows from a state and a step, and that no other does. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import TypeVar

State = TypeVar("State", bound=Enum)
Step = TypeVar("Step", bound=Enum)


class IllegalTransitionError(AssertionError):
    """A state has no such transition: the core contradicts itself."""


def next_state(table: Mapping[tuple[State, Step], State], state: State, step: Step, what: str) -> State:
    """The state that follows.

    Args:
        table: the transitions.
        state: the present state.
        step: what happens.
        what: whose state it is, for the error.

    Raises:
        IllegalTransitionError: the table has no such transition.
    """
    try:
        return table[state, step]
    except KeyError:
        raise IllegalTransitionError(f"{what} is {state.value}: {step.value!r} cannot happen to it") from None
