"""What a run's workers have imported, for hosts on which none of them has run yet.

In restart mode a worker on such a host imports it while the round before trains, rather than in its script, when all
others have been stopped; in elastic mode the host's standbys do. This is no event: the core never hears of it, and no
journal has it. A driver that takes a run over knows nothing of it until a worker reports again, which is when the next
round begins or the script imports more.
"""

from __future__ import annotations

from edriver.model.limits import MAX_MODULES
from edriver.v1 import agent_pb2, notification_pb2


class ImportedModules:
    """All installed modules that workers have reported, MAX_MODULES at most, in the place of the last who did."""

    def __init__(self) -> None:
        self._names: dict[str, None] = {}
        self._environment: dict[str, str] = {}

    def note(self, report: notification_pb2.ModulesImported) -> None:
        """Note what a worker has imported, in addition to what is known."""
        self._environment = dict(report.environment)
        for name in report.names:
            if len(self._names) >= MAX_MODULES:
                break
            self._names[name] = None

    @property
    def count(self) -> int:
        """The number of modules that are known."""
        return len(self._names)

    def add_to(self, message: agent_pb2.StartWorker | agent_pb2.Heartbeat) -> None:
        """Add all that is known to a message; nothing if nothing is."""
        if self._names:
            message.modules_imported.names.extend(self._names)
            message.modules_imported.environment.update(self._environment)
