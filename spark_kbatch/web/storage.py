"""Pages of what keeps the records: log dirs and garbage of a folder, the ledger of a bucket.

Nothing is written, not even to see whether a log dir can be written to, and no objects of a bucket are listed but those
of its ledger: what it holds is told as far as the ledger does. What takes longer than the rest, what waits as garbage in a folder, is looked up only if it is asked for.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.routing import Route

from spark_kbatch.files import Files
from spark_kbatch.model import TopicPartition
from spark_kbatch.opening.stores import store_of
from spark_kbatch.web.site import Site, site_of

if TYPE_CHECKING:
    from starlette.requests import Request

    from spark_kbatch.store.reports import ReplicaInfo

SHOWN = 100  # partitions that lack replicas, garbage of one kind
ENTRIES_SHOWN = 20  # of a ledger
_DISKS_FRESH_S = 10.0  # all partitions are looked at for them
_GARBAGE_FRESH_S = 60.0


def storage(request: Request) -> Response:
    """Show what keeps the records of the place."""
    site = site_of(request)
    if site.ledger is not None:
        return _bucket(request, site)
    if not site.cluster.has("disks"):
        raise HTTPException(404)
    return _disks(request, site)


ROUTES = [Route("/storage", storage)]


def _disks(request: Request, site: Site) -> Response:
    cluster, disks = site.cluster, store_of(site.cluster).disks
    assert disks is not None
    log_dirs = site.recent("disks", lambda: disks.log_dirs(writes=False), fresh_s=_DISKS_FRESH_S)
    lagging: list[tuple[TopicPartition, Sequence[ReplicaInfo]]] = []
    if any(one.not_in_sync for one in log_dirs):
        found = site.recent(
            "replicas",
            lambda: disks.replicas(cluster.topic_names(internal=True)),
            fresh_s=_DISKS_FRESH_S,
        )
        lagging = [(tp, of) for tp, of in found.items() if any(not one.in_sync for one in of)]
    garbage = None
    if request.query_params.get("garbage") == "1":
        garbage = site.recent(
            "garbage", lambda: cluster.collect_garbage(dry_run=True), fresh_s=_GARBAGE_FRESH_S
        )
    return site.page(
        request, "disks.html", disks=[(one, *_room(one.path)) for one in log_dirs], lagging=lagging,
        garbage=garbage, shown=SHOWN,
    )  # fmt: skip


def _room(path: str) -> tuple[int, int]:
    """Return the size of a path's disk, and what of it is free; zeros if that is not known."""
    try:
        return Files().disk_space(Path(path))
    except OSError:
        return 0, 0


def _bucket(request: Request, site: Site) -> Response:
    from spark_kbatch.bucket.history import newest_of  # noqa: PLC0415  only for a bucket
    from spark_kbatch.bucket.maintenance import describe_ledger, told_objects  # noqa: PLC0415

    cluster = site.cluster
    found = site.recent("sizes", lambda: cluster.describe(cluster.topic_names()))
    sized = {one.topic_partition.topic for one in found if one.size_in_bytes >= 0}
    return site.page(
        request,
        "bucket.html",
        ledger=site.as_of_news("ledger", lambda: describe_ledger(site.ledger)),
        untold=len({one.topic_partition.topic for one in found} - sized),
        size=sum(one.size_in_bytes for one in found if one.size_in_bytes >= 0),
        objects=site.recent("objects", lambda: told_objects(site.ledger, sized)),
        newest=site.as_of_news("entries", lambda: newest_of(site.ledger, ENTRIES_SHOWN)),
    )
