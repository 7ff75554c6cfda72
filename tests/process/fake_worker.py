"""A worker without torch, run as a script: serves the notification service as the library does, and does little else.

It reports WorkerWaiting when it is attached, and with its progress at HostsUpdated. It answers StopAt with
BoundaryReached of the same number, prints "placed" when it is given a place and "freed" when its round is aborted, and
exits with 0 at Finish. At SaveCheckpoint it has its agent start a checkpoint server. At the first Ping after an Abort
of no round it stops the agent, reports WorkerFailed and exits with 1. At Skip it reports WorkerFailed, and at the next
GoOn it prints "last words" and exits with 1. It prints "lives" at every fifteenth Ping. Its first line of output is its
process id.
"""

from __future__ import annotations

import os
import queue
import signal
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import grpc

from edriver.v1 import notification_pb2 as pb
from edriver.v1 import notification_pb2_grpc


class FakeWorker(notification_pb2_grpc.NotificationServiceServicer):
    def __init__(self) -> None:
        self.finished: queue.Queue[None] = queue.Queue()
        self.dying = False

    def Attach(
        self, request_iterator: Iterator[pb.AttachRequest], context: grpc.ServicerContext
    ) -> Iterator[pb.AttachResponse]:
        return (pb.AttachResponse(report=report) for report in self._reports(request_iterator))

    def _reports(self, requests: Iterator[pb.AttachRequest]) -> Iterator[pb.Report]:
        for request in requests:
            notice = request.notice
            match notice.WhichOneof("kind"):
                case "attached":
                    assert notice.attached.run_id == os.environ["EDRIVER_RUN_ID"]
                    assert notice.attached.worker_id == int(os.environ["EDRIVER_WORKER_ID"])
                    yield pb.Report(worker_waiting=pb.WorkerWaiting(ordinal=1))
                case "ping" if self.dying:
                    # The next Ping is a whole period away: gRPC drops what it has not read when a write fails.
                    os.kill(os.getppid(), signal.SIGSTOP)
                    yield pb.Report(worker_failed=pb.WorkerFailed(traceback="why"))
                    os._exit(1)
                case "ping":
                    yield pb.Report(pong=pb.Pong(number=notice.ping.number))
                    if notice.ping.number % 15 == 0:
                        print("lives", flush=True)
                case "stop_at":
                    yield pb.Report(boundary_reached=pb.BoundaryReached(number=notice.stop_at.number))
                case "hosts_updated":
                    progress = pb.WorkerProgress(round_id=notice.hosts_updated.round_id, boundaries=7)
                    yield pb.Report(worker_waiting=pb.WorkerWaiting(ordinal=1), progress=progress)
                case "assignment":
                    print("placed", flush=True)
                case "skip":
                    yield pb.Report(worker_failed=pb.WorkerFailed(traceback="why"))
                case "go_on":
                    print("last words", flush=True)
                    os._exit(1)
                case "save_checkpoint":
                    yield pb.Report(checkpoint_server_needed=pb.CheckpointServerNeeded())
                case "finish":
                    self.finished.put(None)
                case "abort" if notice.abort.round_id.n:
                    print("freed", flush=True)
                case "abort":
                    self.dying = True


def main() -> None:
    print(os.getpid(), flush=True)
    worker = FakeWorker()
    server = grpc.server(ThreadPoolExecutor(2))
    notification_pb2_grpc.add_NotificationServiceServicer_to_server(worker, server)
    server.add_insecure_port(f"unix:{os.environ['EDRIVER_SOCKET']}")
    server.start()
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as announcement:
        announcement.sendto(f"{os.environ['EDRIVER_WORKER_ID']} {os.getpid()}".encode(), os.environ["EDRIVER_READY"])
    worker.finished.get()
    server.stop(None).wait()


if __name__ == "__main__":
    main()
