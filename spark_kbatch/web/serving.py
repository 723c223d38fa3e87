"""The HTTP server of the pages: uvicorn, in a thread of its own."""

from __future__ import annotations

import threading
from types import TracebackType
from typing import TYPE_CHECKING, Self

import uvicorn

from spark_kbatch.server.listener import listening_socket
from spark_kbatch.store.reports import shown_address
from spark_kbatch.web.access import Access
from spark_kbatch.web.app import application

if TYPE_CHECKING:
    from collections.abc import Iterable

    from spark_kbatch.web.site import Site

_VISITORS_MAX = 100  # requests in progress; further ones are answered with 503
_IDLE_S = 75  # after which a connection is closed
_ENDS_WITHIN_S = 5.0


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
        access = Access(token, [host, *hosts], self.port)
        self._server = uvicorn.Server(
            uvicorn.Config(
                application(site, access),
                log_config=None,
                access_log=False,  # its lines have the addresses of pages, and so the token
                http="h11",
                loop="asyncio",
                ws="none",
                lifespan="off",
                proxy_headers=False,
                server_header=False,
                limit_concurrency=_VISITORS_MAX,
                timeout_keep_alive=_IDLE_S,
                timeout_graceful_shutdown=int(_ENDS_WITHIN_S),
            )
        )
        self._samples = site.samples
        self._samples.start()
        sock.listen()
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

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close the server."""
        self.close()

    def close(self) -> None:
        """End: accept no more requests, and answer those in progress for some seconds. May be called again."""
        self._samples.close()
        self._server.should_exit = True
        self._thread.join(2 * _ENDS_WITHIN_S)
