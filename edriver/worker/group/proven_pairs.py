"""Every Gloo group that is made in a round proves each of its connections before it can be used.

They are met where torch makes them (backend/gloo/groups.py). Outside rounds torch is as it was.

Until its connection is proven a peer can make this process do two things: read 32 bytes into memory that is waiting for
them, and parse Gloo's own message headers. The second cannot be helped from here: Gloo (torch 2.13) ends its process on
some headers that no member would send.

The proof is one collective over all connections at once, right after the group is built, of a fixed length. What is
wrapped for that is the constructor of torch's ProcessGroupGloo, through which `new_group` and DeviceMesh come, too; a
round whose own group did not come through it is refused.

An attacker who can change packets between two hosts can wait until a connection is proven, and then read and change
what is computed and the tensors of a sync. Gloo can speak TLS, but not as torch is distributed: with
GLOO_DEVICE_TRANSPORT=TCP_TLS torch 2.13.0's CPU wheel raises "makeDeviceForHostname(): unsupported gloo device".
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Final

import torch

from edriver.model.plan import Assignment
from edriver.worker.backend.gloo import groups as gloo_groups
from edriver.worker.backend.gloo.callers import Caller, names_of, suspects
from edriver.worker.backend.gloo.groups import Backend
from edriver.worker.backend.gloo.sever import GlooDevice
from edriver.worker.errors import UnprovenPeerError
from edriver.worker.group.connection_guard import ConnectionGuard
from edriver.worker.group.membership_proof import PROOF_BYTES, MembershipProof
from edriver.worker.group.store import StoreClient

logger = logging.getLogger("edriver.worker")

PROOF_TIMEOUT: Final = 5.0
"""Seconds that the members of a group may take to prove their membership, once it is built.

They have all met at the store a moment before. One that is stopped for longer costs another round, and nothing else.
"""


@dataclass(slots=True, eq=False)
class PairsOfRound:
    """The proofs of one round in this process.

    Attributes:
        assignment: this worker's place in the round.
        store: this worker's connection to the round's store, in which each group has its own keys.
        devices: the round's Gloo devices, as they are when it is called.
        close: closes the group's listeners to new connections; called with the number of ranks once it is proven.
        guard: has the connections of each group named before they are read; None: the round is not guarded.
        proven: the groups that have been proven, or tried to, by the names that they have in the round's store.
    """

    assignment: Assignment
    store: StoreClient
    devices: Callable[[], Mapping[int, GlooDevice]]
    close: Callable[[int], object]
    guard: ConnectionGuard | None = None
    proven: set[str] = field(default_factory=set)
    _proving: int = 0
    _seen: list[Caller] = field(default_factory=list)

    def witness(self) -> None:
        """Note who is connected, if a proof is under way. Comes before connections are cut, which makes them forget."""
        if self._proving and not self._seen:
            self._seen = suspects(self.devices().values())

    def prove(self, group: Backend, name: str) -> None:
        """Exchange proofs over all pairs of a group at once; if all are valid, close the group to new connections.

        Args:
            group: the group.
            name: the group's unique name in the round, the same on all its ranks.

        Raises:
            UnprovenPeerError: a peer did not prove its membership, or not in time; or the round was severed.
            RuntimeError: the round has had a group of this name before, in which another process may have received
                proofs.
        """
        again = name in self.proven
        self.proven.add(name)
        if group.size() > 1:
            self._prove(group, name, again)
            if self.guard is not None:
                self.guard.rest()
        self.close(group.size())

    def _prove(self, group: Backend, name: str, again: bool) -> None:
        if again:
            raise RuntimeError(f"round {self.assignment.round_id} has had a group {name!r} before")
        proof = MembershipProof(self.assignment.secret, self.assignment.round_id, name)
        self._proving += 1
        try:
            self._exchange(group, proof)
        finally:
            self._proving -= 1

    def _exchange(self, group: Backend, proof: MembershipProof) -> None:
        rank, ranks = group.rank(), range(group.size())
        sent = torch.frombuffer(bytearray(b"".join(proof.proof_of(rank, peer) for peer in ranks)), dtype=torch.uint8)
        answers = bytearray(len(sent))
        received = torch.frombuffer(answers, dtype=torch.uint8)
        error: RuntimeError | None = None
        try:
            gloo_groups.exchange(group, sent, received, timedelta(seconds=PROOF_TIMEOUT))
        except RuntimeError as raised:  # of any kind: the connections that are not proven are found below
            error = raised
        parts = [bytes(answers[peer * PROOF_BYTES : (peer + 1) * PROOF_BYTES]) for peer in ranks]
        peers = [peer for peer in ranks if peer != rank]
        unproven = [peer for peer in peers if not proof.holds(parts[peer], speaker=peer, listener=rank)]
        if unproven or error:
            raise self._unproven(unproven or peers, error) from error

    def _unproven(self, peers: list[int], error: RuntimeError | None) -> UnprovenPeerError:
        self.witness()
        if error is None:
            how = "the proof is wrong"
        elif gloo_groups.ran_out_of_time(error):
            how = f"not within {PROOF_TIMEOUT:g} s"
        else:
            how = str(error).partition(". This is typically")[0]
        unproven = UnprovenPeerError(
            f"the connections to ranks {', '.join(map(str, peers))} did not prove to lead to members of round "
            f"{self.assignment.round_id} ({how}); {names_of(self._seen)}"
        )
        logger.warning("%s", unproven)
        return unproven
