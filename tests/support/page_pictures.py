"""Pictures of pages of `kbatch ui` in docs/, which tests/web/test_pictures.py takes and compares.

    KBATCH_REWRITE_GOLDEN=1 make pages

takes them again. A picture has the words that it shows in itself, by which one sees whether a page still looks so.
"""

from __future__ import annotations

import io
import re
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import quote_plus

from PIL import Image
from PIL.PngImagePlugin import PngInfo

if TYPE_CHECKING:
    from playwright.sync_api import Page

DOCS = Path(__file__).resolve().parent.parent.parent / "docs"
BYTES_MAX = 150_000
_COLOURS = 64
_WORDS = "Description"  # PNG's own keyword
# The place's address is of this run; how far it is to an edge of the picture must not depend on it.
_NAME_PLACE = (
    "document.querySelector('.place').lastChild.textContent = ' /home/ada/demo-data/flights-log'"
)
# What the place and libraries of other versions count otherwise.
_NUMBER = re.compile(r"\d[\d,.:TZ-]*")


class Picture(NamedTuple):
    """A picture of a page, from its top."""

    address: str
    width: int
    height: int
    scheme: str = "light"
    scale: float = 2  # pixels of the picture for one of the page


_COLUMNS = "carrier string, flight int, origin string, dest string, dep_delay int"
PICTURES = {
    "ui.png": Picture("/", 1040, 870),
    "ui-topic.png": Picture("/topics/flights", 1040, 960),
    "ui-records.png": Picture(
        f"/topics/flights/records?show=json-columns&schema={quote_plus(_COLUMNS)}", 1280, 760
    ),
    "ui-groups.png": Picture("/groups", 1040, 700),
    "ui-telephone.png": Picture("/topics/flights/records", 390, 800, "dark"),
}


def take(page: Page, picture: Picture) -> tuple[bytes, str]:
    """Return a PNG of a page that is open, and the words that it shows."""
    page.evaluate(f"() => {{ {_NAME_PLACE} }}")
    shot = page.screenshot(clip={"x": 0, "y": 0, "width": picture.width, "height": picture.height})
    words = " ".join(page.inner_text("body").split())
    few = Image.open(io.BytesIO(shot)).convert("RGB").quantize(_COLOURS, dither=Image.Dither.NONE)
    told, found = PngInfo(), io.BytesIO()
    told.add_itxt(_WORDS, words)
    few.save(found, "png", optimize=True, pnginfo=told)
    return found.getvalue(), words


def words_in(path: Path) -> str:
    """Return the words of the page that a picture was taken of."""
    with Image.open(path) as image:
        return str(image.info[_WORDS])


def without_numbers(words: str) -> str:
    """Return words with one sign for each number and time."""
    return _NUMBER.sub("#", words)
