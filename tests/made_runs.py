"""Records of runs that never were, as a driver would have left them: for tests of what is shown, and benchmarks."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from edriver.driver.observe.records.output_files import OutputFiles, Writer
from edriver.driver.observe.records.recorder import progress_is_due
from edriver.system.record_folder import OUTPUT_FOLDER
from edriver.text.event_lines import event_line, progress_line
from edriver.text.output_lines import time_bytes, written_line
from edriver.v1 import agent_pb2, cause_pb2, rounds_pb2, status_pb2
from edriver.wire.conversion import duration, timestamp

BEGAN = 1_790_000_000.0


@dataclass
class MadeRun:
    """A run that loses a worker now and then.

    Attributes:
        run_id: its id.
        seconds: how long it took.
        hosts: hosts,
        slots: and slots of each.
        losses: workers that it lost, evenly over its time.
        away: seconds until a lost one was replaced.
        undone: steps that each loss led back.
        rate: steps a second with all workers.
        names: what it reported, besides the loss.
        end: how it ended; None: it has not.
        began: when it began.
        about: more of run.json.
        seed: of its noise.
    """

    run_id: str
    seconds: float = 600.0
    hosts: int = 1
    slots: int = 4
    losses: int = 2
    away: float = 40.0
    undone: int = 30
    rate: float = 5.0
    names: tuple[str, ...] = ()
    end: str | None = "RUN_END_DONE"
    began: float = BEGAN
    about: Mapping[str, Any] = field(default_factory=dict)
    seed: int = 0

    def write(self, root: Path) -> Path:
        """Write its records into a folder of its own below `root`; returns that."""
        folder = root / self.run_id
        folder.mkdir(parents=True)
        start = timestamp(self.began).ToJsonString()
        size = self.hosts * self.slots
        about = {"run_id": self.run_id, "start_time": start, "np": size, "min_np": 1, "max_np": size}
        about |= {"command": ["python", "train.py"], "name": "", "tags": {}, **self.about}
        (folder / "run.json").write_text(json.dumps(about))
        with (folder / "events.jsonl").open("w") as file:
            file.writelines(self.lines())
        return folder

    def write_output(self, root: Path, *lines: tuple[int, str]) -> None:
        """Write what its workers have printed: the rank, which is the slot's number, and the line, each."""
        files = OutputFiles(root / self.run_id / OUTPUT_FOLDER, free=lambda _: 2**40)
        for number, (rank, text) in enumerate(lines):
            writer = Writer(rank + 1, rank % self.slots, f"node-{rank // self.slots:03d}")
            line = agent_pb2.OutputLine(rank=rank, text=text.encode())
            files.append(writer, written_line(time_bytes(self.began + number), line))

    def loss(self, step: float) -> float:
        """What it reported after so many steps."""
        noise = random.Random(f"{self.seed} {step}").gauss(0.0, 0.04)
        return (0.4 + 2.6 * math.exp(-step / (0.25 * self.rate * self.seconds))) * math.exp(noise)

    def lines(self) -> Iterator[str]:
        """Its event log."""
        self._seq, self._number = 0, 0
        self._places = [(f"node-{n // self.slots:03d}", n % self.slots) for n in range(self.hosts * self.slots)]
        self._ids = list(range(1, len(self._places) + 1))
        for host in range(self.hosts):
            status = status_pb2.HostStatus(
                name=f"node-{host:03d}", slots=self.slots, connected=True, state=status_pb2.HOST_STATE_USED
            )
            yield self._event(0.5, f"host node-{host:03d} was added", host=status)
        for place, worker in enumerate(self._ids):
            yield self._worker(1.0, place, worker, status_pb2.WORKER_STATE_BOOTING)
        yield from self._round(1.0, 7.0, len(self._ids), status_pb2.ROUND_KIND_START, 0)
        every = self.seconds / (self.losses + 1)
        at = [every * (number + 1) for number in range(self.losses)]
        now, steps, last, size = 8.5, 0.0, -1.0, len(self._ids)
        spent = {"booting": 8.0, "recovering": 0.0}
        changes = [(time, -1) for time in at] + [
            (time + self.away, 1) for time in at if time + self.away < self.seconds
        ]
        changes.sort()
        while now < self.seconds:
            if changes and changes[0][0] <= now:
                _, sign = changes.pop(0)
                size += sign
                kind = status_pb2.ROUND_KIND_FAILURE if sign < 0 else status_pb2.ROUND_KIND_RESIZE
                if sign < 0:
                    place = self._number * 7 % len(self._ids)
                    worker = self._ids[place]
                    text = f"worker {worker} ({self._places[place][0]}:{self._places[place][1]}) was killed by SIGKILL"
                    yield self._worker(now, place, worker, status_pb2.WORKER_STATE_GONE, text)
                    self._ids[place] = max(self._ids) + 1
                    yield self._worker(now + 1.0, place, self._ids[place], status_pb2.WORKER_STATE_BOOTING)
                lost = self.undone if sign < 0 else 0
                steps = max(0.0, steps - lost)
                took = 3.0 if sign < 0 else 0.8
                spent["recovering"] += took
                yield from self._round(now, took, size, kind, lost)
                now += took
            if progress_is_due(now, last):
                last = now
                yield progress_line(self.began + now, self._progress(steps, size, now, spent))
            steps += self.rate * size / len(self._ids)
            now += 1.0
        if self.end is None:
            return
        ended = status_pb2.RunEnded(
            end=status_pb2.RunEnd.Value(self.end), progress=self._progress(steps, size, now, spent), size=size
        )
        ended.time_spent.CopyFrom(ended.progress.time_spent)
        yield self._event(now, "all workers are done", run_ended=ended)

    def _progress(self, steps: float, size: int, now: float, spent: Mapping[str, float]) -> status_pb2.Progress:
        reported = {"loss": self.loss(round(steps))}
        for place, name in enumerate(self.names):
            reported[name] = math.sin(steps / (40.0 + 11.0 * place)) * (place + 1)
        progress = status_pb2.Progress(
            steps=round(steps), step_rate=self.rate * size / len(self._ids), reported=reported
        )
        progress.epoch, progress.samples = 0, 10**9
        progress.samples_done = round(steps) * 64
        progress.sample_rate = 64 * progress.step_rate
        training = now - sum(spent.values())
        time_spent = progress.time_spent
        time_spent.training.CopyFrom(duration(max(0.0, training)))
        time_spent.goodput = max(0.0, training) / now
        for kind, seconds in spent.items():
            getattr(time_spent, kind).CopyFrom(duration(seconds))
        return progress

    def _round(self, at: float, took: float, size: int, kind: Any, lost: int) -> Iterator[str]:
        if self._number:
            ended = status_pb2.Round(round_id=self._id(), end_time=timestamp(self.began + at))
            yield self._event(at, f"round {self._number} ended", round=ended)
        self._number += 1
        shown = list(zip(self._ids, self._places, strict=True))[: size or None]
        members = [status_pb2.Member(worker_id=worker, host=host, slot=slot) for worker, (host, slot) in shown]
        cause = cause_pb2.Cause(
            text="a worker was lost" if kind == status_pb2.ROUND_KIND_FAILURE else "the size changes"
        )
        message = status_pb2.Round(
            round_id=self._id(),
            kind=kind,
            cause=cause,
            members=members,
            assign_time=timestamp(self.began + at + 0.6 * took),
            steps_lost=lost,
        )
        yield self._event(at + 0.6 * took, f"round 1.{self._number}: {size} workers", round=message)
        parts = {
            "unnoticed": 0.1,
            "detect": 0.1,
            "abort": 0.1,
            "wait": 0.3,
            "rendezvous": 0.1,
            "sync": 0.2,
            "first_step": 0.1,
        }
        phases = status_pb2.RecoveryPhases(**{name: duration(took * share) for name, share in parts.items()})
        message.phases.CopyFrom(phases)
        message.first_step_time.CopyFrom(timestamp(self.began + at + took))
        for member in message.members:
            for name, share in (("waiting", 0.5), ("built", 0.7), ("synced", 0.9), ("stepped", 1.0)):
                getattr(member.times, name).CopyFrom(timestamp(self.began + at + took * share))
        yield self._event(at + took, "", round=message)
        kinds = {
            status_pb2.ROUND_KIND_START: status_pb2.INTERRUPTION_KIND_BOOT,
            status_pb2.ROUND_KIND_FAILURE: status_pb2.INTERRUPTION_KIND_FAILURE,
        }
        interruption = status_pb2.Interruption(
            kind=kinds.get(kind, status_pb2.INTERRUPTION_KIND_RESIZE),
            start_time=timestamp(self.began + at if self._number > 1 else self.began),
            duration=duration(took),
            round_id=self._id(),
            cause=cause,
            phases=phases,
            steps_lost=lost,
            size=size,
        )
        yield self._event(at + took, "", interruption=interruption)

    def _id(self) -> rounds_pb2.RoundId:
        return rounds_pb2.RoundId(incarnation=1, n=self._number)

    def _worker(self, at: float, place: int, worker: int, state: Any, text: str = "") -> str:
        host, slot = self._places[place]
        status = status_pb2.WorkerStatus(worker_id=worker, host=host, slot=slot, state=state)
        return self._event(at, text, worker=status)

    def _event(self, at: float, text: str, **kind: Any) -> str:
        self._seq += 1
        return event_line(status_pb2.Event(seq=self._seq, time=timestamp(self.began + at), text=text, **kind))
