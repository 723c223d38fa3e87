"""Chromium, driven by Playwright: it walks through the pages of `kbatch ui`, with a keyboard and with axe-core.

Playwright drives the Chromium that `make pages` finds or installs, and brings none. Selenium would need Debian's
driver of the same version beside it, and cannot tell what a page asked for, nor what a blocked script said.
"""

from __future__ import annotations

import contextlib
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import parse_qsl, urlsplit

from tests.support.browser import chromium

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

SCHEMES = ("light", "dark")
_SUPPORT = Path(__file__).parent
_CUT = (_SUPPORT / "cut.js").read_text(encoding="utf-8")
_SEEN = (_SUPPORT / "seen_of_a_page.js").read_text(encoding="utf-8")
# Of addresses that differ in nothing but the values of their parameters.
_ALIKE_MAX, _CLOSELY_ALIKE_MAX = 1, 4
_NAMES = {"id", "topic"}  # parameters that say what is shown, and not how
_FORMS = {"show", "garbage"}  # parameters by which a page looks otherwise
_NUMBERS = re.compile(r"/\d+(?![^/])")
_PAGES_MAX = 400
_RULES = ("wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice")


@contextlib.contextmanager
def a_browser() -> Iterator[Browser]:
    """Start Chromium without a window."""
    from playwright.sync_api import sync_playwright  # noqa: PLC0415  only `make pages` installs it

    with sync_playwright() as playwright:
        # Root, as in a container, can have no sandbox.
        browser = playwright.chromium.launch(executable_path=chromium(), args=["--no-sandbox"])
        try:
            yield browser
        finally:
            browser.close()


@contextlib.contextmanager
def a_visitor(
    browser: Browser, address: str = "", *, width: int = 1280, scheme: str = "light", **how: Any
) -> Iterator[Page]:
    """Open a page in a browser that has seen nothing yet, at the address with the token if one is given."""
    context = browser.new_context(
        viewport={"width": width, "height": 900}, color_scheme=scheme, reduced_motion="reduce", **how
    )  # fmt: skip
    try:
        page = context.new_page()
        if address:
            page.goto(address)
        yield page
    finally:
        context.close()


def origin(address: str) -> str:
    """Return the part of an address that says which server."""
    return "{0.scheme}://{0.netloc}".format(urlsplit(address))


def walk(page: Page, closely: str) -> Iterator[tuple[str, int]]:
    """Go to all pages that links and forms lead to, breadth first; yield each address, without the server, and status.

    Of addresses that differ only in what their parameters say, or in a number, one is followed, as a page of records
    leads to as many others as there are offsets; a few of those that have `closely` in them.
    """
    found, alike = ["/"], Counter({_kind("/"): 1})
    for address in found:
        answer = page.goto(origin(page.url) + address)
        assert answer is not None
        yield address, answer.status
        if not answer.headers.get("content-type", "").startswith("text/html"):
            continue
        for target in page.evaluate(f"() => {{ {_SEEN}; return leadsTo(); }}"):
            alike_max = _CLOSELY_ALIKE_MAX if closely in target else _ALIKE_MAX
            if alike[_kind(target)] < alike_max and target not in found:
                alike[_kind(target)] += 1
                found.append(target)
        assert len(found) <= _PAGES_MAX, found[-20:]


def one_of_each(addresses: Iterable[str]) -> list[str]:
    """Return a page of each kind, of the topic `hostile` if there is one: with no parameters, and with those of a form."""
    of_kind: dict[Any, str] = {}
    for address in sorted(addresses, key=lambda one: ("/hostile" not in one, len(one))):
        path, names = _kind(address)
        parts = path.split("/")
        of_kind.setdefault((*parts[:2], *parts[3:], *(_FORMS & {*names})), address)
    return sorted(of_kind.values())


def _kind(address: str) -> tuple[str, tuple[str, ...]]:
    parts = urlsplit(address)
    given = parse_qsl(parts.query, keep_blank_values=True)
    names = sorted(f"{name}={value}" if name in _NAMES else name for name, value in given)
    return _NUMBERS.sub("/#", parts.path), tuple(names)


class Told(NamedTuple):
    """What a page did beside being shown; filled as it does it."""

    dialogs: list[str]
    console: list[str]
    errors: list[str]
    requests: list[str]


def told_by(page: Page) -> Told:
    """Return what a page does from now on."""
    told = Told([], [], [], [])

    def dialog(one: Any) -> None:
        told.dialogs.append(one.message)
        one.dismiss()

    page.on("dialog", dialog)
    page.on("console", lambda one: told.console.append(f"{one.text} in {one.location['url']}"))
    page.on("pageerror", lambda one: told.errors.append(str(one)))
    page.context.on("request", lambda one: told.requests.append(one.url))
    return told


def what_could_run(page: Page) -> list[str]:
    """Return scripts, event handlers, frames and odd addresses of a page, and whether anything has run."""
    return list(page.evaluate(f"() => {{ {_SEEN}; return couldRun(); }}"))


def what_is_wide(page: Page, width: int) -> list[str]:
    """Return what of a page is cut off or makes it wider than its window; what scrolls by itself may be."""
    return list(page.evaluate(f"(width) => {{ {_CUT}; {_SEEN}; return tooWide(width); }}", width))


def focusable(page: Page) -> list[str]:
    """Mark what of a page a keyboard has to reach, and return it in the order of the page."""
    return list(page.evaluate(f"() => {{ {_SEEN}; return markFocusable(); }}"))


def focused(page: Page) -> dict[str, Any]:
    """Return which of `focusable` has the focus (-1 for none), and how one sees that."""
    return dict(page.evaluate(f"() => {{ {_SEEN}; return focused(); }}"))


def unnamed(page: Page) -> list[str]:
    """Return what Chromium's own tree for screen readers has without a name, and should have one."""
    session = page.context.new_cdp_session(page)
    nodes = session.send("Accessibility.getFullAXTree")["nodes"]
    session.detach()
    wanted = {"table", "region", "navigation", "img", "image", "link", "button", "textbox", "searchbox", "combobox", "checkbox", "radio", "spinbutton", "heading", "columnheader", "dialog", "RootWebArea", "graphics-document"}  # fmt: skip
    return [
        f"{role} without a name"
        for node in nodes
        if not node["ignored"]
        and (role := node.get("role", {}).get("value")) in wanted
        and not node.get("name", {}).get("value", "").strip()
    ]


def violations(page: Page) -> list[str]:
    """Return what axe-core finds wrong with a page, of a context that bypasses the page's policy."""
    from axe_playwright_python.base import AXE_SCRIPT  # noqa: PLC0415  only `make pages` installs it

    page.evaluate(AXE_SCRIPT)
    found = page.evaluate(
        "(rules) => axe.run(document, {runOnly: rules, resultTypes: ['violations']})", list(_RULES)
    )
    return [
        f"{one['id']}: {one['help']}: {node['html'][:200]}: {node['failureSummary'][:300]}"
        for one in found["violations"]
        for node in one["nodes"][:3]
    ]
