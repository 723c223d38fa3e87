"""Nothing of the site is cut off, on a telephone and on a desk: `make pages` runs this, with Chromium."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import REPOSITORY
from tests.support.browser import what_is_cut

pytestmark = pytest.mark.interop

WIDTHS = (390, 1280)  # of a telephone's window, and of one on a desk
# Made by Sphinx: lists of names, and the form of the search.
NO_PAGES = {"genindex.html", "py-modindex.html", "search.html"}

SMALL = '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 780 10" width="780" height="10"><text y="9" style="font-size: 12px">x</text></svg>'  # fmt: skip
CUT = f"""<!doctype html><meta name="viewport" content="width=device-width"><body style="margin: 0"><article>
<pre style="overflow: auto">{"long " * 30}</pre>
<p style="width: 300px; overflow: hidden; white-space: nowrap">{"hidden " * 20}</p>
<p style="width: 500px">wide</p>
<img src="small.svg" style="max-width: 100%">
</article>
"""


def test_each_kind_of_fault_is_found_in_a_page_that_has_it(tmp_path: Path) -> None:
    site = tmp_path / "site"
    site.mkdir()
    (site / "cut.html").write_text(CUT)
    (site / "small.svg").write_text(SMALL)

    told = what_is_cut(site, ["cut.html"], WIDTHS, tmp_path / "profile")

    narrow = [one.partition("cut.html at 390: ")[2] for one in told if "at 390" in one]
    for kind in (
        'pre "long',
        'p "hidden',
        'p "wide" makes the page wider',
        "letters of 6.0 pixels",
    ):
        assert any(kind in one for one in narrow), (kind, told)
    wide = [one for one in told if "at 1280" in one]
    assert len(wide) == 1  # the hidden words
    assert 'p "hidden' in wide[0]


def test_nothing_of_any_page_is_cut_off_and_words_in_pictures_can_be_read(tmp_path: Path) -> None:
    site = tmp_path / "site"
    flags = ["--quiet", "--doctree-dir", str(tmp_path / "doctrees"), "--conf-dir", "docs/site"]
    subprocess.run(
        [sys.executable, "-m", "sphinx", *flags, ".", str(site)], cwd=REPOSITORY, check=True
    )
    pages = sorted(str(path.relative_to(site)) for path in site.rglob("*.html"))
    pages = [page for page in pages if page not in NO_PAGES]
    assert len(pages) > 30

    assert what_is_cut(site, pages, WIDTHS, tmp_path / "profile") == []
