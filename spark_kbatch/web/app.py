"""The application: its routes, and what it answers when something fails."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.responses import FileResponse, PlainTextResponse, Response
from starlette.routing import Route

from spark_kbatch.errors import (
    ConfigError,
    GroupIdNotFoundError,
    KBatchError,
    OffsetOutOfRangeError,
    RetriableError,
    SchemaRegistryError,
    UnknownTopicOrPartitionError,
)
from spark_kbatch.web import commits, groups, records, storage, topics
from spark_kbatch.web.access import HEADERS, Access, AccessMiddleware
from spark_kbatch.web.site import Site, site_of

if TYPE_CHECKING:
    from starlette.requests import Request

logger = logging.getLogger(__name__)

_STYLE = Path(__file__).parent / "templates" / "style.css"
_SCRAPES_SHARE_S = 5.0  # one look at the place
_STATUS = (
    (UnknownTopicOrPartitionError, 404),
    (OffsetOutOfRangeError, 404),
    (SchemaRegistryError, 400),
    (GroupIdNotFoundError, 404),
    (RetriableError, 503),
    (ConfigError, 400),
)  # of errors; 500 for others


def application(site: Site, access: Access) -> Starlette:
    """Return the ASGI application that shows a site to those who have access."""
    site.menu += storage.menu_of(site.cluster)
    app = Starlette(
        routes=[
            Route("/health", health),
            Route("/ready", ready),
            Route("/style.css", style),
            *map(
                _of_the_place,
                [
                    Route("/metrics", metrics),
                    *topics.ROUTES,
                    *storage.ROUTES,
                    *records.ROUTES,
                    *groups.ROUTES,
                    *commits.ROUTES,
                ],
            ),
        ],
        middleware=[Middleware(AccessMiddleware, access=access)],
        exception_handlers={
            HTTPException: _http_error,
            KBatchError: _error,
            OSError: _error,
            Exception: _unexpected,
        },
    )
    app.state.site = site
    return app


def _of_the_place(route: Route) -> Route:
    """Return a page's route, on which a bucket is followed before the page is made."""

    def followed(request: Request) -> Response:
        site_of(request).follow()
        page: Response = route.endpoint(request)
        return page

    return Route(route.path, followed, name=route.name)


async def health(_request: Request) -> Response:
    """Answer that the process answers, also while all threads wait for the place."""
    return PlainTextResponse("ok\n")


def ready(request: Request) -> Response:
    """Answer whether the place can be read now, or with 503."""
    is_ready = site_of(request).is_ready()
    return PlainTextResponse("ready\n" if is_ready else "not ready\n", 200 if is_ready else 503)


def metrics(request: Request) -> Response:
    """Answer with what Prometheus scrapes, as text if the place cannot be looked at."""
    try:
        site = site_of(request)
        content_type, text = site.recent("metrics", site.exposition.text, fresh_s=_SCRAPES_SHARE_S)
    except (KBatchError, OSError) as error:
        logger.warning("no metrics: %s", error)
        return PlainTextResponse(f"{error}\n", 503)
    return Response(text, media_type=content_type)


def style(_request: Request) -> Response:
    """Answer with the style of all pages."""
    return FileResponse(_STYLE, media_type="text/css", headers={"cache-control": "max-age=3600"})


def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    if error.status_code == 404:
        return _sentence(request, 404, f"There is no page {request.url.path}.")
    return PlainTextResponse(f"{error.detail}\n", error.status_code, error.headers)


def _error(request: Request, error: Exception) -> Response:
    status = next((code for kind, code in _STATUS if isinstance(error, kind)), 500)
    if status == 500:
        logger.warning("%s cannot be shown: %s", request.url.path, error)
    return _sentence(request, status, str(error))


def _unexpected(_request: Request, _error: Exception) -> Response:
    """Answer after an error of ours, which the log shows; outside of all middleware."""
    return PlainTextResponse(
        "This page failed by a fault of kbatch, which the log of its process shows.\n", 500, HEADERS
    )


def _sentence(request: Request, status: int, sentence: str) -> Response:
    return site_of(request).page(request, "error.html", status, sentence=sentence)
