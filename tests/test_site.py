"""The site is built from the pages as they are: each link leads somewhere, each public name is described."""

from __future__ import annotations

import re
import subprocess
import sys
from html import unescape
from pathlib import Path

from sphinx.util.inventory import InventoryFile

import spark_kbatch
from tests.conftest import REPOSITORY
from tests.opening.test_odd_arguments import (
    INTERNAL_OF_FUTURES,
    INTERNAL_OF_PRODUCERS,
    public_methods,
)
from tests.test_readme import DOCUMENTS

# What a browser gets by itself, and what a reader may click.
_LOADED = re.compile(r"""<(?:script|img|iframe|link)\b[^>]*\b(?:src|href)="([^"]+)"|url\(["']?([^"')]+)|@import""")  # fmt: skip
_LINKED = re.compile(r'<a\b[^>]*\bhref="([^"]+)"')
_WEB_ADDRESS = re.compile(r"https?://[a-z0-9-]+(\.[a-z0-9-]+)+(/[\w./%~@-]*)?(#[\w.-]+)?")
# Pages that the repository does not have.
OWN_PAGES = {"index.html", "docs/site/python-api.html", "genindex.html", "py-modindex.html", "search.html"}  # fmt: skip


def test_the_site_has_every_page_and_public_name_and_loads_nothing_from_elsewhere(
    tmp_path: Path,
) -> None:
    """A warning of Sphinx fails the build, such as that of a link to a page or heading that is not there."""
    site = tmp_path / "site"
    flags = ["--quiet", "--fail-on-warning", "--keep-going", "--doctree-dir", tmp_path / "doctrees"]
    done = subprocess.run(
        [sys.executable, "-m", "sphinx", *flags, "--conf-dir", "docs/site", ".", site],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")

    sources = [*DOCUMENTS, *(REPOSITORY / "notebooks").glob("*.ipynb")]
    pages = {str(path.relative_to(REPOSITORY).with_suffix(".html")) for path in sources}
    built = {str(path.relative_to(site)): path.read_text() for path in site.rglob("*.html")}
    assert built.keys() == pages | OWN_PAGES
    assert built["index.html"] == built["README.html"]
    assert pages - {"README.html"} <= set(_LINKED.findall(built["index.html"]))

    for name, text in built.items():
        loaded = [first or second for first, second in _LOADED.findall(text)]
        assert loaded, name
        assert [one for one in loaded if "//" in one.removeprefix("data:")] == [], name
        outside = {
            link for link in map(unescape, _LINKED.findall(text)) if re.match(r"[a-z]+:|//", link)
        }
        assert {link for link in outside if not _WEB_ADDRESS.fullmatch(link)} == set(), name

    names = InventoryFile.loads((site / "objects.inv").read_bytes(), uri="").data
    described = {name for kind, found in names.items() if kind.startswith("py:") for name in found}
    top = {name for name in described if re.fullmatch(r"spark_kbatch\.\w+", name)}
    assert top == {f"spark_kbatch.{name}" for name in spark_kbatch.__all__}
    assert [name for name in described if "._" in name] == []
    called = {
        f"spark_kbatch.{kind}.{method}"
        for kind in (
            "Cluster",
            "Producer",
            "RecordFuture",
            "ArrowFuture",
            "Server",
        )
        for method in public_methods(getattr(spark_kbatch, kind))
    }
    internal = {f"spark_kbatch.Producer.{name}" for name in INTERNAL_OF_PRODUCERS}
    internal |= {f"spark_kbatch.ArrowFuture.{name}" for name in INTERNAL_OF_FUTURES}
    assert called - described == internal
