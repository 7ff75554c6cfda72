"""What the server of forks.py has imported stays: no collection in a fork looks through it, which would copy it all."""

from __future__ import annotations

import gc

gc.collect()
gc.freeze()
