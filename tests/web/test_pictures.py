"""The pictures of pages in README and docs/: KBATCH_REWRITE_GOLDEN=1 makes `make pages` take them again."""

from __future__ import annotations

import os
from collections.abc import Iterator
from unittest import mock

import pytest
import time_machine

from spark_kbatch.web.serving import WebServer
from spark_kbatch.web.site import Site
from tests.support.driven_browser import a_browser, a_visitor
from tests.support.flights_place import NOW, flights_place, live
from tests.support.page_pictures import (
    BYTES_MAX,
    DOCS,
    PICTURES,
    take,
    without_numbers,
    words_in,
)

pytestmark = pytest.mark.interop


@pytest.fixture(scope="module")
def flights(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WebServer]:
    with flights_place(tmp_path_factory.mktemp("place") / "flights-log") as cluster:
        site = Site(cluster)
        live(cluster, site.samples)
        with (
            mock.patch.multiple(
                site.samples, start=mock.DEFAULT, close=mock.DEFAULT
            ),  # or there is one of today
            time_machine.travel(NOW),
            WebServer(site, "127.0.0.1", 0, token=None) as pages,
        ):
            yield pages


@pytest.mark.parametrize("name", PICTURES)
def test_a_picture_shows_its_page_as_it_is_now(flights: WebServer, name: str) -> None:
    picture, path = PICTURES[name], DOCS / name
    with (
        a_browser() as browser,
        a_visitor(browser, width=picture.width, scheme=picture.scheme, device_scale_factor=picture.scale) as page,
    ):  # fmt: skip
        page.goto(f"{flights.url.removesuffix('/')}{picture.address}")
        taken, words = take(page, picture)
    if os.environ.get("KBATCH_REWRITE_GOLDEN"):
        path.write_bytes(taken)

    assert without_numbers(words_in(path)) == without_numbers(words), "KBATCH_REWRITE_GOLDEN=1 make pages takes it again"  # fmt: skip
    assert path.stat().st_size <= BYTES_MAX
