"""Pages of topics, and of one topic: its partitions, its settings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple, cast

from starlette.responses import Response
from starlette.routing import Route

from spark_kbatch.opening.stores import store_of
from spark_kbatch.web.site import site_of

if TYPE_CHECKING:
    from starlette.requests import Request

    from spark_kbatch import Cluster
    from spark_kbatch.bucket.store import BucketStore
    from spark_kbatch.model import PartitionInfo

TOPICS_SHOWN = 100  # on one page
PARTITIONS_SHOWN = 500
_REQUESTS_FOR_SIZES_MAX = 20  # to a bucket, for one topic


class _TopicRow(NamedTuple):
    """A topic in the list."""

    name: str
    partitions: Sequence[PartitionInfo]

    @property
    def records(self) -> int:
        """Offsets from the start to the end of its partitions, those that can be read."""
        known = [one.offsets for one in self.partitions if not one.error]
        return sum(one.high_watermark - one.log_start_offset for one in known)

    @property
    def size_in_bytes(self) -> int:
        """Bytes of its partitions; -1 if the place does not tell."""
        return sum(one.size_in_bytes for one in self.partitions if one.size_in_bytes >= 0) or (
            -1 if any(one.size_in_bytes < 0 for one in self.partitions) else 0
        )

    @property
    def errors(self) -> list[str]:
        """Why partitions cannot be read."""
        return [f"{one.topic_partition}: {one.error}" for one in self.partitions if one.error]


def topics(request: Request) -> Response:
    """Show the topics, a page of them at a time."""
    site, asked = site_of(request), request.query_params
    wanted, internal = asked.get("name", ""), asked.get("internal") == "1"
    names = site.recent(f"names {internal}", lambda: site.cluster.topic_names(internal=internal))
    found = [name for name in names if wanted.lower() in name.lower()]
    page = _page_number(asked.get("page", ""), len(found), TOPICS_SHOWN)
    shown = found[(page - 1) * TOPICS_SHOWN : page * TOPICS_SHOWN]
    rows = site.recent(f"topics {shown}", lambda: _rows(site.cluster, shown))
    return site.page(
        request,
        "topics.html",
        rows=rows,
        topics_count=len(found),
        page=page,
        pages=max(1, -(-len(found) // TOPICS_SHOWN)),
        wanted=wanted,
        internal=internal,
    )


def topic(request: Request) -> Response:
    """Show a topic: its partitions and its settings."""
    site, name = site_of(request), request.path_params["topic"]
    found = site.recent(f"topic {name}", lambda: site.cluster.topic(name))
    (row,) = site.recent(
        f"row {name}", lambda: _rows(site.cluster, [name], _REQUESTS_FOR_SIZES_MAX)
    )
    return site.page(request, "topic.html", topic=found, row=row)


ROUTES = [Route("/", topics), Route("/topics/{topic}", topic)]


def _rows(
    cluster: Cluster, names: Sequence[str], requests_max: int | None = None
) -> list[_TopicRow]:
    """Return topics with their partitions; of a bucket with sizes if few requests tell them, at most so many."""
    partitions: dict[str, list[PartitionInfo]] = {name: [] for name in names}
    store = store_of(cluster)
    if store.ledger is None or not names:
        described = cluster.describe(names) if names else []
    else:
        described = cast("BucketStore", store).describe_within(names, requests_max)
    for one in described:
        partitions[one.topic_partition.topic].append(one)
    return [_TopicRow(name, found) for name, found in partitions.items()]


def _page_number(given: str, count: int, shown: int) -> int:
    """Return the number of a page that there is, from 1."""
    last = max(1, -(-count // shown))
    return (
        min(max(int(given), 1), last)
        if given.isascii() and given.isdecimal() and len(given) < 10
        else 1
    )
