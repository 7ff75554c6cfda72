"""The cost of the proof of membership: rounds of processes of this machine, built with and without it, in turn.

    python -m benchmarks.proof_cost [--size 4] [--rounds 60]

A round is torn down and built anew, as after a loss. The time of a round is the median of its ranks', from the
assignment to the group; every other round leaves out the proof. The processor time of a round is that of all ranks,
teardown included; what the proof takes of it is divided by the ends of all pairs, of which each rank has one fewer than
there are ranks. docs/benchmarks/proof.md has the figures.
"""

from __future__ import annotations

import argparse
import statistics
import time
from typing import Final

from tests.torch.group_ranks import assignment, members

DISPOSAL: Final = 0.1
"""Seconds after which the threads of a group that was torn down have ended."""


def main() -> None:
    """Measure, and print a line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--size", type=int, default=4, help="workers")
    parser.add_argument("--rounds", type=int, default=60, help="rounds, half of them with the proof")
    options = parser.parse_args()
    seconds: dict[bool, list[float]] = {True: [], False: []}
    processor: dict[bool, list[float]] = {True: [], False: []}
    with members(options.size) as group:
        for number in range(1, options.rounds + 1):
            proven = bool(number % 2)
            used = sum(member.call("processor_time") for member in group)
            for rank, member in enumerate(group):
                member.begin("time_build", assignment(number, rank, group[0].store, options.size), proven)
            taken = [member.end() for member in group]
            assert not any(outcome.error for outcome in taken), taken
            for member in group:
                member.call("teardown")
            time.sleep(DISPOSAL)
            if number > 4:
                seconds[proven].append(statistics.median(outcome.value for outcome in taken))
                processor[proven].append(sum(member.call("processor_time") for member in group) - used)
    with_proof, without = (sorted(seconds[proven]) for proven in (True, False))
    times = (f"{1000 * statistics.median(taken):.2f} ms" for taken in (without, with_proof))
    print(
        f"{options.size} workers, {len(with_proof)} rounds each: built without the proof in "
        f"{next(times)}, with it {next(times)} (medians; quartiles {_quartiles(without)} and {_quartiles(with_proof)})"
    )
    ends = options.size * (options.size - 1)
    of_round, of_proof = statistics.median(processor[False]), statistics.median(processor[True])
    print(
        f"processor time of all ranks: {1000 * of_round:.1f} ms without the proof, {1000 * of_proof:.1f} ms with it: "
        f"{1e6 * of_round / ends:.0f} and {1e6 * (of_proof - of_round) / ends:.0f} us for each of {ends} ends of pairs"
    )


def _quartiles(values: list[float]) -> str:
    low, _, high = statistics.quantiles(values)
    return f"{1000 * low:.2f} to {1000 * high:.2f}"


if __name__ == "__main__":
    main()
