"""What of a page those meet who read it with a screen reader, or have a keyboard alone."""

from __future__ import annotations

from typing import Any, Final

from playwright.sync_api import Page

from tests.needs import NPM, NPM_PACKAGES, require

AXE: Final = NPM_PACKAGES / "axe-core/axe.min.js"

_REACHABLE: Final = """() => [...document.querySelectorAll(
  'a[href], button:enabled, input:enabled, select:enabled, summary, [tabindex="0"]'
)].filter((each) => each.checkVisibility({visibilityProperty: true}) && each.getClientRects().length)
  .map((each, number) => (each.dataset.reachable = number)).length"""

_REACHED: Final = """() => {
  const at = document.activeElement, style = getComputedStyle(at);
  return [at.dataset.reachable ?? "", style.outlineStyle !== "none" && parseFloat(style.outlineWidth) > 0];
}"""


def violations(page: Page, *ignored: str) -> list[str]:
    """What axe finds on a page with all its tables open: each rule, and where it is broken.

    Args:
        page: the page.
        ignored: rules that are broken by others.
    """
    require(NPM)
    page.evaluate("document.querySelectorAll('details').forEach((each) => { each.open = true; })")
    page.evaluate(AXE.read_text())
    found: dict[str, Any] = page.evaluate("axe.run(document, {resultTypes: ['violations']})")
    assert len(found["passes"]) > 20
    return [
        f"{rule['id']}: {', '.join(node['html'][:120] for node in rule['nodes'])}"
        for rule in found["violations"]
        if rule["id"] not in ignored
    ]


def reach_all_by_tab(page: Page) -> None:
    """Press Tab until all that can be used has had the focus; it was seen there."""
    count = page.evaluate(_REACHABLE)
    page.evaluate("document.activeElement.blur()")
    reached: set[str] = set()
    unseen: set[str] = set()
    for _ in range(count + 5):
        page.keyboard.press("Tab")
        number, seen = page.evaluate(_REACHED)
        reached.add(number)
        if not seen and number != "":
            unseen.add(page.evaluate("document.activeElement.outerHTML.slice(0, 120)"))
    left = {str(number) for number in range(count)} - reached
    assert not left, [page.locator(f"[data-reachable='{number}']").evaluate("(at) => at.outerHTML") for number in left]
    assert not unseen, unseen


def changes_said(page: Page, seconds: float) -> list[str]:
    """What a screen reader announces by itself within this many seconds."""
    said: list[str] = page.evaluate(
        """(ms) => new Promise((resolve) => {
          const said = [];
          const watch = new MutationObserver((found) => said.push(...found.map((each) => each.target.textContent)));
          const live = document.querySelectorAll('[role=status], [role=alert], [role=log], [aria-live]');
          for (const at of live) watch.observe(at, {childList: true, characterData: true, subtree: true});
          setTimeout(() => { watch.disconnect(); resolve(said); }, ms);
        })""",
        1000 * seconds,
    )
    return said
