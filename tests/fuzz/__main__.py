"""Many inputs for every target: `python -m tests.fuzz --inputs 100000 [--seed 1]`."""

from __future__ import annotations

import argparse
import asyncio
import random
import time

from tests.fuzz.targets import TARGETS


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description="every gRPC method under invalid input")
    parser.add_argument("--inputs", type=int, default=100_000, help="of all targets together (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=random.randrange(2**32), help="replays a run")
    names = [target.__name__ for target in TARGETS]
    parser.add_argument("--only", choices=names, nargs="+", default=names, help="these targets")
    flags = parser.parse_args()
    print(f"seed {flags.seed}", flush=True)
    for target in (target for target in TARGETS if target.__name__ in flags.only):
        began = time.monotonic()
        each = -(-flags.inputs // len(TARGETS))
        asyncio.run(target(flags.seed).run(each))
        print(f"{target.__name__}: {each} inputs in {time.monotonic() - began:.0f} s", flush=True)


if __name__ == "__main__":
    main()
