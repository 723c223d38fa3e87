"""The pages of `kbatch ui` in Chromium: `make pages` runs this.

Each test walks through all pages that links and forms lead to, in each kind of place, whose records, groups, queries
and users try to become more than text.
"""

from __future__ import annotations

import contextlib
import re
import secrets
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import quote, urlsplit

import pytest

from spark_kbatch.ledger.entries import TopicCreation
from spark_kbatch.web.serving import WebServer
from spark_kbatch.web.site import Site
from tests.support.bucket_objects import a_bucket
from tests.support.driven_browser import (
    SCHEMES,
    Told,
    a_browser,
    a_visitor,
    focusable,
    focused,
    one_of_each,
    origin,
    told_by,
    unnamed,
    violations,
    walk,
    what_could_run,
    what_is_wide,
)
from tests.support.hostile_places import (
    KINDS,
    LONGEST,
    NAMES,
    TEXTS,
    hostile_place,
    write_entry,
)
from tests.support.pages import shown

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = pytest.mark.interop

WIDTHS = (360, 390, 1280)  # of small and usual telephones, and of a window on a desk
RING_PIXELS_MIN, RING_CONTRAST_MIN = 2, 3.0  # WCAG 2.2, 1.4.11 and 2.4.13


class Seen(NamedTuple):
    """What there was to see of a page."""

    status: int
    told: Told
    could_run: list[str]
    wide: list[str]
    unnamed: list[str]
    words: str


class Walked(NamedTuple):
    """A place that is shown, and the pages that there are of it, by their addresses without the server."""

    kind: str
    url: str  # of the first page, with the token
    pages: Mapping[str, Seen]

    @property
    def origin(self) -> str:
        return origin(self.url)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with a_browser() as browser:
        yield browser


@pytest.fixture(scope="module", params=KINDS)
def walked(
    request: pytest.FixtureRequest, browser: Browser, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Walked]:
    """Walk through all pages of a place, and look at each at all widths, in light and in dark."""
    token = secrets.token_urlsafe()
    with (
        hostile_place(request.param, tmp_path_factory.mktemp("place")) as cluster,
        WebServer(Site(cluster), "127.0.0.1", 0, token=token) as pages,
    ):
        url = f"{pages.url}?token={token}"
        found = {}
        with a_visitor(browser, url) as page:
            told = told_by(page)
            for address, status in walk(page, "/hostile"):
                found[address] = _look(page, status, told)
            for address in ("/no-such-page", f"/topics/{quote(TEXTS[0], '')}", "/?page=x&name=%00"):
                answer = page.goto(f"{origin(url)}{address}")
                assert answer is not None
                found[address] = _look(page, answer.status, told)
        yield Walked(request.param, url, found)


def _look(page: Page, status: int, told: Told) -> Seen:
    could_run, wide = [], []
    for width, scheme in zip(WIDTHS, (*SCHEMES, "light"), strict=True):
        page.emulate_media(color_scheme=scheme)
        page.set_viewport_size({"width": width, "height": 900})
        could_run += what_could_run(page)
        wide += [f"at {width}: {one}" for one in what_is_wide(page, width)]
    told_now = Told(*([*one] for one in told))
    for one in told:
        one.clear()
    return Seen(status, told_now, could_run, wide, unnamed(page), page.inner_text("body"))


@pytest.fixture
def faulty(browser: Browser) -> Iterator[Page]:
    """Return a page that has each fault which these tests look for."""
    body = """<!doctype html><title></title><body style="margin: 0" onload="window.hit = 1">
        <script>alert(1); console.log("ran")</script><img src="http://127.0.0.1:9/x"><a href="javascript:1">x</a>
        <p style="width: 3000px">wide</p><p style="width: 50px; overflow: hidden; white-space: nowrap">hidden words</p>
        <div style="overflow: auto; width: 90px"><table style="width: 900px"><tr><th>1</th><td>1</td></tr></table></div>
        <p style="color: #aaa; background: #fff">pale</p><input><a href="/" style="outline: none">y</a>"""
    with a_visitor(browser) as page:
        page.route(
            "http://faulty.test/", lambda route: route.fulfill(body=body, content_type="text/html")
        )
        yield page


def test_each_kind_of_fault_is_found_in_a_page_that_has_it(faulty: Page) -> None:
    told = told_by(faulty)
    faulty.goto("http://faulty.test/")

    assert told.dialogs == ["1"]
    assert any(one.startswith("ran") for one in told.console)
    assert "http://127.0.0.1:9/x" in told.requests
    could_run = "\n".join(what_could_run(faulty))
    for part in ("window.hit is 1", "1 scripts", 'onload="', 'href="javascript:1"', 'src="http:'):
        assert part in could_run
    wide = "\n".join(what_is_wide(faulty, 1280))
    for part in (
        'p "wide"',
        'p "hidden words" has',
        "the page has 3000 pixels",
        "scrolls, and has no name",
    ):
        assert part in wide
    assert {"table without a name", "textbox without a name"} <= {*unnamed(faulty)}
    found = "\n".join(violations(faulty))
    for rule in ("color-contrast", "document-title", "html-has-lang", "label", "landmark-one-main"):
        assert re.search(f"^{rule}:", found, re.MULTILINE), rule
    assert len(focusable(faulty)) == 4  # and the table's box
    faulty.keyboard.press("Tab")
    assert focused(faulty)["place"] == 0
    faulty.locator("a", has_text="y").focus()
    assert focused(faulty)["ring"] == 0


def test_nothing_of_a_place_becomes_more_than_text(walked: Walked) -> None:
    """No script, handler, frame or foreign address, no dialog, no word on the console, no request to elsewhere."""
    for address, seen in walked.pages.items():
        assert seen.status in (200, 400, 404), (address, seen)
        assert seen.could_run == [], address
        assert (seen.told.dialogs, seen.told.errors) == ([], []), address
        # Chromium itself reports a page that it gets with a status of an error.
        console = [
            one for one in seen.told.console if not one.startswith("Failed to load resource")
        ]
        assert console == [] and (seen.status >= 400 or seen.told.console == []), address  # noqa: PT018
        assert {origin(one) for one in seen.told.requests} <= {walked.origin, "data://"}, address


def test_a_topic_that_somebody_has_named_past_all_checks_is_text_of_an_error(
    browser: Browser,
) -> None:
    for name in NAMES:
        cluster = a_bucket(None, "events")
        write_entry(cluster, TopicCreation("ab" * 8, name, (0,)), by=name)
        with shown(cluster, token=None) as pages, a_visitor(browser) as page:
            told = told_by(page)
            page.goto(pages.url)
            looks = {address: _look(page, status, told) for address, status in walk(page, "/")}
        assert {one.status for one in looks.values()} == {500}, name
        for seen in looks.values():
            assert "is damaged: content.name is" in seen.words, name
            assert (seen.could_run, seen.told.dialogs, seen.told.errors) == ([], [], []), name
            assert (seen.wide, seen.unnamed) == ([], []), name
            assert {origin(one) for one in seen.told.requests} <= {origin(pages.url), "data://"}


def test_what_is_hostile_is_shown(walked: Walked) -> None:
    words = "\n".join(seen.words for seen in walked.pages.values())
    assert "There is no page /no-such-page." in words
    if walked.kind != "a broker's logs":
        assert LONGEST in words
        assert words.count("<script>window.hit = 1</script>") > 5
        assert "\\u202e" in words
    if walked.kind == "a bucket":
        assert f"fence {TEXTS[0]} is at epoch" in words
        assert f"settings of odd-settings: {TEXTS[0]}={TEXTS[0]}" in words


def test_nothing_is_cut_off_and_no_page_is_wider_than_its_window(walked: Walked) -> None:
    assert {address: seen.wide for address, seen in walked.pages.items() if seen.wide} == {}


def test_whatever_has_a_role_has_a_name_in_the_browsers_own_tree(walked: Walked) -> None:
    assert {address: seen.unnamed for address, seen in walked.pages.items() if seen.unnamed} == {}


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("width", [360, 1280])
def test_axe_finds_no_violation(browser: Browser, walked: Walked, width: int, scheme: str) -> None:
    """Contrast, names, labels, landmarks: by rules that nobody here has written."""
    found = {}
    with a_visitor(browser, walked.url, width=width, scheme=scheme, bypass_csp=True) as page:
        for address in one_of_each([*walked.pages]):
            page.goto(walked.origin + address)
            if broken := violations(page):
                found[address] = broken
    assert found == {}


@pytest.mark.parametrize(("width", "scheme"), [(360, "dark"), (1280, "light")])
def test_tab_reaches_everything_in_order_and_one_sees_where(
    browser: Browser, walked: Walked, width: int, scheme: str
) -> None:
    with a_visitor(browser, walked.url, width=width, scheme=scheme) as page:
        for address in one_of_each([*walked.pages]):
            page.goto(walked.origin + address)
            wanted = focusable(page)
            reached: list[int] = []
            for _ in range(4 * len(wanted) + 8):  # a field for a time has some places of its own
                page.keyboard.press("Tab")
                at = focused(page)
                if at["place"] == -1 or (at["place"] == 0 and len(reached) > 1):
                    break  # the window itself, or the first again
                if reached[-1:] == [at["place"]]:
                    continue
                reached.append(at["place"])
                assert at["isSeen"], (address, at)
                assert at["ring"] >= RING_PIXELS_MIN, (address, at)
                assert contrast(at["color"], at["ground"]) >= RING_CONTRAST_MIN, (address, at)
            assert reached == [*range(len(wanted))], (address, wanted)


def test_the_first_link_leads_to_the_content(browser: Browser, walked: Walked) -> None:
    with a_visitor(browser, walked.url) as page:
        for address in one_of_each([*walked.pages]):
            page.goto(walked.origin + address)
            page.keyboard.press("Tab")
            assert focused(page)["name"] == 'a "To the content"'
            page.keyboard.press("Enter")
            page.keyboard.press("Tab")
            assert page.evaluate("() => !document.activeElement.closest('header')"), address


def test_each_form_is_sent_by_the_keyboard_to_the_address_that_its_fields_say(
    browser: Browser, walked: Walked
) -> None:
    forms = 0
    with a_visitor(browser, walked.url) as page:
        for address in one_of_each([*walked.pages]):
            page.goto(walked.origin + address)
            for number in range(page.locator("form").count()):
                page.goto(walked.origin + address)
                form = page.locator("form").nth(number)
                expected = form.evaluate(
                    "(form) => { const url = new URL(form.action); url.search = new URLSearchParams(new FormData(form)); return url.href }"
                )
                form.locator("button").last.focus()
                with page.expect_navigation():
                    page.keyboard.press("Enter")
                assert page.url.rstrip("?") == expected.rstrip("?"), address
                forms += 1
    assert forms


def test_a_topic_is_searched_by_keys_alone_and_the_browser_leads_back(
    browser: Browser, walked: Walked
) -> None:
    with a_visitor(browser, walked.url) as page:
        first = page.locator("main tbody a").first.inner_text()
        page.locator("input[name=name]").focus()
        page.keyboard.type(first.upper())
        page.keyboard.press("Tab")
        page.keyboard.press("Space")
        page.keyboard.press("Enter")
        page.wait_for_url(f"**/?name={quote(first.upper())}&internal=1")
        page.locator("main tbody a").first.press("Enter")
        page.wait_for_url(f"**/topics/{quote(first)}")
        page.go_back()
        assert page.locator("input[name=name]").input_value() == first.upper()
        page.go_back()
        assert page.url == f"{walked.origin}/"
        page.go_forward()
        assert urlsplit(page.url).query == f"name={quote(first.upper())}&internal=1"


def test_the_token_leaves_the_address_and_another_user_sees_nothing(
    browser: Browser, walked: Walked
) -> None:
    with a_visitor(browser, walked.url) as page:
        assert page.url == f"{walked.origin}/"
        assert page.evaluate("() => document.cookie") == ""
        (cookie,) = page.context.cookies()
        assert (cookie["httpOnly"], cookie["sameSite"]) == (True, "Lax")
        assert page.reload().status == 200  # type: ignore[union-attr]

    with a_visitor(browser) as page:
        told = told_by(page)
        for address in walked.pages:
            answer = page.goto(walked.origin + address)
            assert answer is not None
            assert answer.status == 401, address
            assert page.inner_text("body").startswith("This page is for those who have its token.")
            assert LONGEST not in page.content()
        assert {one.partition(walked.origin)[2] for one in told.requests} <= {
            *walked.pages,
            "/favicon.ico",
        }
        wrong = page.goto(f"{walked.origin}/?token={'x' * 43}")
        assert wrong is not None
        assert wrong.status == 401
        assert page.context.cookies() == []


def test_a_link_in_a_page_of_another_site_leads_to_the_pages(
    browser: Browser, walked: Walked
) -> None:
    """As in a notebook, or a chat: the printed address with its token, and later any other."""
    body = f"""<!doctype html><title>other</title><a href="{walked.url}">with the token</a>
        <a href="{walked.origin}/?internal=1">without</a>"""
    with a_visitor(browser) as page:
        page.context.route(
            "http://other.test/", lambda route: route.fulfill(body=body, content_type="text/html")
        )
        for link, address in {"with the token": "/", "without": "/?internal=1"}.items():
            page.goto("http://other.test/")
            page.click(f"text={link}")
            page.wait_for_url(f"{walked.origin}{address}")
            assert page.inner_text("h1") == "Topics"
            assert page.reload().status == 200  # type: ignore[union-attr]


def test_a_page_of_another_site_gets_nothing_though_the_browser_has_the_token(
    browser: Browser, walked: Walked
) -> None:
    """It neither reads a page, nor shows one in a frame, nor finds the window that it opened."""
    body = f"""<!doctype html><title>other</title><iframe src="{walked.origin}/"></iframe>
        <img src="{walked.origin}/" alt=""><link rel="stylesheet" href="{walked.origin}/style.css">"""
    with a_visitor(browser, walked.url) as page:
        page.context.route(
            "http://127.0.0.1:9/", lambda route: route.fulfill(body=body, content_type="text/html")
        )
        page.goto("http://127.0.0.1:9/")
        read = page.evaluate(
            "(url) => fetch(url, {credentials: 'include'}).then((got) => got.text()).catch((error) => `${error}`)",
            f"{walked.origin}/",
        )
        assert read == "TypeError: Failed to fetch"
        frame = page.frames[1]
        assert "Topics" not in frame.content()
        with page.context.expect_page() as opened, contextlib.suppress(Exception):
            page.evaluate("(url) => { window.opened = window.open(url) }", f"{walked.origin}/")
        opened.value.wait_for_load_state()
        assert page.evaluate("() => window.opened.closed")


def contrast(one: str, other: str) -> float:
    """Return WCAG's ratio of two colours, as `rgb(1, 2, 3)`."""

    def luminance(color: str) -> float:
        parts = [int(part) / 255 for part in re.findall(r"\d+", color)[:3]]
        linear = [
            part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts
        ]
        return sum(
            weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True)
        )

    light, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)
