"""A round that has lost a member, while there is no driver to abort it.

The agent of the lost member then frees the other members of its host. Their connections close, so that a collective
fails on other hosts, too, and their agents do the same. Nothing else is decided: the members wait, with their state,
for the next driver, which is sent the same reports.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from edriver.v1 import agent_pb2, cause_pb2, notification_pb2, rounds_pb2


class LostRound:
    """The latest round of this host's workers that has lost a member.

    Attributes:
        round_id: that round; all zero: no round has lost a member.
    """

    def __init__(self) -> None:
        self.round_id = rounds_pb2.RoundId()
        self._cause = cause_pb2.Cause()
        self._freed: set[int] = set()

    def note(self, round_id: rounds_pb2.RoundId, cause: cause_pb2.Cause) -> None:
        """This round has lost a member. The first cause is the one that counts."""
        if round_id != self.round_id:
            self.round_id.CopyFrom(round_id)
            self._cause, self._freed = cause, set()

    def notices(self, members: Mapping[int, rounds_pb2.RoundId]) -> Iterator[tuple[int, notification_pb2.Notice]]:
        """What frees its members.

        Args:
            members: the latest round of each worker, by worker ID.

        Yields:
            the worker, and the notice for it; each worker once.
        """
        for worker_id, round_id in members.items():
            if self.round_id.n and round_id == self.round_id and worker_id not in self._freed:
                self._freed.add(worker_id)
                abort = notification_pb2.Abort(round_id=round_id, cause=self._cause)
                yield worker_id, notification_pb2.Notice(abort=abort)


def loss_in(message: agent_pb2.ConnectRequest) -> int | None:
    """The worker that has left its round, according to a message to the driver; None: none has."""
    if message.HasField("worker_ending"):
        return message.worker_ending.worker_id
    if message.HasField("worker_exited"):
        return message.worker_exited.worker_id
    if message.worker_report.report.WhichOneof("kind") in ("collective_raised", "peer_unproven", "worker_failed"):
        return message.worker_report.worker_id
    return None
