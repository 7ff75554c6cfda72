"""Stack traces of workers (Stacks of stacks.proto), as shown."""

from __future__ import annotations

from typing import Final

from edriver.model.script_error import script_frames
from edriver.text.printable import printable, printable_line
from edriver.v1 import stacks_pb2, status_pb2

OBSTACLES: Final = {
    stacks_pb2.STACK_OBSTACLE_STOPPED: "its process is stopped (by a signal or debugger) or frozen: it will not answer"
    " until it is continued (kill -CONT)",
    stacks_pb2.STACK_OBSTACLE_SILENT: "neither its interpreter nor its signal handler has answered in time: it hangs "
    "in the kernel, or its machine is overloaded",
    stacks_pb2.STACK_OBSTACLE_NOT_LISTENING: "it is still starting, and has not called edriver.run, or its script has "
    "ended",
    stacks_pb2.STACK_OBSTACLE_GONE: "its process has ended",
    stacks_pb2.STACK_OBSTACLE_AGENT_SILENT: "its host's agent does not answer",
}
"""Why there are none."""

_SOURCES: Final = {
    stacks_pb2.STACK_SOURCE_SIGNAL: "native code holds the GIL; innermost frame first",
    stacks_pb2.STACK_SOURCE_PY_SPY: "as py-spy reads them; innermost frame first",
}


def stacks_text(answer: status_pb2.ReadStacksResponse) -> str:
    """The stacks of one worker, for a terminal: a line about it, then where its script is, then its threads."""
    stacks = answer.stacks
    rank = f"rank {answer.rank}, " if answer.HasField("rank") else ""
    process = f", process {answer.pid}" if answer.pid else ""
    head = f"{rank}worker {answer.worker_id} ({printable_line(answer.host)}:{answer.slot}{process})"
    if not stacks.text:
        return f"{head}: {OBSTACLES.get(stacks.obstacle, 'its stacks are not known')}"
    notes = [OBSTACLES[stacks.obstacle]] if stacks.obstacle in OBSTACLES else []
    notes += [_SOURCES[stacks.source]] if stacks.source in _SOURCES else []
    note = f" ({'; '.join(notes)})" if notes else ""
    text = stacks.text.rstrip()
    own = script_frames(text)
    if own and len(own) + 1 < len(text.splitlines()):  # there is more than a thread's name and the script
        text = "\n".join(["the script, most recent call last:", *own, "all threads:", text])
    return f"{head}{note}:\n{printable(text)}"
