"""A soak's outcome as text, as a page, and as a picture."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median, quantiles

import matplotlib as mpl
from matplotlib import pyplot as plt

from benchmarks.endurance import SLOWEST, Outcome, Recovery, complaints
from benchmarks.lives import GROWTH_BOUND, WARM_UP, change_of
from benchmarks.report import machine

BLUE, PALE, RED = "#1f5fa8", "#c3d3e8", "#b3261e"
WORST = 5
MILLION = 1e6
GROWTH_MB = f"{GROWTH_BOUND / MILLION:.2f}"


def figures(outcome: Outcome) -> str:
    """The figures, in Markdown."""
    return "".join(_figures(outcome))


def _figures(outcome: Outcome) -> Iterator[str]:
    yield (
        f"{outcome.kills} kills in {len(outcome.recoveries)} waves, {outcome.rank_zero} of them of rank 0, in "
        f"{outcome.seconds / 60:.1f} minutes\n({outcome.seconds / max(outcome.kills, 1):.2f} s a kill); "
        f"{outcome.rounds} rounds, {outcome.steps} steps, {outcome.steps_lost} steps lost.\n\n"
    )
    found = list(complaints(outcome))
    yield "**Everything was as it must be.**\n\n" if not found else "**Not as it must be:**\n\n"
    yield from (f"- {complaint}\n" for complaint in found)
    yield "\n" if found else ""
    if outcome.recoveries:
        yield f"{_recovery_table(outcome.recoveries)}\n"
        yield f"The slowest:\n\n{_worst_table(outcome.recoveries)}\n"
    yield _life_table(outcome)


def _recovery_table(recoveries: Sequence[Recovery]) -> str:
    kinds = {
        "all waves": recoveries,
        "one worker, not rank 0": [r for r in recoveries if r.victims == 1 and not r.rank_zero],
        "one worker, rank 0": [r for r in recoveries if r.victims == 1 and r.rank_zero],
        "two workers, not rank 0": [r for r in recoveries if r.victims > 1 and not r.rank_zero],
        "two workers, rank 0 among them": [r for r in recoveries if r.victims > 1 and r.rank_zero],
    }
    rows = [(name, str(len(some)), *_spread([r.seconds for r in some])) for name, some in kinds.items() if some]
    return _markdown(
        ("recovery after the loss of", "waves", "least", "median", "95 of 100", "most", "most / median"), rows
    )


def _spread(values: Sequence[float]) -> tuple[str, ...]:
    high = quantiles(values, n=20)[-1] if len(values) >= 20 else max(values)
    shown = (min(values), median(values), high, max(values))
    return *(f"{value * 1000:.0f} ms" for value in shown), f"{max(values) / median(values):.1f}"


def _worst_table(recoveries: Sequence[Recovery]) -> str:
    worst = sorted(recoveries, key=lambda r: -r.seconds)[:WORST]
    rows = [
        (
            str(r.kill),
            str(r.round),
            str(r.victims),
            "yes" if r.rank_zero else "no",
            f"{r.entered * 1000:.0f} ms",
            f"{r.seconds * 1000:.0f} ms",
        )
        for r in worst
    ]
    return _markdown(
        ("kill", "round after it", "victims", "rank 0 among them", "until all were in it", "recovery"), rows
    )


def _life_table(outcome: Outcome) -> str:
    rows = []
    for life in outcome.long_lives:
        change = change_of(life)
        first, last = (f"{memory / MILLION:.1f} MB" for memory in change.memory)
        rows.append(
            (
                life.name,
                str(life.span),
                f"{first} to {last}",
                f"{change.growth / MILLION:+.2f} MB",
                f"{change.descriptors[0]} to {change.descriptors[1]}",
                f"{change.threads[0]} to {change.threads[1]}",
                "yes" if change.is_flat else "**no**",
            )
        )
    head = ("process", "kills", "memory", "slope per 100 kills", "descriptors", "threads", "flat")
    return _markdown(head, rows)


def _markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return "".join(f"| {' | '.join(line)} |\n" for line in (head, ["---"] * len(head), *rows))


def write(page: Path, outcome: Outcome, command: str, date: str, load: float) -> None:
    """Write the page, and the picture to ../pictures/soak.png from there."""
    picture = page.parent.parent / "pictures" / "soak.png"
    picture.parent.mkdir(parents=True, exist_ok=True)
    draw(picture, outcome)
    page.write_text(
        "# A thousand kills in one run\n\n"
        "Written by `make soak`; run it again rather than edit this page.\n\n"
        f"- command: `{command}`\n- machine: {machine()}\n- date: {date}\n- load average before it: {load:.1f}\n\n"
        f"{figures(outcome)}\n"
        "![Memory and recovery over the kills](../pictures/soak.png)\n\n"
        f"{EXPLANATION}"
    )


def draw(picture: Path, outcome: Outcome) -> None:
    """Draw memory and recovery over the number of kills."""
    mpl.use("Agg")
    figure, (memory, recovery) = plt.subplots(2, 1, sharex=True, figsize=(9, 5), layout="constrained")
    for life in outcome.long_lives:
        kills = [sample.kills for sample in life.samples]
        megabytes = [sample.vitals.memory / MILLION for sample in life.samples]
        memory.plot(kills, megabytes, color=BLUE, linewidth=1)
        memory.annotate(life.role, (kills[-1], megabytes[-1]), fontsize=7, color=BLUE)
    memory.set_ylim(bottom=0)
    memory.set_ylabel("resident memory, MB")
    for rank_zero, colour, label in ((False, BLUE, "others"), (True, RED, "rank 0 among the victims")):
        some = [r for r in outcome.recoveries if r.rank_zero == rank_zero]
        recovery.scatter([r.kill for r in some], [r.seconds * 1000 for r in some], s=6, color=colour, label=label)
    if outcome.recoveries:
        bound = SLOWEST * median(r.seconds for r in outcome.recoveries) * 1000
        recovery.axhline(bound, color=PALE, label=f"{SLOWEST:g} times the median")
    recovery.set_ylim(bottom=0)
    recovery.set_ylabel("recovery, ms")
    recovery.set_xlabel("kills")
    recovery.legend(fontsize=7, loc="lower right", bbox_to_anchor=(1, 1), ncols=3, frameon=False)
    figure.savefig(picture, dpi=120)
    plt.close(figure)


EXPLANATION = f"""\
## What is run

One run of four workers on two hosts; DistributedDataParallel on Gloo over loopback, Adam, a sleep of 50 ms in each step
as stand-in compute. A wave kills one or two workers with SIGKILL, the second one at once or up to 0.3 s later. When all
four train together again, after a look at every process, comes the next. Who dies is drawn from a seed, in two reigns.
Each begins with a fall, in which every wave hits rank 0, and sometimes the rank 0 that follows. Then an elder is
spared for the rest of the reign: since age makes rank 0, it becomes rank 0 and stays it.

## What is measured

- **recovery**: from a wave's last kill to the moment at which the first step of a later round is finished by all its
  members, the survivors. None may take more than {SLOWEST:g} times the median.
- **memory, descriptors, threads**: resident memory and the entries of /proc, after each wave, the least of three looks
  0.1 s apart. Judged are driver, agents, guards and the workers that lived long, each after {WARM_UP} kills of warm-up:
  the straight line through its memory may rise by {GROWTH_MB} MB per 100 kills at most, and the least of its last five
  counts of descriptors and threads may not be above that of its first five. (Rank 0 has four more descriptors: its
  store's connections.)
- **processes**: after each wave there are the driver, an agent and a guard for each host, four workers, and no zombie.
- **steps lost**: steps that were trained again although a survivor had finished them. And every epoch has to visit
  every sample exactly once.
"""
