"""How many examples hypothesis tries: few and the same ones in each run; as many as EXAMPLES says, at random, else."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

QUICK = 40

_examples = int(os.environ.get("EXAMPLES") or 0)

settings.register_profile(
    "edriver",
    max_examples=_examples or QUICK,
    derandomize=not _examples,
    database=None,
    deadline=None,  # the machine may be busy
    print_blob=bool(_examples),
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("edriver")
