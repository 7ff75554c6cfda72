"""The plain script with one line more: it saves when edriver asks it to, and at no other time."""

from __future__ import annotations

import plain  # type: ignore[import-not-found]  # beside it where it runs

import edriver

if __name__ == "__main__":
    plain.checkpoint_wanted = edriver.checkpoint_requested
    plain.main()
