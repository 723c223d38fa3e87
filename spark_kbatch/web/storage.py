"""Pages of what keeps the records: log dirs and replicas of a folder, the ledger of a bucket, brokers of a cluster.

Nothing is written, not even to see whether a log dir can be written to, and no objects of a bucket are listed.
What takes longer than the rest, what waits as garbage in a folder, is looked up only if it is asked for.
"""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.routing import Route

from spark_kbatch.errors import UnknownTopicOrPartitionError
from spark_kbatch.model import TopicPartition
from spark_kbatch.opening.stores import store_of
from spark_kbatch.store.reports import UNKNOWN_OFFSET, ReplicaInfo
from spark_kbatch.web.site import Site, site_of

if TYPE_CHECKING:
    from starlette.requests import Request

    from spark_kbatch import Cluster
    from spark_kbatch.remote.metadata import ClusterMetadata
    from spark_kbatch.remote.source import RemoteSource
    from spark_kbatch.remote.topics import RemoteTopic
    from spark_kbatch.store.reports import Garbage, LogDirInfo

SHOWN = 100  # partitions that lack replicas, files of one kind
ENTRIES_SHOWN = 20  # of a ledger
_DISKS_FRESH_S = 10.0  # all partitions are looked at for them
_GARBAGE_FRESH_S = 60.0

_Lagging = Sequence[tuple[TopicPartition, Sequence[ReplicaInfo]]]


class _Disk(NamedTuple):
    """A log dir, and the size of its disk; None where it is not known."""

    log_dir: LogDirInfo | None  # None of a broker's logs
    path: str
    size_in_bytes: int | None
    free_in_bytes: int | None


class _Left(NamedTuple):
    """Files that the next run of gc deletes, or a later one, or none."""

    what: str
    name: str
    size_in_bytes: int | None = None
    until_ms: int | None = None  # None: the next run deletes them
    why: str = ""  # they are left


def menu_of(cluster: Cluster) -> list[tuple[str, str]]:
    """Return what the menu has of these pages: nothing where a place does not tell what it is kept in."""
    if store_of(cluster).ledger is not None:
        return [("/storage", "Bucket")]
    if cluster.is_remote:
        return [("/storage", "Brokers")]
    return [("/storage", "Disks")] if Path(cluster.address).is_absolute() else []


def storage(request: Request) -> Response:
    """Show what keeps the records of the place."""
    site = site_of(request)
    if not menu_of(site.cluster):
        raise HTTPException(404)
    if store_of(site.cluster).ledger is not None:
        return _bucket(request, site)
    return _brokers(request, site) if site.cluster.is_remote else _disks(request, site)


def replicas(request: Request) -> Response:
    """Show the replicas of a topic's partitions, the first of them."""
    site, name = site_of(request), request.path_params["topic"]
    if site.cluster.is_remote:
        topic = cast("RemoteTopic", site.recent(f"topic {name}", lambda: site.cluster.topic(name)))
        found: _Lagging = [
            (
                TopicPartition(name, number),
                _replicas(topic.leaders[number], nodes, topic.isr[number]),
            )
            for number, nodes in enumerate(topic.replicas)
        ]
    elif site.cluster.has("disks"):
        found = site.recent(f"replicas of {name}", lambda: [*site.cluster.replicas([name]).items()])
    else:
        raise HTTPException(404)
    return site.page(request, "replicas.html", name=name, count=len(found), found=found[:SHOWN])


ROUTES = [Route("/storage", storage), Route("/topics/{topic}/replicas", replicas)]


# A folder, and a broker's logs.


def _disks(request: Request, site: Site) -> Response:
    cluster = site.cluster
    lagging: _Lagging = ()
    left: list[_Left] | None = None
    disks = site.recent("disks", lambda: _disks_of(cluster), fresh_s=_DISKS_FRESH_S)
    if any(one.log_dir is not None and one.log_dir.not_in_sync for one in disks):
        lagging = site.recent("lagging", lambda: _lagging(cluster), fresh_s=_DISKS_FRESH_S)
    if cluster.has("disks") and request.query_params.get("garbage") == "1":
        left = site.recent(
            "garbage",
            lambda: [*_left(cluster.collect_garbage(dry_run=True))],
            fresh_s=_GARBAGE_FRESH_S,
        )
    return site.page(
        request, "disks.html", disks=disks, lagging=lagging, left=left, shown=SHOWN,
        may_have_garbage=cluster.has("disks"),
    )  # fmt: skip


def _disks_of(cluster: Cluster) -> list[_Disk]:
    disks = store_of(cluster).disks
    if disks is None:
        return [_Disk(None, str(cluster.path), *_space(str(cluster.path)))]
    return [_Disk(one, one.path, *_space(one.path)) for one in disks.log_dirs(writes=False)]


def _space(path: str) -> tuple[int | None, int | None]:
    """Return the size of a path's disk, and what of it is free; None if that is not known."""
    try:
        found = shutil.disk_usage(path)
    except OSError:
        return None, None
    return (found.total, found.free) if found.total else (None, None)


def _lagging(cluster: Cluster) -> _Lagging:
    """Return partitions of which a replica is not in sync, one more than are shown at most."""
    found = list[tuple[TopicPartition, Sequence[ReplicaInfo]]]()
    for name in cluster.topic_names(internal=True):
        try:
            of_topic = cluster.replicas([name])
        except UnknownTopicOrPartitionError:  # deleted meanwhile
            continue
        found += [(tp, of) for tp, of in of_topic.items() if any(not one.in_sync for one in of)]
        if len(found) > SHOWN:
            break
    return found[: SHOWN + 1]


def _left(garbage: Garbage) -> Iterator[_Left]:
    for tp, deletion in garbage.partitions.items():
        if deletion.segments:
            yield _Left("expired segments", str(tp), deletion.size_in_bytes)
        if deletion.files:
            yield _Left("files of segments deleted earlier", str(tp))
    for job in garbage.abandoned_jobs:
        yield _Left("staged by a job that never committed", job.transaction, job.size_in_bytes)
    for topic in garbage.deleted_topics:
        yield _Left("deleted topic", topic.topic)
    for one in garbage.waiting:
        yield _Left(one.what, one.name, one.size_in_bytes, one.until_ms)
    for path, why in garbage.not_removed:
        yield _Left("staged", str(path), why=why)
    unusable = {str(tp): why for tp, why in garbage.skipped.items()} | {**garbage.damaged_topics}
    for name, why in unusable.items():
        yield _Left("not looked at", name, why=why)


# A bucket.


def _bucket(request: Request, site: Site) -> Response:
    from spark_kbatch.bucket.happenings import newest_of  # noqa: PLC0415  only for a bucket

    ledger = store_of(site.cluster).ledger
    facts = site.as_of_news("ledger", lambda: _facts(ledger))
    last, after_horizon = facts["entries"] - 1, facts["horizon"] + 1
    newest = site.as_of_news("entries", lambda: newest_of(ledger, last, ENTRIES_SHOWN))
    oldest = site.as_of_news(
        "after the horizon",
        lambda: newest_of(ledger, after_horizon, 1) if after_horizon <= last else [],
    )
    return site.page(request, "bucket.html", newest=newest, oldest=oldest, **facts)


def _facts(ledger: Any) -> dict[str, int]:
    """Return what the state of a ledger tells by itself, as of now."""
    with ledger.state() as state:
        return {
            "entries": state.number + 1,
            "last_entry_ms": state.time_ms,
            "horizon": state.horizon,
            "topics_count": len(state.topics),
            "partitions_count": sum(len(one.partitions) for one in state.topics.values()),
            "groups_count": len(state.groups),
            "queries_count": len(state.queries),
        }


# A real cluster.


def _brokers(request: Request, site: Site) -> Response:
    source = cast("RemoteSource", store_of(site.cluster).source)
    found = site.recent("metadata", lambda: _metadata(source))
    every = [
        (TopicPartition(topic.name, one.partition), _replicas(one.leader, one.replicas, one.isr))
        for topic in found.topics.values()
        for one in topic.partitions
    ]
    led = Counter(one.node_id for _, of in every for one in of if one.is_leader)
    held = Counter(one.node_id for _, of in every for one in of)
    return site.page(
        request,
        "brokers.html",
        cluster_id=found.cluster_id,
        brokers=[
            (one, held[one.id], led[one.id], one.id == found.controller)
            for one in sorted(found.nodes.values())
        ],
        lagging=[(tp, of) for tp, of in every if any(not one.in_sync for one in of)],
        leaderless=[tp for tp, of in every if not any(one.is_leader for one in of)],
        shown=SHOWN,
    )


def _metadata(source: RemoteSource) -> ClusterMetadata:
    with source.client() as client:
        return client.metadata(fresh=True)


def _replicas(leader: int, nodes: Sequence[int], isr: Sequence[int]) -> list[ReplicaInfo]:
    """Return what metadata tells of a partition's replicas, which is not their ends."""
    return [
        ReplicaInfo(node, node == leader, node in isr, UNKNOWN_OFFSET, UNKNOWN_OFFSET, None)
        for node in nodes
    ]
