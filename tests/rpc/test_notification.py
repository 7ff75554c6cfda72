"""The end of a worker's notification service."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import pytest

from edriver.worker.rounds.notification import NotificationServer
from edriver.worker.rounds.participant import Participant

AGENT = """
import queue, sys
import grpc
from edriver.common.release import PROTOCOL, VERSION
from edriver.v1 import notification_pb2 as pb, notification_pb2_grpc

notices = queue.Queue()
notices.put(pb.AttachRequest(notice=pb.Notice(attached=pb.Attached(run_id="run", worker_id=1, protocol=PROTOCOL))))
notices.put(pb.AttachRequest(notice=pb.Notice(ping=pb.Ping(number=1))))
stub = notification_pb2_grpc.NotificationServiceStub(grpc.insecure_channel("unix:" + sys.argv[1]))
for answer in stub.Attach(iter(notices.get, None)):
    print(answer.report.pong.number, flush=True)
"""


def test_it_has_ended_before_the_interpreter_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where its agent is stopped, and never ends the stream."""
    ends: list[threading.Event] = []
    with tempfile.TemporaryDirectory(prefix="ed-") as folder:
        path = f"{folder}/s"
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as ready:
            ready.bind(f"{folder}/ready")
            worker = NotificationServer(path, "run", 1, Participant().take, orphaned=lambda: None)
            worker.start(str(Path(folder, "ready")))
        stop = worker._server.stop

        def watched(grace: float | None) -> threading.Event:
            ends.append(stop(grace))
            return ends[0]

        monkeypatch.setattr(worker._server, "stop", watched)
        with subprocess.Popen([sys.executable, "-c", AGENT, path], stdout=subprocess.PIPE, text=True) as agent:
            try:
                assert agent.stdout is not None
                assert agent.stdout.readline() == "1\n"
                agent.send_signal(signal.SIGSTOP)
                os.waitid(os.P_PID, agent.pid, os.WSTOPPED | os.WNOWAIT)
                worker.stop()
                assert [end.is_set() for end in ends] == [True]
            finally:
                agent.kill()
