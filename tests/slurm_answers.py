"""A stand-in for Slurm's commands."""

from __future__ import annotations

from collections.abc import Sequence

from edriver.driver.engines.slurm.commands import SlurmError


class Answers:
    """Slurm's commands, by name: what they print, or why they fail."""

    def __init__(self, **printed: str | SlurmError) -> None:
        self.printed = printed
        self.asked: list[str] = []

    async def __call__(self, words: Sequence[str]) -> str:
        self.asked.append(" ".join(words))
        answer = self.printed[words[0]]
        if isinstance(answer, SlurmError):
            raise answer
        return answer
