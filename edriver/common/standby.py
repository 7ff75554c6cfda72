"""What a standby and its agent agree on."""

from __future__ import annotations

from typing import Final

STANDBY_VARIABLE: Final = "EDRIVER_STANDBY"
"""Names the descriptor of a standby's socket to its agent; absent: the process is a worker from the start."""

IMPORTS_VARIABLE: Final = "EDRIVER_IMPORTS"
"""Names the file in which a slot's worker writes down what it imports, for standbys."""

READY: Final = b"ready"
"""What a standby says on its socket, once."""

CUDA_INITIALIZED_CODE: Final = 93
"""The exit code of a standby in which CUDA is initialized, so that it could become the worker of one slot only."""
