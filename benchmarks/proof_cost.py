"""The cost of the proof of membership: rounds of processes of this machine, built with and without it, in turn.

    python -m benchmarks.proof_cost [--size 4] [--rounds 60]

A round is torn down and built anew, as after a loss. The time of a round is the median of its ranks', from the
assignment to the group; every other round leaves out the proof. docs/benchmarks/proof.md has
the figures.
"""

from __future__ import annotations

import argparse
import statistics

from tests.torch.group_ranks import assignment, members


def main() -> None:
    """Measure, and print a line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--size", type=int, default=4, help="workers")
    parser.add_argument("--rounds", type=int, default=60, help="rounds, half of them with the proof")
    options = parser.parse_args()
    seconds: dict[bool, list[float]] = {True: [], False: []}
    with members(options.size) as group:
        for number in range(1, options.rounds + 1):
            proven = bool(number % 2)
            for rank, member in enumerate(group):
                member.begin("time_build", assignment(number, rank, group[0].store, options.size), proven)
            taken = [member.end() for member in group]
            assert not any(outcome.error for outcome in taken), taken
            if number > 4:
                seconds[proven].append(statistics.median(outcome.value for outcome in taken))
            for member in group:
                member.call("teardown")
    with_proof, without = (sorted(seconds[proven]) for proven in (True, False))
    times = (f"{1000 * statistics.median(taken):.2f} ms" for taken in (without, with_proof))
    print(
        f"{options.size} workers, {len(with_proof)} rounds each: built without the proof in "
        f"{next(times)}, with it {next(times)} (medians; quartiles {_quartiles(without)} and {_quartiles(with_proof)})"
    )


def _quartiles(values: list[float]) -> str:
    low, _, high = statistics.quantiles(values)
    return f"{1000 * low:.2f} to {1000 * high:.2f}"


if __name__ == "__main__":
    main()
