"""Everything that a GPU is needed for, in minutes: `make gpu`, or `scripts/gpu_check.sh --dry` without one.

    python -m benchmarks.gpu --output FOLDER [--dry] [--only PART ...] [--seconds 480]

The parts come in the order of what matters most. Each has a bound of its own and leaves what it found in results.json;
one that fails does not end the others. page.md has the figures; log.txt what the parts printed, and the output of each
run that failed. `--dry` runs the same over Gloo on the CPU, so that the check itself does not rot.
"""

from __future__ import annotations

import argparse
import datetime
import json
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.figures import unit_of
from benchmarks.gpu.runs import troubled
from benchmarks.jobs import ROOT, HarnessError, Job, Workload, end_well_on_sigterm
from benchmarks.scenarios import killed, resized
from benchmarks.under_edriver import EdriverJob
from benchmarks.under_restart_mode import RestartJob
from benchmarks.under_torchft import TorchftJob, installed
from benchmarks.under_torchrun import TorchrunJob
from edriver.agent.resources.gpus import open_gpus

Found = dict[str, Any]
MODEL_MEGABYTES = 1000
DRY_MEGABYTES = 20
RUN_BOUND, DRY_RUN_BOUND = 100.0, 500.0
"""Seconds that a run with trouble may take. Where nothing is to be paid by the minute, the machine may be busy."""

TOGETHER = 3
"""Runs with trouble that share the GPU at a time: nothing is timed in them."""


class Check:
    """The whole check.

    Args:
        output: where the results go.
        dry: over Gloo, without a GPU.
        seconds: that all of it may take.
    """

    def __init__(self, output: Path, dry: bool, seconds: float) -> None:
        self._output = output
        self._dry = dry
        self._deadline = time.monotonic() + seconds
        self._workload = Workload(step_seconds=0.01, device="cpu" if dry else "cuda")
        self._results: dict[str, Found] = {}
        self._log = (output / "log.txt").open("a", buffering=1)

    def parts(self) -> dict[str, Callable[[], Found]]:
        """By name, in order."""
        found: dict[str, Callable[[], Found]] = {"machine": self._machine}
        if not self._dry:
            found |= {
                "ranks": partial(self._printed, "benchmarks.gpu.ranks", bound=60),
                "one rank": partial(self._pytest, "tests/torch/test_cuda_round.py"),  # alone: it looks at memory
                "several ranks": partial(self._pytest, "tests/torch/test_cuda_worlds.py", "-n", "8"),
                "checkpoints in memory": partial(self._pytest, "tests/torch/test_cuda_checkpoints.py", "-s"),
            }
        lost = ("all-reduce",) if self._dry else ("all-reduce", "broadcast", "pending")
        found["lost peers"] = partial(self._troubled, [(place, "plain") for place in lost])
        if not self._dry:
            found["build and stop"] = partial(self._troubled, [("build", "plain"), ("stop", "plain")])
        found["horovod"] = partial(self._troubled, [("all-reduce", "horovod")])
        found["K1, edriver"] = partial(killed, self._edriver, 2)
        if self._dry:
            found["commit"] = partial(self._printed, "benchmarks.gpu.commit", "cpu", str(DRY_MEGABYTES), bound=60)
            found["step wait"] = partial(self._printed, "benchmarks.gpu.step_wait", "cpu", bound=60)
            return found
        flavours = [("all-reduce", flavour) for flavour in ("fp16", "bf16 fused", "compiled")]
        found |= {
            "flavours": partial(self._troubled, [*flavours, ("device error", "plain")]),
            "commit": partial(self._printed, "benchmarks.gpu.commit", "cuda", str(MODEL_MEGABYTES), bound=90),
            "step wait": partial(self._printed, "benchmarks.gpu.step_wait", "cuda", bound=60),
            "K0, edriver": partial(killed, self._edriver, 0),
            "UP, edriver": partial(resized, self._edriver, 2, 4),
            "DOWN, edriver": partial(resized, self._edriver, 4, 2),
            "K1, torchrun": partial(killed, partial(self._torchrun, 4), 2),
            "standbys": self._standbys,
            "K0, torchrun": partial(killed, partial(self._torchrun, 4), 0),
            "UP, torchrun": partial(resized, partial(self._torchrun, 2), 2, 4),
            "DOWN, torchrun": partial(resized, partial(self._torchrun, 2), 4, 2),
        }
        if installed():
            found |= {
                "K1, torchft": partial(killed, self._torchft, 2),
                "K0, torchft": partial(killed, self._torchft, 0),
                "UP, torchft": partial(resized, self._torchft, 2, 4),
                "DOWN, torchft": partial(resized, self._torchft, 4, 2),
            }
        return found

    def run(self, names: list[str]) -> bool:
        """Run these parts; whether all came to something."""
        parts = self.parts()
        for name in names:
            if time.monotonic() > self._deadline:
                self._results[name] = {"left out": "no time was left"}
            else:
                self._results[name] = self._run(name, parts[name])
            self._write()
        return all("failed" not in found for found in self._results.values())

    def _run(self, name: str, part: Callable[[], Mapping[str, Any]]) -> Found:
        began = time.monotonic()
        try:
            found = dict(part())
        except Exception as error:  # noqa: BLE001  one part that fails, however, must not cost the others
            found = {"failed": str(error)[:2000]}
            self._say(traceback.format_exc())
            self._show_outputs(error)
        found["seconds"] = round(time.monotonic() - began, 1)
        text = ", ".join(f"{key} {_written(key, value)}" for key, value in found.items())
        self._say(f"== {name}: {text}", aloud=True)
        return found

    def _show_outputs(self, error: Exception) -> None:
        """The outputs of a run that came to nothing: HarnessError names its folder."""
        folder = Path(str(error).rpartition("; see ")[2])
        if isinstance(error, HarnessError) and folder.is_dir():
            for output in sorted(folder.glob("output-*.txt")):
                self._say(f"-- {output.name}\n{output.read_text(errors='replace')[-60_000:]}")

    def _machine(self) -> Found:
        found: Found = json.loads(self._python("edriver.worker.backend.checks", bound=90).splitlines()[-1])
        if not self._dry:
            query = "--query-gpu=name,driver_version,memory.total"
            command = ["nvidia-smi", query, "--format=csv,noheader"]
            found["nvidia-smi"] = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout.strip()
        troubles = [finding for finding in found["findings"] if finding["trouble"]]
        return {"versions": found["versions"], "failed checks": troubles, "nvidia-smi": found.get("nvidia-smi", "")}

    def _pytest(self, path: str, *options: str) -> Found:
        """Tests that need a GPU."""
        # Warnings of another torch than the one that edriver is developed with say nothing here.
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-p",
            "no:cacheprovider",
            "-o",
            "filterwarnings=",
            *options,
            path,
        ]
        done = subprocess.run(
            command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=150, check=False
        )
        self._say(done.stdout)
        last = done.stdout.strip().splitlines()[-1]
        return {path: last} if done.returncode == 0 else {path: last, "failed": f"{path}: {last}"}

    def _troubled(self, runs: list[tuple[str, str]]) -> Found:
        """Runs with trouble, some at a time."""
        with ThreadPoolExecutor(1 if self._dry else TOGETHER) as pool:
            bound = DRY_RUN_BOUND if self._dry else RUN_BOUND
            make = partial(troubled, replace(self._workload, step_seconds=0.02), say=self._say, bound=bound)
            found = {f"{place}, {flavour}": pool.submit(make, place, flavour) for place, flavour in runs}
        results = {name: one.result() for name, one in found.items()}
        failed = {name: one["failed"] for name, one in results.items() if "failed" in one}
        return {**results, **({"failed": json.dumps(failed)} if failed else {})}

    def _standbys(self) -> Found:
        """Restart mode: standbys hold nothing of the device's memory."""
        with RestartJob(self._workload) as job:
            job.launch(4)
            job.wait_for_steps(size=4, steps=10)
            job.settle()
            trained = {start.pid for start in job.look()[-1].starts.values()}
            # Not by who has the device open: agents ask NVML, and a script that asks whether there is CUDA opens it.
            holders = {pid: used for gpu in open_gpus().read() for pid, used in gpu.processes.items()}
            code = job.finish()
        found: Found = {"workers": len(trained), "bytes held, by process": holders, "exit code": code}
        if set(holders) == trained and code == 0:
            return found
        return {**found, "failed": f"the device's memory is not held by {sorted(trained)} alone"}

    def _edriver(self) -> Job:
        return EdriverJob(self._workload)

    def _torchrun(self, workers: int) -> Job:
        return TorchrunJob(self._workload, workers)

    def _torchft(self) -> Job:
        return TorchftJob(self._workload)

    def _printed(self, module: str, *arguments: str, bound: float) -> Found:
        found: Found = json.loads(self._python(module, *arguments, bound=bound))
        return found

    def _python(self, module: str, *arguments: str, bound: float) -> str:
        done = subprocess.run(
            [sys.executable, "-m", module, *arguments],
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=bound,
            check=False,
        )
        self._say(f"-- {module}\n{done.stdout}{done.stderr}")
        done.check_returncode()
        return done.stdout

    def _say(self, text: str, aloud: bool = False) -> None:
        self._log.write(text + "\n")
        if aloud:
            print(text, flush=True)

    def _write(self) -> None:
        (self._output / "results.json").write_text(json.dumps(self._results, indent=1))
        date = datetime.datetime.now(datetime.UTC).date().isoformat()
        lines = [f"# {'Dry run' if self._dry else 'One GPU'}, {date}", ""]
        for part, found in self._results.items():
            lines += [f"## {part}", "", "| | |", "|---|---|"]
            lines += [f"| {key} | {_written(key, value)} |" for key, value in found.items()]
            lines.append("")
        (self._output / "page.md").write_text("\n".join(lines))


def _written(key: str, value: Any) -> str:
    if isinstance(value, float):
        try:
            return unit_of(key)(value)
        except KeyError:
            return f"{value:.4g}"
    return json.dumps(value) if isinstance(value, dict | list) else str(value)


def main() -> int:
    """Run what was asked for; returns 1 if a part failed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description="edriver on one GPU")
    parser.add_argument("--output", type=Path, required=True, help="a folder for results.json, page.md and log.txt")
    parser.add_argument("--dry", action="store_true", help="over Gloo, on the CPU")
    parser.add_argument("--only", nargs="+", help="only these parts")
    parser.add_argument("--seconds", type=float, default=480, help="no part begins after that (default: %(default)s)")
    flags = parser.parse_args()
    flags.output.mkdir(parents=True, exist_ok=True)
    end_well_on_sigterm()
    check = Check(flags.output, flags.dry, flags.seconds)
    known = list(check.parts())
    if unknown := [name for name in flags.only or () if name not in known]:
        parser.error(f"no part is called {unknown[0]}: {', '.join(known)}")
    return 0 if check.run(flags.only or known) else 1


if __name__ == "__main__":
    sys.exit(main())
