"""How Sphinx makes the site: `make docs`.

The source is the whole repository, because pages link to each other across its folders; the Markdown is taken as
it is. Each link must lead somewhere, and each warning fails the build.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

from sphinx.application import Sphinx

import spark_kbatch

project = "spark_kbatch"
author = "The spark_kbatch authors"
copyright = author
version = release = spark_kbatch.__version__

extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
root_doc = "README"
include_patterns = ["*.md", "docs/*.md", "docs/site/*.md", "notebooks/*.ipynb"]
exclude_patterns = [".*", "build", "dist", "conf", "tests", "spark_kbatch", "pyspark_kbatch"]

# Pages: the anchors of headings are those that GitHub makes.
myst_heading_anchors = 4
# Notebooks are shown with the outputs that they have.
nb_execution_mode = "off"

# The reference of Python names, from their docstrings.
default_role = "code"  # docstrings write `name` as Markdown does
autodoc_member_order = "bysource"
maximum_signature_line_length = 88
autodoc_typehints_format = "short"
python_use_unqualified_type_names = True
napoleon_numpy_docstring = False

html_theme = "furo"
html_title = f"{project} {version}"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_js_files = ["site.js"]
html_copy_source = False
html_show_sphinx = False


def navigation(readme: str) -> str:
    """Return the site's contents: a part for each column of README's table of pages, and one for its notebooks.

    What only the site has stands before them.
    """
    table = readme.partition("## Documentation")[2]
    heads, _, *rows = (row.split("|")[1:-1] for row in table.splitlines() if row.startswith("|"))
    parts = [["```{toctree}", ":hidden:", "", "docs/README.md", "docs/site/python-api.md", "```"]]
    columns = dict(zip(heads, map("".join, zip(*rows, strict=True)), strict=True))
    # README links to each notebook where it says what they show, and to nothing else in their folder.
    columns["to see it done"] = "".join(re.findall(r"\]\(notebooks/[^)]+\)", readme))
    for head, cells in columns.items():
        pages = re.findall(r"\]\(([^)]+)\)", cells)
        caption = f":caption: {head.strip().capitalize()}"
        parts.append(["```{toctree}", ":hidden:", caption, "", *pages, "```"])
    return "\n\n".join("\n".join(part) for part in parts)


def add_navigation(app: Sphinx, page: str, source: list[str]) -> None:
    """Add the contents to the first page, whose Markdown has them as a table."""
    if page == root_doc:
        source[0] += f"\n{navigation(source[0])}\n"


def tidy_docstring(
    app: Sphinx, what: str, name: str, obj: object, options: Any, lines: list[str]
) -> None:
    """Mark indented blocks as code, which reStructuredText takes for quotations; drop Python's own text."""
    for number in range(len(lines) - 1, 1, -1):
        before, blank, line = lines[number - 2 : number + 1]
        if line.startswith("    ") and not blank and before and not before.startswith(" "):
            lines[number:number] = [".. code-block:: python", ""]
    if lines and lines[0].startswith("Alias for field number"):
        lines.clear()


def hide_constructor(
    app: Sphinx, what: str, name: str, obj: type, options: Any, signature: str | None, returns: str
) -> tuple[str, str] | None:
    """Leave out how a class is called, unless it is a value that users make themselves."""
    hidden = what == "exception" or (what == "class" and not issubclass(obj, tuple))
    if hidden and signature:
        return "", ""
    return None


def copy_first_page(app: Sphinx, error: Exception | None) -> None:
    """Show README where a browser looks first."""
    if error is None and app.builder.name == "html":
        shutil.copy(Path(app.outdir, "README.html"), Path(app.outdir, "index.html"))


def setup(app: Sphinx) -> None:
    """Connect the functions above with the events of a build."""
    app.connect("source-read", add_navigation)
    app.connect(
        "autodoc-process-docstring", tidy_docstring, priority=400
    )  # before napoleon indents more
    app.connect("autodoc-process-signature", hide_constructor)
    app.connect("build-finished", copy_first_page)
