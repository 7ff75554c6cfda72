"""Exit codes of `edriver`; 0 is success, 128 + n a run that was stopped by signal n."""

from __future__ import annotations

from typing import Final

EXIT_FAILED: Final = 1
EXIT_USAGE: Final = 2
