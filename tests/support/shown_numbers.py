"""What a page shows, as data: its tables, and its charts with their geometry."""

from __future__ import annotations

import re
from html import unescape
from typing import NamedTuple
from xml.etree import ElementTree


class Drawn(NamedTuple):
    """A chart in a page."""

    title: str
    lines: dict[str, list[tuple[float, float] | None]]  # points by label; None at a gap
    bars: list[tuple[str, float, float]]  # label, x and height
    values: list[str]  # labels of the axis of values, from 0 up
    places: list[tuple[float, str]]  # labels of the other one, by their percent of it
    table: list[list[str]]  # with its headings; empty if it has none


def text_of(part: str) -> str:
    """Return the text of a part of a page, as a person sees it, on one line."""
    return re.sub(r"\s+", " ", unescape(re.sub("<[^>]*>", " ", part))).strip()


def tables(page: str) -> list[list[list[str]]]:
    """Return the cells of all tables of a page, row by row."""
    return [
        [
            [text_of(cell) for cell in re.findall(r"<t[hd]\b[^>]*>(.*?)</t[hd]>", row, re.DOTALL)]
            for row in re.findall(r"<tr>(.*?)</tr>", table, re.DOTALL)
        ]
        for table in re.findall(r"<table>(.*?)</table>", page, re.DOTALL)
    ]


def table(page: str, first_heading: str) -> list[list[str]]:
    """Return the rows of the one table of a page whose first column has this heading."""
    (found,) = (one for one in tables(page) if one[0][0] == first_heading)
    return found[1:]


def charts(page: str) -> dict[str, Drawn]:
    """Return the charts of a page by the names in their ids; each is well-formed XML, and named for screen readers."""
    found = {}
    for text in re.findall(r"<figure class=\"chart\">.*?</figure>", page, re.DOTALL):
        figure = ElementTree.fromstring(text)
        (svg,) = (one for one in figure.iter("svg") if one.get("class") == "shapes")
        name, title = _named(svg)
        keys = [text_of(ElementTree.tostring(key, "unicode")) for key in figure.iter("li")]
        lines = [one for one in svg.iter("path") if (one.get("class") or "").startswith("line ")]
        assert svg.get("viewBox") == "0 0 1000 1000"
        (values,) = (one for one in figure.iter("div") if one.get("class") == "values")
        (places,) = (one for one in figure.iter("svg") if one.get("class") == "places")
        found[name] = Drawn(
            title,
            {
                label: points(line.get("d") or "")
                for label, line in zip(keys or [title], lines, strict=False)
            },
            [
                (one.findtext("title") or "", float(one.get("x", "")), float(one.get("height", "")))
                for one in svg.iter("rect")
            ],
            [one.text or "" for one in reversed(list(values))],
            [(float(one.get("x", "").rstrip("%")), one.text or "") for one in places],
            (tables(text) or [[]])[0],
        )
    return found


def points(path: str) -> list[tuple[float, float] | None]:
    """Return the points of a path, y from the bottom up, and None where it begins again."""
    found: list[tuple[float, float] | None] = []
    for command, x, y in re.findall(r"([ML])([\d.]+) ([\d.]+)", path):
        if command == "M" and found:
            found.append(None)
        found.append((float(x), 1000 - float(y)))
    return found


def _named(svg: ElementTree.Element) -> tuple[str, str]:
    """Return the name of an image and its title, which a screen reader reads with its description."""
    assert svg.get("role") == "img"
    texts = {one.get("id"): one.text for one in svg if one.tag in ("title", "desc")}
    ids = (svg.get("aria-labelledby") or "").split()
    assert list(texts) == ids
    assert all(texts.values())
    return ids[0].removesuffix("-title"), texts[ids[0]] or ""
