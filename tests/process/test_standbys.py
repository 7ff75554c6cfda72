"""Standby processes: they wait for who they are to be, and end where they are not needed."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

from edriver.agent.workers.processes import Processes
from edriver.agent.workers.standbys import Standbys
from edriver.system.guard import Guard
from tests.waiting import until_async

BECOMES = """
import os, sys
from pathlib import Path
from edriver.worker.restart import standby
standby.become_worker(Path("/nonexistent"))
Path(os.environ["SAYS"]).write_text(f"{os.getpid()} {os.environ['WHO']}")
"""
BOUND = 300.0


def test_a_standby_becomes_the_worker_of_its_slot_or_ends(tmp_path: Path) -> None:
    async def run() -> None:
        exited: asyncio.Queue[int] = asyncio.Queue()
        guard = Guard(tmp_path / "guarded")
        processes = Processes(lambda pid, _code: exited.put_nowait(pid), guard)
        processes.open()
        standbys = Standbys(processes)
        said = tmp_path / "said"

        def environment(slot: int) -> dict[str, str]:
            return {"WHO": "no worker", "SAYS": str(said), "SLOT": str(slot)}

        standbys.keep((0, 2), [sys.executable, "-c", BECOMES], environment)
        assert standbys.take(1, {}) is None
        process = standbys.take(2, {"WHO": "worker 7", "LONG": "x" * 200_000})
        assert process is not None
        assert standbys.take(2, {}) is None
        assert await asyncio.wait_for(exited.get(), BOUND) == process[0]
        assert said.read_text() == f"{process[0]} worker 7"
        assert not standbys.exited(process[0], 0)
        said.unlink()
        standbys.keep((), [], environment)  # the slot is gone
        await asyncio.wait_for(exited.get(), BOUND)
        assert not said.exists()
        assert await processes.close(BOUND)

    asyncio.run(run())


def test_one_that_is_ready_becomes_any_worker_and_no_other_does(tmp_path: Path) -> None:
    """A standby is ready once it has imported what a worker has written down, and has prepared itself."""
    record, said, others = tmp_path / "imports.1", tmp_path / "said", tmp_path / "imports.0"
    prepares = f"""
import os, sys
from pathlib import Path
from edriver.worker.restart import standby
calls = []
def prepare():
    calls.append({{"colorsys", "this"}} & {{*sys.modules}})
    Path({str(said)!r}).write_text(f"{{len(calls)}} {{sorted(calls[-1])}}")
standby.become_worker(Path({str(others)!r}), prepare)
Path(os.environ["SAYS"]).write_text(f"{{os.getpid()}} {{os.environ['WHO']}}")
"""

    async def run() -> None:
        exited: asyncio.Queue[int] = asyncio.Queue()
        processes = Processes(lambda pid, _code: exited.put_nowait(pid), Guard(tmp_path / "guarded"))
        processes.open()
        standbys = Standbys(processes)
        standbys.keep((0,), [sys.executable, "-c", prepares], lambda _: {"SAYS": str(said)})
        assert standbys.take_ready({"WHO": "worker 7"}) is None, "nothing is written down yet"
        assert not standbys.ready
        record.write_text(json.dumps({"modules": ["colorsys"], "environment": {}}))
        await until_async(lambda: standbys.ready)
        assert said.read_text() == "1 ['colorsys']"
        record.write_text(json.dumps({"modules": ["colorsys", "this"], "environment": {}}))
        await until_async(lambda: said.read_text() == "2 ['colorsys', 'this']")
        process = standbys.take_ready({"WHO": "worker 7"})
        assert process is not None
        assert standbys.ready == 0
        assert await asyncio.wait_for(exited.get(), BOUND) == process[0]
        assert said.read_text() == f"{process[0]} worker 7"
        assert await processes.close(BOUND)

    asyncio.run(run())
