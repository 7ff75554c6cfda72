"""A worker's part in the one round that its process lives for.

The process announces itself, waits for its place, puts torchrun's variables into the environment, and runs the script
in its main thread with runpy. When the script has ended well, the process stays until all others have, as rank 0's
store is needed until then. If a collective fails, it waits for ROOT_CAUSE_TIMEOUT (2 s) to be stopped, because the
process that was lost is the cause that people have to see, and is reported a moment later. Any other exception or exit
code is reported at once. After a failure the exit hooks run and the process ends there (quick_end.py). A group that the
script destroys is kept until then (destroyed_group.py): torch could wait for ever in the destructor of a
DistributedDataParallel that outlives it, under torchrun as here.

The store of a round: with TORCHELASTIC_USE_AGENT_STORE=True no rank serves the store of `init_process_group`; torch
expects it at MASTER_ADDR:MASTER_PORT already. Each worker makes a TCPStore of torch's before it announces itself, at a
port that the kernel picks and at its host's address only, and reports it as elastic workers report theirs. Rank 0's is
the round's. So no port is chosen first and bound later, and each round has an empty store. It is torch's: every process
that reaches that port may use it, and neither it nor Gloo's connections are proven, as under torchrun.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NoReturn

import torch.distributed as dist

from edriver.calls import worker_process
from edriver.model.ids import NO_VERSION
from edriver.model.plan import Assignment
from edriver.model.store_address import StoreAddress
from edriver.system import stack_dump
from edriver.system.life_lock import LifeLock
from edriver.system.own_addresses import bound_at
from edriver.v1 import notification_pb2 as pb
from edriver.wire.conversion import round_id_message, round_id_of
from edriver.worker import context
from edriver.worker.backend.peer_loss import looks_like_peer_loss
from edriver.worker.restart.quick_end import QuickEnd
from edriver.worker.restart.script import own_traceback
from edriver.worker.restart.tensorflow_cluster import Store
from edriver.worker.rounds.notification import NotificationServer
from edriver.worker.rounds.participant import BoundaryVerdict, Participant, Stage
from edriver.worker.rounds.run import end_process_group
from edriver.worker.watch.blocked import BlockedWatch
from edriver.worker.watch.forked import CreatorProcess
from edriver.worker.watch.imports import ImportRecord, imported_report
from edriver.worker.watch.source_files import SourceFiles
from edriver.worker.watch.traceback_text import traceback_text

ROOT_CAUSE_TIMEOUT = 2.0
"""Seconds for which a process whose collective has failed waits to be stopped: what ended its peer is the cause that
people have to see, and is known a moment later."""


class OneRound:
    """A worker from its start to the end of its script.

    Args:
        environ: what the agent passed to the worker: EDRIVER_RUN_ID, EDRIVER_WORKER_ID, EDRIVER_SOCKET, EDRIVER_READY,
            EDRIVER_ADDRESS, EDRIVER_LIFE.
        end: ends the process where the script fails.
    """

    def __init__(self, environ: Mapping[str, str], end: QuickEnd) -> None:
        stack_dump.enable(Path(environ["EDRIVER_SOCKET"]))
        worker_process.claim()
        self._end = end
        self._participant = Participant()
        self._changed = threading.Condition(threading.Lock())
        self._owner = CreatorProcess()
        self._store, self._store_address = served_store(environ["EDRIVER_ADDRESS"])
        self._imports: ImportRecord | None = None
        self._blocked = BlockedWatch(threading.main_thread())
        self._stop_ordered = False
        self._sources = SourceFiles()
        self.life = LifeLock(Path(environ["EDRIVER_LIFE"]))
        context.current.checkpoint_requested = self.checkpoint_requested
        self._server = NotificationServer(
            environ["EDRIVER_SOCKET"],
            environ["EDRIVER_RUN_ID"],
            int(environ["EDRIVER_WORKER_ID"]),
            self._take,
            end_process_group,
        )
        self._server.start(environ["EDRIVER_READY"])

    def place(self) -> Assignment | None:
        """Wait for a place in a round; returns None if there is no place for this worker, which then ends."""
        with self._changed:
            self._participant.enter()
            self._server.report(self._participant.wait(NO_VERSION, self._store_address, ""))
            while self._participant.stage is Stage.WAITING:
                self._changed.wait()
            assignment = self._participant.assignment
            if self._participant.stage is Stage.ASSIGNED and assignment is not None:
                context.current.need_checkpoint_server = self._server.need_checkpoint_server
                context.current.restart_member = _OneRoundMember(self, assignment)
                return assignment
        self._server.stop()
        return None

    def store_of(self, assignment: Assignment) -> Store:
        """The round's store: this worker's own where it is rank 0, else a connection to rank 0's.

        Raises:
            torch.distributed.DistError: it cannot be reached.
        """
        if assignment.rank == 0:
            return self._store
        address = assignment.store
        store: Store = dist.TCPStore(address.host, address.port, is_master=False)  # type: ignore[attr-defined]  # documented
        return store

    def remember_imports(self, path: Path, place: Mapping[str, str]) -> None:
        """From now on write down for the slot's standby, at each sign of life, what the script has imported.

        One member of the round reports it, too, for hosts that join.

        Args:
            path: the file.
            place: torchrun's variables in the environment.
        """

        def report(names: Sequence[str], environment: Mapping[str, str]) -> None:
            self._server.report(imported_report(names, environment))

        # Rank 0 often does more than the others; the last is most like those that join.
        reports = int(place["RANK"]) == int(place["WORLD_SIZE"]) - 1
        self._imports = ImportRecord(path, place, report if reports else None)

    def begins(self, words: Sequence[str]) -> None:
        """The script is about to be run: report its source. Modules follow at signs of life.

        Args:
            words: see run_script.
        """
        self._report_sources(self._sources.script(None if words[0] == "-m" else words[0]))

    def _report_sources(self, files: Sequence[pb.SourceFile]) -> None:
        if files:
            self._server.report(pb.Report(sources_loaded=pb.SourcesLoaded(files=files)))

    @contextlib.contextmanager
    def ending(self) -> Iterator[None]:
        """Around the script: report how it ends. One that ends well stays until all others have."""
        try:
            yield
        except BaseException as error:
            if not self._owner.is_here:
                raise  # a child that the script has forked: it ends, and reports nothing
            if not isinstance(error, SystemExit) or error.code:
                self._fail(error)
        if self._owner.is_here:
            self._finish()

    def _finish(self) -> None:
        if self._stop_ordered:
            self._wait_to_be_stopped()
        with self._changed:
            self._server.report(self._participant.done())
            # A script that saves on SIGTERM and ends with 0 has nothing to wait for: its round is over.
            while self._participant.stage is Stage.DONE and self._participant.abort_cause is None:
                self._changed.wait()
        self._server.stop()

    def _fail(self, error: BaseException) -> None:
        """Report what has left the script, print it as the interpreter would, and end with its exit code."""
        error = error.with_traceback(own_traceback(error.__traceback__))
        if looks_like_peer_loss(error):
            if self._stop_ordered:
                self._wait_to_be_stopped()  # the peer has saved, and ended
            time.sleep(ROOT_CAUSE_TIMEOUT)  # stopped meanwhile, as a rule
            report = self._participant.raised(traceback_text(error))
        else:
            report = pb.Report(worker_failed=pb.WorkerFailed(traceback=traceback_text(error)))
        self._server.report(report)
        sys.last_type = type(error)  # as the interpreter does: the script has ended with an exception
        self._server.stop()
        if isinstance(error, SystemExit):
            self._end.code = error.code if isinstance(error.code, int) else 1
            raise error
        sys.excepthook(type(error), error, error.__traceback__)
        self._end.code = 1
        sys.exit(1)

    def program_failed(self, *, stopped: bool) -> None:
        """Report that a program other than a Python script has failed, before its process ends in the same way.

        It may have failed because it lost a peer, whose failure is then the cause to show.
        """
        if stopped:
            return
        if self._stop_ordered:
            self._wait_to_be_stopped()
        time.sleep(ROOT_CAUSE_TIMEOUT)

    # ---- saving before a change of the members --------------------------------------------------------------------

    def checkpoint_requested(self) -> bool:
        """Count a boundary; returns whether it is the agreed one. At the next one the process is done with."""
        if not self._owner.is_here or not self._participant.passed(committed=False):
            return False
        with self._changed:
            while (verdict := self._participant.verdict()) is BoundaryVerdict.WAIT:
                self._changed.wait()
        if verdict in (BoundaryVerdict.ABORT, BoundaryVerdict.SWALLOWED):
            self._wait_to_be_stopped()
        return verdict is BoundaryVerdict.STOP

    def _wait_to_be_stopped(self) -> NoReturn:
        """The script has had its time to save."""
        self._server.report(
            pb.Report(checkpoint_saved=pb.CheckpointSaved(round_id=round_id_message(self._participant.round_id)))
        )
        while True:
            signal.pause()

    @property
    def _way(self) -> pb.CheckpointWay.ValueType:
        """By what the script can be asked for a checkpoint."""
        if self._participant.boundaries:
            return pb.CHECKPOINT_WAY_CALL
        handled = signal.getsignal(signal.SIGUSR1) not in (signal.SIG_DFL, signal.SIG_IGN)
        return pb.CHECKPOINT_WAY_SIGNAL if handled else pb.CHECKPOINT_WAY_UNSPECIFIED

    def _take(self, notice: pb.Notice) -> pb.Report | None:
        """On the notification thread: take a notice; returns what is to be answered."""
        with self._changed:
            answer = self._participant.take(notice)
            self._changed.notify_all()
            ours = notice.HasField("stop_at") and round_id_of(notice.stop_at.round_id) == self._participant.round_id
        if ours:
            self._stop_ordered = True
            if self._way == pb.CHECKPOINT_WAY_SIGNAL:
                os.kill(os.getpid(), signal.SIGUSR1)
        if answer is not None and answer.HasField("boundary_reached"):
            answer.boundary_reached.checkpoint_way = self._way
        if answer is not None and answer.HasField("pong"):
            progress = pb.WorkerProgress(round_id=round_id_message(self._participant.round_id))
            answer.pong.progress.CopyFrom(progress)
            if self._imports is not None:
                self._imports.update()
            self._sources.look(self._report_sources)
            self._look_for_standstill()
        return answer

    def _look_for_standstill(self) -> None:
        """Say when the script stands still in a collective: the others may have run to their end."""
        participant = self._participant
        if participant.stage is not Stage.ASSIGNED:
            return
        if (seconds := self._blocked.look((participant.round_id, participant.boundaries))) is not None:
            self._server.report(participant.blocked(seconds))


class _OneRoundMember:
    """What other rooms ask of a worker in restart mode: see RestartMember.

    Attributes:
        assignment: its place.
    """

    def __init__(self, worker: OneRound, assignment: Assignment) -> None:
        self.assignment = assignment
        self._worker = worker
        self._creator = CreatorProcess()

    @property
    def is_here(self) -> bool:
        return self._creator.is_here

    def store(self) -> Store:
        return self._worker.store_of(self.assignment)

    def note_step(self, step: int) -> None:
        self._worker.life.show_step(step)


def served_store(address: str) -> tuple[Store, StoreAddress]:
    """A torch TCPStore that listens at this address only, at a free port.

    It exists before the worker reports that it is ready, so that the others can connect if it becomes rank 0.

    Raises:
        OSError: the address is not an address of this host.
    """
    listener = bound_at(address)
    listener.listen()
    host, port = listener.getsockname()[:2]
    store = dist.TCPStore(  # type: ignore[attr-defined]  # documented
        str(host), int(port), is_master=True, wait_for_workers=False, master_listen_fd=listener.detach()
    )
    return store, StoreAddress(str(host), int(port))
