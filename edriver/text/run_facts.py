"""What runs: a run's command line, and what it was started from, as status, page and report show them."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence

from edriver.text.printable import printable_line
from edriver.v1 import status_pb2


def run_facts(
    command: Sequence[str], mode: str, tags: Mapping[str, str], origin: status_pb2.Origin | None
) -> Iterator[tuple[str, str]]:
    """What is known of it: a word, and a text, each.

    Args:
        command: a worker's program and arguments.
        mode: how it survives changes of its workers; empty: not known.
        tags: its user's, by name.
        origin: what it was started from; None: not known.
    """
    if command:
        yield "command", printable_line(shlex.join(command))
    if tags:
        yield "tags", printable_line(", ".join(f"{name}={value}" for name, value in tags.items()))
    if mode:
        yield "mode", printable_line(mode)
    if origin is None:
        return
    if origin.commit:
        yield "commit", printable_line(f"{origin.commit}{', with changes' if origin.changed else ''}")
    if origin.directory:
        yield "directory", printable_line(origin.directory)
    if origin.user:
        yield "started by", printable_line(f"{origin.user} on {origin.host}")
    named = {"edriver": origin.edriver, "Python": origin.python, "torch": origin.torch}
    if versions := [f"{name} {version}" for name, version in named.items() if version]:
        yield "versions", printable_line(", ".join(versions))
