"""The notification service: how the driver's notices reach a worker, and its reports the driver.

The worker serves gRPC on its own unix socket; its host's agent opens one stream, on which everything passes in
order. One thread of the service, the notification thread, takes each notice while the training thread trains.
"""

from __future__ import annotations

import concurrent.futures
import logging
import os
import queue
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import grpc

from edriver.common.release import PROTOCOL, VERSION
from edriver.v1 import notification_pb2 as pb
from edriver.v1 import notification_pb2_grpc
from edriver.wire.grpc_streams import NO_BANDWIDTH_PROBE
from edriver.worker.watch.forked import CreatorProcess, keep_in_children
from edriver.worker.watch.stall import stacks

logger = logging.getLogger("edriver.worker")

ORPHAN_TIMEOUT = 5.0
"""Seconds between the end of the agent's stream and the end of the worker: an agent never comes back. Its guard is
faster, and so is the tether (edriver.system.tether), where they are."""

PARTING_TIMEOUT = 1.0
"""Seconds that the agent may take to read the last reports."""

SERVER_END_TIMEOUT = 5.0
"""Seconds for the service to end after that. A thread of gRPC's that comes out of C++ while the interpreter is shutting
down would abort the process."""

MAX_QUEUED_REPORTS = 1000
"""Most reports that may wait for the agent; a worker makes a handful per round."""


class HostUpdateListener(Protocol):
    """Receives notice of added and removed hosts; every State is one."""

    def on_hosts_updated(self, timestamp: float, update_res: int) -> None:
        """Called on the notification thread, never concurrently.

        Args:
            timestamp: when the driver saw it, in seconds since the epoch.
            update_res: a HostUpdateResult: 1 removed, 2 added, 3 both.
        """


class NotificationManager:
    """Passes news about hosts on to listeners (Horovod's class of the same name)."""

    def __init__(self) -> None:
        """No listeners yet."""
        self._lock = threading.Lock()
        self._listeners: list[HostUpdateListener] = []

    def register_listener(self, listener: HostUpdateListener) -> None:
        """Tell this listener from now on; once, however often it is registered."""
        with self._lock:
            if all(known is not listener for known in self._listeners):
                self._listeners.append(listener)

    def remove_listener(self, listener: HostUpdateListener) -> None:
        """Tell it no more; nothing happens if it is not registered."""
        with self._lock:
            self._listeners = [known for known in self._listeners if known is not listener]

    def handle_hosts_updated(self, timestamp: float, update_res: int) -> None:
        """Tell all listeners; one that raises is logged and does not affect the others."""
        with self._lock:
            listeners = list(self._listeners)
        for listener in listeners:
            try:
                listener.on_hosts_updated(timestamp, update_res)
            except Exception:
                logger.exception("a listener for changes of hosts failed")


class DaemonExecutor(concurrent.futures.ThreadPoolExecutor):
    """Threads that do not keep the process alive: a script that ends must not wait for its notification service."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> concurrent.futures.Future[Any]:
        """Run a call in a separate thread."""
        future: concurrent.futures.Future[Any] = concurrent.futures.Future()

        def work() -> None:
            try:
                future.set_result(fn(*args, **kwargs))
            except BaseException as error:  # noqa: BLE001  it is the future's to raise
                future.set_exception(error)

        threading.Thread(target=work, name="edriver-service", daemon=True).start()
        return future


class NotificationServer(notification_pb2_grpc.NotificationServiceServicer):
    """Serves one worker's notification service.

    Args:
        socket_path: the unix socket to listen on.
        run_id: the run that this worker belongs to.
        worker_id: this worker's ID: a stream meant for another worker is refused.
        take: handles each notice, on the notification thread; returns an answer to report, or None.
        orphaned: called ORPHAN_TIMEOUT seconds after the agent's stream has ended, unless this worker ends itself.
    """

    def __init__(
        self,
        socket_path: str,
        run_id: str,
        worker_id: int,
        take: Callable[[pb.Notice], pb.Report | None],
        orphaned: Callable[[], None],
    ) -> None:
        self.last_word = time.monotonic()
        self._socket_path = socket_path
        self._identity = (run_id, worker_id)
        self._take = take
        self._orphaned = orphaned
        self._stopped = threading.Event()
        self._attached = False
        self._lock = threading.Lock()
        self._reports: queue.Queue[pb.Report | None] = queue.Queue(MAX_QUEUED_REPORTS)
        self._server = grpc.server(DaemonExecutor(), options=NO_BANDWIDTH_PROBE, maximum_concurrent_rpcs=2)
        notification_pb2_grpc.add_NotificationServiceServicer_to_server(self, self._server)
        self._owner = CreatorProcess()
        keep_in_children(lambda: (self,))

    def start(self, ready: str) -> None:
        """Listen, and tell the agent so.

        Args:
            ready: the agent's datagram socket, which takes the worker_id and the process id as text.
        """
        self._server.add_insecure_port(f"unix:{self._socket_path}")
        self._server.start()
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as announcement:
            announcement.sendto(f"{self._identity[1]} {os.getpid()}".encode(), ready)

    def stop(self) -> None:
        """End the stream and the service; nothing happens in a forked child."""
        if not self._owner.is_here:
            return
        self._stopped.set()
        if not hasattr(sys, "last_type"):  # no exception has ended the script
            self._reports.put(pb.Report(script_ended=pb.ScriptEnded()))
        self._reports.put(None)
        self._server.stop(grace=PARTING_TIMEOUT).wait(PARTING_TIMEOUT + SERVER_END_TIMEOUT)

    def report(self, report: pb.Report) -> None:
        """Say something to the driver, in order with the answers to notices; a forked child has no say."""
        if self._owner.is_here:
            self._reports.put(report)

    def checkpoint_written(self, number: int) -> None:
        """A checkpoint is on disk that meets the requests up to this number."""
        self.report(pb.Report(checkpoint_written=pb.CheckpointWritten(number=number)))

    def need_checkpoint_server(self) -> None:
        """Have the agent start its host's checkpoint server."""
        self.report(pb.Report(checkpoint_server_needed=pb.CheckpointServerNeeded()))

    def Attach(  # noqa: N802  gRPC's name
        self, request_iterator: Iterator[pb.AttachRequest], context: grpc.ServicerContext
    ) -> Iterator[pb.AttachResponse]:
        first = next(request_iterator, None)
        attached = pb.Attached() if first is None else first.notice.attached
        if (attached.run_id, attached.worker_id) != self._identity:
            context.abort(grpc.StatusCode.FAILED_PRECONDITION, "this is worker {1} of run {0}".format(*self._identity))
        if attached.protocol != PROTOCOL:
            other = (
                f"this worker runs edriver {VERSION}, whose protocol {PROTOCOL} its agent does not speak (it speaks "
                f"{attached.protocol}): install the agent's release in the worker's environment, or end the run and "
                "start it again"
            )
            logger.error("%s", other)  # the agent cannot tell the user: it only sees that the stream has ended
            context.abort(grpc.StatusCode.FAILED_PRECONDITION, other)
        with self._lock:
            if self._attached:
                context.abort(grpc.StatusCode.ALREADY_EXISTS, "an agent is already attached to this worker")
            self._attached = True
        threading.Thread(
            target=self._take_notices, args=(request_iterator,), name="edriver-notification", daemon=True
        ).start()
        while (report := self._reports.get()) is not None:
            yield pb.AttachResponse(report=report)

    def _take_notices(self, requests: Iterator[pb.AttachRequest]) -> None:
        try:
            for request in requests:
                self.last_word = time.monotonic()
                if request.notice.HasField("take_stacks"):
                    taken = pb.StacksTaken(
                        number=request.notice.take_stacks.number, stacks=stacks(threading.main_thread())
                    )
                    self._reports.put(pb.Report(stacks_taken=taken))
                elif answer := self._take(request.notice):
                    self._reports.put(answer)
        except grpc.RpcError as error:
            logger.debug("the agent's stream has ended: %s", error)
        if not self._stopped.wait(ORPHAN_TIMEOUT):
            self._orphaned()
