"""A run with torch alone and a parent that reaps: the bare floor. See bare_parent.py."""

from __future__ import annotations

import sys

from benchmarks.jobs import Job


class BareJob(Job):
    """A run without any system: a worker that is lost is not replaced."""

    elastic = False

    def launch(self, size: int) -> None:
        """Start the parent, and with it the workers."""
        command = [sys.executable, "-m", "benchmarks.bare_parent", str(size)]
        self._start([*command, *self.workload.flags(self.folder)], {})
