"""What a run follows in its cluster: `KIND/NAME`, as kubectl writes it, and a JobSet's job behind that."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

KINDS: Final = ("job", "jobset", "statefulset")

_NAME: Final = re.compile(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?")
_INDEX: Final = {
    "job": re.compile(r".*-(\d+)-[a-z0-9]+"),  # NAME-INDEX-RANDOM
    "jobset": re.compile(r".*-(\d+)-[a-z0-9]+"),
    "statefulset": re.compile(r".*-(\d+)"),  # NAME-ORDINAL
}


@dataclass(frozen=True, slots=True)
class Target:
    """The object that starts the agents' pods.

    Attributes:
        kind: one of KINDS.
        name: its name.
        job: the agents' job within a JobSet; empty for other kinds.
    """

    kind: str
    name: str
    job: str = ""

    @classmethod
    def of(cls, text: str) -> Target:
        """Read `KIND/NAME`, or `jobset/NAME/JOB`.

        Raises:
            ValueError: the text is neither; the message says what to write.
        """
        kind, *names = text.split("/")
        if kind not in KINDS or not names or not all(_NAME.fullmatch(name) for name in names) or len(names) > 2:
            raise ValueError(f"{text!r} is not KIND/NAME: write job/NAME, statefulset/NAME, or jobset/NAME/JOB")
        if (len(names) == 2) is not (kind == "jobset"):
            raise ValueError(f"{text!r}: only a JobSet has several jobs: write jobset/NAME/JOB or KIND/NAME")
        return cls(kind, *names)

    @property
    def selector(self) -> str:
        """The labels of its pods. Those of Jobs come from their controllers, a StatefulSet's from its manifest."""
        match self.kind:
            case "job":
                return f"batch.kubernetes.io/job-name={self.name}"
            case "jobset":
                names = f"jobset.sigs.k8s.io/jobset-name={self.name}"
                return f"{names},jobset.sigs.k8s.io/replicatedjob-name={self.job}"
        run = self.name.removesuffix("-agents")
        return f"app.kubernetes.io/instance={run},app.kubernetes.io/component=agent"

    @property
    def reuses_names(self) -> bool:
        """Whether a pod's successor has its name."""
        return self.kind == "statefulset"

    @property
    def secret(self) -> str:
        """The name of the Secret with the agents' credentials."""
        return f"{self.name.removesuffix('-agents')}-agent"

    def __str__(self) -> str:
        """As the operator writes it."""
        return "/".join(filter(None, (self.kind, self.name, self.job)))

    def index(self, pod: str) -> int | None:
        """A pod's index, from its name; None if it has no index. A scale-down ends those with the highest index."""
        found = _INDEX[self.kind].fullmatch(pod)
        return int(found[1]) if found else None
