"""What all pages share: the cluster, templates, and what was found a moment ago."""

from __future__ import annotations

import functools
import math
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, cast
from urllib.parse import urlencode

import jinja2
from jinja2.filters import do_filesizeformat
from starlette.responses import HTMLResponse

from spark_kbatch import Cluster
from spark_kbatch.clock import monotonic_s
from spark_kbatch.errors import KafkaStorageError, KBatchError
from spark_kbatch.opening.stores import store_of
from spark_kbatch.terminal import counted, iso_time, visible
from spark_kbatch.web.access import path_of
from spark_kbatch.web.history import Samples
from spark_kbatch.web.metrics import Exposition

if TYPE_CHECKING:
    from starlette.requests import Request

    from spark_kbatch import Server
    from spark_kbatch.bucket.store import BucketStore

_SAMPLED_EVERY_S, _FAR_SAMPLED_EVERY_S = 15.0, 60.0  # the second of a place over the network
_REQUESTS_FOR_SIZES = 20  # to a bucket, for one look
_FRESH_S = 2.0  # what was found is shown again for this long
_FOR_EVER_S = 1e9
_KEPT_MAX = 64
_DIGITS_MAX = 19  # of a number in an address, which then is below 2**63

_Found = TypeVar("_Found")


class Site:
    """One place of topics as a site. Thread-safe.

    Args:
        cluster: the place.
        server: that serves the place to Kafka's clients from this process; None if none does.
        registry: options of the schema registry that values are read with; None without one.
    """

    def __init__(
        self,
        cluster: Cluster,
        server: Server | None = None,
        registry: Mapping[str, str] | None = None,
    ) -> None:
        self.cluster, self.registry = cluster, registry or None
        self._news: Callable[[], int] | None = None
        self.ledger = store_of(cluster).ledger  # of a bucket
        if self.ledger is not None:
            # Each look at a bucket asks its store for news, and a page has several.
            bucket = cast("BucketStore", store_of(cluster))
            followed = bucket.followed(requests_for_sizes=_REQUESTS_FOR_SIZES)
            self.cluster, self._news = Cluster.over(followed), bucket.follow
            self.ledger = followed.ledger
        every_s = _SAMPLED_EVERY_S if self.is_local else _FAR_SAMPLED_EVERY_S
        self.samples = Samples(self.cluster, every_s, follow=self.follow)
        self.exposition = Exposition(self.cluster, server=server)
        self._look = functools.lru_cache(_KEPT_MAX)(lambda *_name: _Once())
        self._templates = jinja2.Environment(
            loader=jinja2.FileSystemLoader(Path(__file__).parent / "templates"),
            autoescape=True,
            undefined=jinja2.StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self._templates.filters |= {
            "bytes": size_shown,
            "number": lambda number: f"{number:,}",
            "rate": number_shown,
            "time": lambda ms: iso_time(ms) or "",
            "visible": visible,
            "counted": counted,
        }
        self._templates.globals |= {"site": self, "link": link}

    @property
    def is_local(self) -> bool:
        """Whether the place is files of this machine, at which a look costs little."""
        return Path(self.cluster.address).is_absolute()

    def page(
        self, request: Request, template: str, status: int = 200, /, **values: Any
    ) -> HTMLResponse:
        """Return a page made by a template, which gets the request's path and parameters too."""
        asked = {"path": path_of(request), "asked": dict(request.query_params)}
        made = self._templates.get_template(template).render(asked | values)
        return HTMLResponse(made, status)

    def recent(self, name: str, find: Callable[[], _Found], *, fresh_s: float = _FRESH_S) -> _Found:
        """Return what `find` returns, or what it returned for this name a moment ago.

        Visitors who come at the same time wait for one look, and share what it found. A name is one of the
        module that `find` is of.
        """
        return cast("_Found", self._look(find.__module__, name).found(find, fresh_s))

    def follow(self) -> int:
        """Have the pages that are made now show a bucket as it is, and return its last entry, or else -1.

        All other places are asked by each page.
        """
        return -1 if self._news is None else self.recent("news", self._news)

    def as_of_news(self, name: str, find: Callable[[], _Found]) -> _Found:
        """Return as `recent`, but of a bucket as long as nothing is new there: for what its ledger alone tells."""
        fresh_s = _FRESH_S if self._news is None else _FOR_EVER_S
        return self.recent(f"{name} as of {self.follow()}", find, fresh_s=fresh_s)

    def ensure_ready(self) -> None:
        """Check that the place can be read, as of a moment ago; of a folder, that it has a log dir to read.

        Raises:
            KBatchError, OSError: it cannot be.
        """
        self.follow()
        self.recent("ready", self.cluster.topic_names)
        disks = store_of(self.cluster).disks
        if disks is not None and not disks.has_readable():
            raise KafkaStorageError(f"no log dir of {self.cluster.address} can be read")


class _Once:
    """A look that visitors share."""

    def __init__(self) -> None:
        self._mutex = threading.Lock()  # guards the rest; held while one of them looks
        self._found: Future[Any] = Future()
        self._until_s = 0.0

    def found(self, find: Callable[[], Any], fresh_s: float) -> Any:
        with self._mutex:
            if monotonic_s() >= self._until_s:
                self._found = Future()
                try:
                    self._found.set_result(find())
                except (KBatchError, OSError) as error:
                    # For all who wait, or each would wait for it again; and not for long.
                    self._found.set_exception(error)
                    fresh_s = min(fresh_s, _FRESH_S)
                self._until_s = monotonic_s() + fresh_s
            return self._found.result()


def site_of(request: Request) -> Site:
    """Return the site that a request asks, whose pages then show a bucket as it is now."""
    site = cast("Site", request.app.state.site)
    site.follow()
    return site


def link(path: str, asked: Mapping[str, object] | None = None, /, **changes: object) -> str:
    """Return an address within the site: a path with parameters, without those that are None or empty."""
    merged = {**(asked or {}), **changes}
    query = urlencode(
        {key: value for key, value in merged.items() if value not in (None, "")},
        errors="surrogatepass",
    )
    return f"{path}?{query}" if query else path


class Page(NamedTuple):
    """A part of many things, as a page shows it."""

    shown: Sequence[Any]
    number: int  # from 1
    pages: int  # how many there are
    total: int  # of things


def shown_page(request: Request, every: Sequence[Any], size: int) -> Page:
    """Return that part of many things that a request asks for by the number of a page, or the nearest there is."""
    count = max(1, -(-len(every) // size))
    number = min(max(whole_number(request.query_params.get("page", "")) or 1, 1), count)
    return Page(every[(number - 1) * size : number * size], number, count, len(every))


def whole_number(given: object) -> int | None:
    """Return a number that a request has in its address; None if that is none, or out of any range."""
    text = str(given)
    return int(text) if text.isascii() and text.isdecimal() and len(text) < _DIGITS_MAX else None


def size_shown(size_in_bytes: float) -> str:
    """Return a number of bytes with a unit, such as 1.5 MiB."""
    return do_filesizeformat(size_in_bytes, binary=True)


def number_shown(number: float) -> str:
    """Return a number, with decimals only if it is little; nothing if it is not known."""
    if math.isnan(number):
        return ""
    return f"{number:,.{0 if number >= 10 or number == int(number) else 1 if number >= 1 else 3}f}"
