"""The application: its routes, how long visitors wait for a look, and what it answers when something fails.

    in time     those who ask for a page meanwhile get it; it is made once for all of them
    late        they are told so, and so is at once whoever asks for the same page before it is made, which goes on;
                who asks after that gets it
    too many    pages are late, or were not fetched: no further one is begun

So a place that hangs costs no more threads than there are turns, and its visitors no more than some seconds.
"""

from __future__ import annotations

import asyncio
import functools
import logging
from pathlib import Path
from typing import TYPE_CHECKING

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.responses import FileResponse, PlainTextResponse, Response
from starlette.routing import Route

from spark_kbatch.clock import monotonic_s
from spark_kbatch.errors import (
    ConfigError,
    GroupIdNotFoundError,
    KBatchError,
    OffsetOutOfRangeError,
    RequestTimedOutError,
    RetriableError,
    SchemaRegistryError,
    UnknownTopicOrPartitionError,
)
from spark_kbatch.web import commits, groups, records, storage, topics
from spark_kbatch.web.access import OPEN_PATHS, path_of
from spark_kbatch.web.site import Site, site_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from starlette.requests import Request

logger = logging.getLogger(__name__)

_STYLE = Path(__file__).parent / "templates" / "style.css"
_ANSWERED_WITHIN_S = 5.0
_LATE_KEPT_S = 120.0  # a late page, for the next visitor
_LOOKS_MAX = 128  # that are in progress, or late and not fetched
# Of the 40 threads that Starlette has; the rest tells that a page is late. A batch of records may unpack to much more.
_PAGES_AT_ONCE, _RECORDS_AT_ONCE = 30, 2
_SCRAPES_SHARE_S = 5.0  # one look at the place
_STATUS = (
    (UnknownTopicOrPartitionError, 404),
    (OffsetOutOfRangeError, 404),
    (SchemaRegistryError, 400),
    (GroupIdNotFoundError, 404),
    (RetriableError, 503),
    (ConfigError, 400),
)  # of errors; 500 for others
_FAULT = "This page failed. The log of kbatch's process says why."


def application(site: Site) -> Starlette:
    """Return the ASGI application that shows a site."""
    looks = (
        (_Looks(1), [Route("/ready", ready)]),  # anyone may ask for it
        (
            _Looks(_PAGES_AT_ONCE),
            [
                Route("/metrics", metrics),
                *topics.ROUTES,
                *storage.ROUTES,
                *groups.ROUTES,
                *commits.ROUTES,
            ],
        ),
        (_Looks(_RECORDS_AT_ONCE), records.ROUTES),
    )
    app = Starlette(
        routes=[
            Route("/health", health),
            Route("/style.css", style),
            *(
                Route(one.path, functools.partial(of.answer, one.endpoint))
                for of, routes in looks
                for one in routes
            ),
        ],
        exception_handlers={404: _missing, KBatchError: _error, OSError: _error, Exception: _error},
    )
    app.state.site = site
    return app


async def health(_request: Request) -> Response:
    """Answer that the process answers, also while all threads wait for the place."""
    return PlainTextResponse("ok\n")


def ready(request: Request) -> Response:
    """Answer that the place can be read now; else with 503, as if that takes too long to find out."""
    request.app.state.site.ensure_ready()
    return PlainTextResponse("ready\n")


def metrics(request: Request) -> Response:
    """Answer with what Prometheus scrapes."""
    site = site_of(request)
    content_type, text = site.recent("metrics", site.exposition.text, fresh_s=_SCRAPES_SHARE_S)
    return Response(text, media_type=content_type)


def style(_request: Request) -> Response:
    """Answer with the style of all pages."""
    return FileResponse(_STYLE, media_type="text/css", headers={"cache-control": "max-age=3600"})


def _missing(request: Request, _error: Exception) -> Response:
    return _page(request, 404, f"There is no page {path_of(request)}.")


def _error(request: Request, error: Exception) -> Response:
    status = next((code for kind, code in _STATUS if isinstance(error, kind)), 500)
    if status == 500:
        logger.warning("%s cannot be shown: %s", path_of(request), error)
    if path_of(request) in OPEN_PATHS:
        return PlainTextResponse("not ready\n", 503)
    # What no error of ours says is for those who see the log.
    return _page(request, status, str(error) if isinstance(error, KBatchError) else _FAULT)


def _page(request: Request, status: int, sentence: str) -> Response:
    site: Site = request.app.state.site
    return site.page(request, "error.html", status, sentence=sentence)


class _Looks:
    """Pages that are made in threads, so many at a time. For the event loop alone."""

    def __init__(self, turns: int) -> None:
        self._turns = asyncio.Semaphore(turns)
        # By address, and when each is late.
        self._looks: dict[tuple[str, bytes], tuple[asyncio.Future[Response], float]] = {}

    async def answer(self, make: Callable[[Request], Response], request: Request) -> Response:
        """Return the page of a request.

        Raises:
            RequestTimedOutError: it takes longer than a visitor waits.
        """
        address, now_s = (path_of(request), request["query_string"]), monotonic_s()
        self._looks = {
            at: (look, late_s)
            for at, (look, late_s) in self._looks.items()
            if not look.done() or now_s < late_s + _LATE_KEPT_S
        }
        if address not in self._looks and len(self._looks) < _LOOKS_MAX:
            look: asyncio.Future[Response] = asyncio.ensure_future(self._made(make, request))
            # Why it failed is of no interest if nobody asks again.
            look.add_done_callback(lambda one: one.cancelled() or one.exception())
            self._looks[address] = look, now_s + _ANSWERED_WITHIN_S
        look, late_s = self._looks.get(address, (asyncio.Future(), now_s))
        await asyncio.wait([look], timeout=max(0.0, late_s - now_s))
        if not look.done():
            raise RequestTimedOutError(
                f"{request.app.state.site.cluster.address} was not read within {_ANSWERED_WITHIN_S:g} s; "
                "that goes on: load this page again to see what it finds"
            )
        self._looks.pop(address, None)
        return look.result()

    async def _made(self, make: Callable[[Request], Response], request: Request) -> Response:
        async with self._turns:
            return await run_in_threadpool(make, request)
