"""The HTTP server of the pages: uvicorn, in a thread of its own."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, Self, cast

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from spark_kbatch.server.listener import is_loopback, listening_socket
from spark_kbatch.store.reports import shown_address
from spark_kbatch.web.access import Access
from spark_kbatch.web.app import application

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Iterable

    from uvicorn.protocols.http.h11_impl import RequestResponseCycle

    from spark_kbatch.web.site import Site

logger = logging.getLogger(__name__)

_CONNECTIONS_MAX = 128  # a Kafka server in the same process has files to open
_ENDS_WITHIN_S = 5.0


class _Connection(H11Protocol):
    """A visitor's connection. If there are too many, one is closed that waits for its visitor."""

    @property
    def is_waiting(self) -> bool:
        """Whether the next step is the visitor's: to send a request, or to read an answer."""
        cycle = cast("RequestResponseCycle | None", self.cycle)
        return cycle is None or cycle.response_started

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Take a connection."""
        super().connection_made(transport)
        every = cast("set[_Connection]", self.connections)
        # Those that were closed are among them until the loop's next round.
        there = [one for one in every if not one.transport.is_closing()]
        if len(there) > _CONNECTIONS_MAX:
            waiting = (one for one in there if one.is_waiting and one is not self)
            next(waiting, self).transport.abort()


class WebServer:
    """A running HTTP server of one site's pages; close it, or use it in a `with`."""

    def __init__(
        self, site: Site, host: str, port: int, *, token: str | None, hosts: Iterable[str] = ()
    ) -> None:
        """Start the server, and the samples of its site, which end with it.

        Args:
            site: what it shows.
            host: address to listen on.
            port: port to listen on; 0 for any free port.
            token: what visitors need; None lets everybody look who can connect.
            hosts: further names by which it may be asked.

        Raises:
            ConfigError: it cannot listen there.
        """
        sock = listening_socket(host, port)
        self.host, self.port = sock.getsockname()[:2]
        self._server = uvicorn.Server(
            uvicorn.Config(
                Access(application(site), token, [host, *hosts], self.port),
                log_config=None,
                access_log=False,  # its lines have the addresses of pages, and so the token
                log_level=logging.ERROR,  # each request that is no HTTP would be a warning
                http=_Connection,
                loop="asyncio",
                ws="none",
                lifespan="off",
                proxy_headers=False,
                server_header=False,
                # Those who asked and left count, for which the place is looked at all the same.
                limit_concurrency=2 * _CONNECTIONS_MAX,
                timeout_graceful_shutdown=int(_ENDS_WITHIN_S),
            )
        )
        self._samples = site.samples
        self._samples.start()
        sock.listen()
        if token is None:
            who = "every user of this machine" if is_loopback(self.host) else "whoever reaches it"
            logger.warning("%s asks for no token: %s sees all topics and records", self.url, who)
        self._thread = threading.Thread(
            target=self._server.run, args=([sock],), name="kbatch-web", daemon=True
        )
        self._thread.start()

    @property
    def url(self) -> str:
        """The address of the first page, without the token."""
        return f"http://{shown_address(self.host, self.port)}/"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Close the server."""
        self.close()

    def close(self) -> None:
        """End: accept no more requests, and answer those in progress for some seconds. May be called again."""
        self._server.should_exit = True
        self._samples.close()  # meanwhile
        self._thread.join(_ENDS_WITHIN_S + 1)
