"""The application: its routes, and what it answers when something fails."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING

from starlette.applications import Starlette
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
_FAULT = "This page failed. The log of kbatch's process says why."


def application(site: Site) -> Starlette:
    """Return the ASGI application that shows a site."""
    app = Starlette(
        routes=[
            Route("/health", health),
            Route("/ready", ready),
            Route("/style.css", style),
            Route("/metrics", metrics),
            *topics.ROUTES,
            *storage.ROUTES,
            *records.ROUTES,
            *groups.ROUTES,
            *commits.ROUTES,
        ],
        exception_handlers={404: _missing, KBatchError: _error, OSError: _error, Exception: _error},
    )
    app.state.site = site
    return app


async def health(_request: Request) -> Response:
    """Answer that the process answers, also while all threads wait for the place."""
    return PlainTextResponse("ok\n")


def ready(request: Request) -> Response:
    """Answer whether the place can be read now, or with 503."""
    is_ready = request.app.state.site.is_ready()
    return PlainTextResponse("ready\n" if is_ready else "not ready\n", 200 if is_ready else 503)


def metrics(request: Request) -> Response:
    """Answer with what Prometheus scrapes."""
    site = site_of(request)
    content_type, text = site.recent("metrics", site.exposition.text, fresh_s=_SCRAPES_SHARE_S)
    return Response(text, media_type=content_type)


def style(_request: Request) -> Response:
    """Answer with the style of all pages."""
    return FileResponse(_STYLE, media_type="text/css", headers={"cache-control": "max-age=3600"})


def _missing(request: Request, _error: Exception) -> Response:
    return _page(request, 404, f"There is no page {request.url.path}.")


def _error(request: Request, error: Exception) -> Response:
    status = next((code for kind, code in _STATUS if isinstance(error, kind)), 500)
    if status == 500:
        logger.warning("%s cannot be shown: %s", request.url.path, error)
    # What no error of ours says is for those who see the log.
    return _page(request, status, str(error) if isinstance(error, KBatchError) else _FAULT)


def _page(request: Request, status: int, sentence: str) -> Response:
    site: Site = request.app.state.site
    return site.page(request, "error.html", status, sentence=sentence)
