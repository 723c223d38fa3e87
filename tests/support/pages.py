"""Pages over a place, and a visitor who looks at them as a browser does, and keeps its cookies.

with shown(cluster) as pages:
    visitor = Visitor(pages)
    visitor.get("/").text
"""

from __future__ import annotations

import contextlib
import http.client
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from spark_kbatch import Cluster, Server
from spark_kbatch.web.serving import WebServer
from spark_kbatch.web.site import Site
from tests.support.shown_numbers import text_of

TOKEN = "a-token-of-tests-and-of-nothing-else"
TIMEOUT_S = 60


class Page(NamedTuple):
    """An answer."""

    status: int
    headers: http.client.HTTPMessage
    text: str

    @property
    def words(self) -> str:
        """The text as a person sees it, on one line."""
        return text_of(self.text)


@contextlib.contextmanager
def shown(
    cluster: Cluster, server: Server | None = None, *, token: str | None = TOKEN
) -> Iterator[WebServer]:
    """Show the pages of a place, at any free port."""
    with WebServer(Site(cluster, server), "127.0.0.1", 0, token=token) as pages:
        yield pages


class Visitor:
    """Someone who has opened the address with the token."""

    def __init__(self, pages: WebServer, token: str | None = TOKEN) -> None:
        self.cookie = ""
        self.host, self.port = pages.host, pages.port
        if token is not None:
            admitted = self.ask(f"/?token={token}")
            assert admitted.status == 303, admitted
            self.cookie = admitted.headers["set-cookie"].partition(";")[0]

    def get(self, address: str) -> Page:
        """Return a page that has to be there."""
        found = self.ask(address)
        assert found.status == 200, found
        return found

    def ask(
        self, address: str, method: str = "GET", headers: Mapping[str, str] | None = None
    ) -> Page:
        """Return the answer to a request, whatever it is; redirects are not followed."""
        given = {"Cookie": self.cookie} if self.cookie else {}
        connection = http.client.HTTPConnection(self.host, self.port, timeout=TIMEOUT_S)
        with contextlib.closing(connection):
            connection.request(method, address, headers=given | dict(headers or {}))
            answer = connection.getresponse()
            return Page(answer.status, answer.headers, answer.read().decode())
