"""What `make docs` generates: every flag, bound, message and event is there; a link that leads nowhere is refused."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from edriver.cli.explain import DRIVER_BOUNDS
from edriver.cli.main import parser
from edriver.v1 import agent_pb2, control_pb2, notification_pb2, rounds_pb2, status_pb2
from scripts.docs_site import command_line, configuration, links, parts, protocol
from tests import needs

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("action", parser()._actions, ids=lambda action: action.dest)
def test_every_flag_is_there_with_its_meaning(action: object) -> None:
    names = getattr(action, "option_strings", [])
    row = next(line for line in command_line.page().splitlines() if line.startswith(f"| `{', '.join(names)}"))
    assert len(row.split("|")[2].strip()) > 5


def test_anchors_of_flags_are_unique() -> None:
    anchors = re.findall(r"\{ #(\S+) \}", command_line.page())
    assert len(anchors) == len(set(anchors)) > 40


@pytest.mark.parametrize(
    "name", ["edriver drain", "edriver resize", "edriver status", "edriver agent", "edriver report"]
)
def test_every_command_is_there(name: str) -> None:
    assert f"## `{name}`\n" in command_line.page()


def test_every_bound_and_setting_is_there() -> None:
    bounds = configuration.bounds()
    assert [bound.description for bound in DRIVER_BOUNDS if bound.description not in bounds] == []
    assert (
        "| [`--elastic-timeout`](command-line.md#edriver--elastic-timeout) | 600 | default |"
        in configuration.settings()
    )
    assert str(Path.home()) not in configuration.settings()
    assert "| Slots of one host. | 4,096 |" in configuration.limits()


def test_every_worker_bound_is_a_time() -> None:
    rows = configuration.worker_bounds().splitlines()[2:]
    assert [row for row in rows if not re.search(r"\| [\d.]+ s \|$", row)] == []


@pytest.mark.needs(needs.GRPC_TOOLS)
def test_every_message_service_and_comment_is_there() -> None:
    page = protocol.page()
    for module in (agent_pb2, control_pb2, notification_pb2, rounds_pb2, status_pb2):
        file = module.DESCRIPTOR
        for name in [*file.message_types_by_name, *file.enum_types_by_name, *file.services_by_name]:
            assert f"### {name} {{ #{name} }}" in page
    assert "Counts this side's messages from 1" in page


@pytest.mark.needs(needs.GRPC_TOOLS)
def test_every_kind_of_event_is_there() -> None:
    events = protocol.events()
    for field in status_pb2.Event.DESCRIPTOR.fields:
        assert f"| `{field.name}` |" in events


@pytest.mark.parametrize(
    ("asked", "filled"),
    [
        pytest.param("{{ --worker-lease }}", "5 s", id="a-flag"),
        pytest.param("{{ edriver.model.limits.MAX_HOST_SLOTS }}", "4,096", id="a-constant"),
        pytest.param("{{ edriver.worker.rounds.severing.STUCK_BOUND }}", "1 s", id="of-a-module-with-torch"),
        pytest.param("{{ edriver.model.settings.Settings.join_window }}", "3 s", id="of-a-class"),
        pytest.param("{{ edriver.model.stall_limits.DEFAULT_STALL_LIMITS.step }}", "600 s", id="an-item"),
        pytest.param("{{ edriver.model.settings.HOST_COOLDOWN }}", "10 to 300 s", id="a-range"),
        pytest.param("{{\nedriver.model.limits.MAX_HOST_SLOTS }}", "4,096", id="where-a-line-ends"),
    ],
)
def test_values_stand_where_a_page_asks_for_them(asked: str, filled: str) -> None:
    assert parts.filled_in(f"a {asked} b") == f"a {filled} b"


@pytest.mark.parametrize("asked", ["--no-such-flag", "edriver.model.limits.NONE", "edriver.none", "table none"])
def test_what_is_not_there_is_refused_by_name(asked: str) -> None:
    with pytest.raises(parts.UnknownPartError, match=asked.removeprefix("table ")):
        parts.filled_in(f"{{{{ {asked} }}}}")


@pytest.mark.parametrize(
    ("path", "link", "leads_to"),
    [
        pytest.param("README.md", "docs/architecture.md", "architecture.md", id="from-home"),
        pytest.param("docs/architecture.md", "../SECURITY.md", "project/SECURITY.md", id="to-a-page-of-the-repository"),
        pytest.param("SECURITY.md", "docs/metrics.md", "../metrics.md", id="and-back"),
        pytest.param(
            "docs/architecture.md", "../edriver/model/limits.py", "source/edriver/model/limits.py.md", id="source"
        ),
        pytest.param("docs/benchmarks/soak.md", "../pictures/soak.png", "../pictures/soak.png", id="a-picture"),
        pytest.param("docs/metrics.md", "../README.md#try-it", "index.md#try-it", id="a-heading"),
        pytest.param("docs/metrics.md", "https://prometheus.io", "https://prometheus.io", id="elsewhere"),
    ],
)
def test_links_lead_to_pages_of_the_site(path: str, link: str, leads_to: str) -> None:
    assert links.rewritten(f"see [it]({link}).", path, ROOT) == f"see [it]({leads_to})."


def test_a_link_to_nothing_is_refused() -> None:
    with pytest.raises(links.BrokenLinkError, match=r"README\.md links to docs/none\.md"):
        links.rewritten("[it](docs/none.md)", "README.md", ROOT)


def test_code_is_left_alone() -> None:
    text = "`[a](b.md)`\n\n    [a](b.md)\n\n```\n[a](b.md)\n```\n"
    assert links.rewritten(text, "README.md", ROOT) == text
