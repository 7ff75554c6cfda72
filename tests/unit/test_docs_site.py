"""The documentation: every flag, bound, message and event is there; pages are up to date; broken links are refused."""

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
DOCS = ROOT / "docs"
NEEDED = {
    "proto.md": pytest.mark.needs(needs.GRPC_TOOLS),
    "events.md": pytest.mark.needs(needs.GRPC_TOOLS),
    "python.md": pytest.mark.needs(needs.MKDOCS),
}
"""Of pages whose tables take more than the tests do otherwise."""

PAGES = sorted([*DOCS.rglob("*.md"), *ROOT.glob("*.md"), ROOT / "examples" / "README.md"])


@pytest.mark.parametrize("action", parser()._actions, ids=lambda action: action.dest)
def test_every_flag_is_there_with_its_meaning(action: object) -> None:
    names = getattr(action, "option_strings", [])
    row = re.compile(rf"\| (<a [^>]+></a>)?`{', '.join(names)}.*")
    found = next(line for line in command_line.page().splitlines() if row.match(line))
    assert len(found.split("|")[2].strip()) > 5


def test_anchors_of_flags_are_unique() -> None:
    anchors = re.findall(r'<a id="(\S+)">', command_line.page())
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
            assert f"### {name}\n" in page
    assert "Counts this side's messages from 1" in page


@pytest.mark.needs(needs.GRPC_TOOLS)
def test_every_kind_of_event_is_there() -> None:
    events = protocol.events()
    for field in status_pb2.Event.DESCRIPTOR.fields:
        assert f"| `{field.name}` |" in events


@pytest.mark.parametrize(
    ("asked", "shown"),
    [
        pytest.param("--worker-lease", "5 s<!-- value: worker-lease -->", id="a-flag"),
        pytest.param("edriver.model.limits.MAX_HOST_SLOTS", "4,096<!-- value: {} -->", id="a-constant"),
        pytest.param(
            "edriver.worker.rounds.severing.STUCK_BOUND", "1 s<!-- value: {} -->", id="of-a-module-with-torch"
        ),
        pytest.param("edriver.model.settings.Settings.join_window", "3 s<!-- value: {} -->", id="of-a-class"),
        pytest.param("edriver.model.stall_limits.DEFAULT_STALL_LIMITS.step", "600 s<!-- value: {} -->", id="an-item"),
        pytest.param("edriver.model.settings.HOST_COOLDOWN", "10 to 300 s<!-- value: {} -->", id="a-range"),
    ],
)
def test_values_stand_where_a_page_asks_for_them(asked: str, shown: str) -> None:
    shown = shown.format(asked)
    assert parts.written(f"a {{{{ {asked} }}}} b") == f"a {shown} b"
    assert parts.written(f"a {{{{\n{asked} }}}}, b") == f"a\n{shown}, b"
    out_of_date = re.sub(r".*(?=<)", "17 to 1,234.5 s", shown, count=1)
    assert parts.written(f"at 5, {out_of_date} b") == f"at 5, {shown} b"


def test_a_table_is_written_between_its_marks() -> None:
    asked = parts.written("a\n\n{{ table limits }}\n\nb\n")
    assert re.fullmatch(r"a\n\n<!-- table: limits -->\n\n\|.*\|\n\n<!-- end -->\n\nb\n", asked, re.DOTALL)
    assert parts.written(asked.replace("4,096", "17")) == asked


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, id=str(page.relative_to(DOCS)), marks=NEEDED.get(page.name, []))
        for page in sorted(DOCS.rglob("*.md"))
    ],
)
def test_values_and_tables_of_a_page_are_those_of_the_source(page: Path) -> None:
    text = page.read_text()
    assert parts.written(text) == text, "make docs-values writes them"


@pytest.mark.parametrize("asked", ["--no-such-flag", "edriver.model.limits.NONE", "edriver.none", "table none"])
def test_what_is_not_there_is_refused_by_name(asked: str) -> None:
    with pytest.raises(parts.UnknownPartError, match=asked.removeprefix("table ")):
        parts.written(f"{{{{ {asked} }}}}")


def test_what_is_no_number_is_no_value() -> None:
    with pytest.raises(parts.UnknownPartError, match="hostfile is None"):
        parts.written("{{ --hostfile }}")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_page_has_nothing_that_the_site_alone_understands(page: Path) -> None:
    """It is read in the repository as well, where MkDocs' front matter and marks mean nothing."""
    outside_code = re.sub(r"^```.*?^```$|`[^`\n]*`|<!--.*?-->", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    assert re.findall(r"^:::.*|^!!!.*|^\?\?\?.*|\A---.*|\{\{.*|\{[:#. ].*", outside_code, re.MULTILINE) == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_code_is_in_fences_that_name_its_language(page: Path) -> None:
    """A block that is only indented has no colours, and no language that a reader's tools could go by."""
    outside = re.sub(r"^```\w+\n.*?^```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    assert re.findall(r"^```.*|(?<=\n\n) {4}.+", outside, re.MULTILINE) == []


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


def test_the_packages_urls_lead_to_files_of_the_repository() -> None:
    paths = re.findall(r"\{home\}/blob/main/(.+)\"", (ROOT / "hatch_build.py").read_text())
    assert len(paths) == 2
    assert [path for path in paths if not (ROOT / path).is_file()] == []


def test_a_link_to_nothing_is_refused() -> None:
    with pytest.raises(links.BrokenLinkError, match=r"README\.md links to docs/none\.md"):
        links.rewritten("[it](docs/none.md)", "README.md", ROOT)


def test_code_is_left_alone() -> None:
    text = "`[a](b.md)`\n\n    [a](b.md)\n\n```\n[a](b.md)\n```\n"
    assert links.rewritten(text, "README.md", ROOT) == text
