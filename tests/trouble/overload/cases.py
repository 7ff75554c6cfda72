"""What is done to a run, one function a case. Each returns what it has seen, and asserts that the run went on."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from edriver.system.own_addresses import own_addresses
from tests.process.running import ROOT, edriver
from tests.trouble.overload.watched import Watched, reported, watched

MAX_MEMORY = 250_000_000
"""Bytes that a driver or an agent may take, whatever comes: several times what it takes in quiet."""

TWO = ("-np", "2", "--min-np", "1")


def script(folder: Path, text: str) -> str:
    """A discovery script."""
    path = folder / "discover.sh"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


def seen(run: Watched, kind: str) -> list[str]:
    """The end of a case: the run ends well, has written down the reason, stayed small, and a report can be made of it.

    Args:
        run: the run.
        kind: of the cause that must be in its event log; empty: none.
    """
    code = run.end()
    report = edriver("report", str(run.own_records), "--output", str(run.folder / "report.html"))
    run.said["exit code"], run.said["report"] = code, report.returncode
    assert code == 0, run.run.text[-4000:]
    assert report.returncode == 0, report.stderr
    assert not kind or f"CAUSE_KIND_{kind}" in run.causes(), run.causes()
    assert max(run.most["driver"], run.most["agent"]) < MAX_MEMORY, run.most
    return reported(run)


def flapping(folder: Path, seconds: float = 600.0, period: int = 1) -> list[str]:
    """A second host is there, and is not there, in turn: each state lasts for so many answers."""
    on = f"n=$(cat n 2>/dev/null || echo 0); echo $((n+1)) > n; [ $(( n / {period} % 2 )) = 0 ] || echo 127.0.0.1:1"
    flags = ("-np", "1", "--max-np", "2", "--host-discovery-script", script(folder, f"echo localhost:1; {on}"))
    with watched(folder, flags) as run:
        run.wait_for_steps()
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            time.sleep(1.0)
        status = run.status()
        run.said["hosts"] = [(h["name"], h["state"], [o.get("text") for o in h["obstacles"]]) for h in status["hosts"]]
        run.said["rounds"] = status["rounds"]
        run.said["warnings"] = [(w["cause"]["text"], w["count"]) for w in status["warnings"]]
        run.wait_for_steps()
        return seen(run, "HOST_UNSTEADY")


def hosts(folder: Path, count: int = 10_000, seconds: float = 120.0) -> list[str]:
    """So many hosts appear at once, beside one that trains: ssh reaches none of them, after five seconds each."""
    ssh = folder / "bin" / "ssh"
    ssh.parent.mkdir()
    ssh.write_text("#!/bin/sh\nsleep 5\necho 'ssh: connect to host: Connection timed out' >&2\nexit 255\n")
    ssh.chmod(0o755)
    own = own_addresses()[0]
    (folder / "hosts").write_text(f"{own}:1\n")
    flags = ("-np", "1", "--max-np", "8", "--host-discovery-script", script(folder, "cat hosts"))
    with watched(folder, flags, {"PATH": f"{ssh.parent}:{os.environ['PATH']}"}) as run:
        run.wait_for_steps()
        (folder / "new").write_text(f"{own}:1\n" + "".join(f"h{n}.invalid:1\n" for n in range(count)))
        (folder / "new").rename(folder / "hosts")
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            run.note_most("ssh at a time", sum("bin/ssh" in line for line in run.run.left_behind()))
            try:
                run.said["hosts in status"] = len(run.status()["hosts"])
            except AssertionError:  # on a machine that is busy with other things; it is asked again
                run.said["status did not answer in time"] = run.said.get("status did not answer in time", 0) + 1
            time.sleep(1.0)
        run.wait_for_steps()
        assert run.said["hosts in status"] == count + 1
        return seen(run, "HOST_UNUSED")


def output(folder: Path, seconds: float = 60.0) -> list[str]:
    """A worker prints 100 MB a second."""
    with watched(folder, TWO, {"FLOOD": "100e6"}) as run:
        run.wait_for_steps()
        time.sleep(seconds)
        run.said["warnings"] = [(w["cause"]["text"], w["count"]) for w in run.status()["warnings"]]
        run.wait_for_steps()
        return seen(run, "OUTPUT_OMITTED")


@contextmanager
def small_disk(folder: Path, megabytes: int) -> Iterator[Path]:
    """A file system of so many megabytes. Takes root."""
    place = folder / "disk"
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={megabytes}m,mode=700", "tmpfs", str(place)], check=True)
    try:
        yield place
    finally:
        subprocess.run(["umount", "--lazy", str(place)], check=True)


def disk(folder: Path, what: str = "records", seconds: float = 15.0) -> list[str]:
    """A disk of few megabytes is full for a while: that of the records, or of the files of the workers' output."""
    with small_disk(folder, 4) as place:
        (place / "logs").mkdir()
        more, environ = place / "ballast", {}
        flags = list(TWO)
        if what == "logs":
            flags += ["--output-filename", str(place / "logs")]
            environ = {"FLOOD": "1e6"}
        with watched(folder, flags, environ, records=place if what == "records" else None) as run:
            run.wait_for_steps()
            fill(more)
            victim = pids_of(run)[1]
            os.kill(victim, signal.SIGKILL)  # so that there is something to write
            run.wait_for_steps(60)
            time.sleep(seconds)
            run.said["status"] = [w["cause"]["text"] for w in run.status()["warnings"]]
            more.unlink()
            run.wait_for_steps()
            time.sleep(2.0)
            run.said["after"] = [w["cause"]["text"] for w in run.status()["warnings"]]
            return seen(run, "UNWRITTEN" if what == "records" else "OUTPUT_UNWRITTEN")


def pids_of(run: Watched) -> dict[int, int]:
    """The workers' process ids, by rank."""
    return {worker["rank"]: worker["pid"] for worker in run.status()["workers"]}


def fill(path: Path) -> None:
    """Write a file until the disk is full."""
    with path.open("wb", buffering=0) as file:
        for size in (65536, 1):
            with suppress(OSError):
                while True:
                    file.write(bytes(size))


def fake_clock(folder: Path) -> dict[str, str]:
    """The environment of a run whose machine's clock can be set (set_clock/sitecustomize.py)."""
    set_clock(folder, 0.0)
    seam = Path(__file__).with_name("set_clock")
    return {"PYTHONPATH": f"{ROOT}:{seam}", "CLOCK_OFFSET": str(folder / "offset")}


def set_clock(folder: Path, seconds: float) -> None:
    """Set it by so many seconds from what it really is."""
    (folder / "offset.new").write_text(str(seconds))
    (folder / "offset.new").rename(folder / "offset")


def clock(folder: Path, seconds: float = 3600.0) -> list[str]:
    """The machine's clock is set by so many seconds for all processes of a run, and another worker is started then."""
    with watched(folder, TWO, fake_clock(folder)) as run:
        run.wait_for_steps()
        set_clock(folder, seconds)
        time.sleep(3.0)
        os.kill(pids_of(run)[1], signal.SIGKILL)
        run.wait("two workers again", lambda: run.status()["size"] == 2 and run.status()["rounds"] >= 3)
        run.wait_for_steps(200)
        status = run.status()
        run.said["warnings"] = [w["cause"]["text"] for w in status["warnings"]]
        times = [event["time"] for event in run.events() if "time" in event]
        assert times == sorted(times)
        run.said["time spent"] = status["time_spent"]
        return seen(run, "CLOCK_SET")


def stopped(folder: Path, seconds: float = 8.0, kill: bool = False) -> list[str]:
    """The driver is stopped for a while; a worker may be killed meanwhile."""
    with watched(folder, TWO) as run:
        run.wait_for_steps()
        victim = pids_of(run)[1]
        run.run.process.send_signal(signal.SIGSTOP)
        try:
            if kill:
                os.kill(victim, signal.SIGKILL)
            time.sleep(seconds)
        finally:
            run.run.process.send_signal(signal.SIGCONT)
        run.wait_for_steps()
        run.wait("two workers again", lambda: run.status()["size"] == 2)
        status = run.status()
        run.said["rounds"] = status["rounds"]
        run.said["warnings"] = [w["cause"]["text"] for w in status["warnings"]]
        return seen(run, "DRIVER_PAUSED")
