"""Pages of topics, and of one topic: its partitions, how fast it grows, its settings."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from starlette.responses import Response
from starlette.routing import Route

from spark_kbatch.options.topic import CONFIG_OPTIONS, topic_field
from spark_kbatch.remote.topics import RemoteTopic
from spark_kbatch.store.reports import UNKNOWN_OFFSET, ReplicaInfo
from spark_kbatch.web.charts import Chart, chart
from spark_kbatch.web.commits import chart_of, find_commits
from spark_kbatch.web.history import BYTES, OFFSETS, WHOLE
from spark_kbatch.web.site import shown_page, site_of

if TYPE_CHECKING:
    from starlette.requests import Request

    from spark_kbatch.model import PartitionInfo
    from spark_kbatch.options.topic import Topic
    from spark_kbatch.web.site import Site

TOPICS_SHOWN = 100  # on one page
PARTITIONS_SHOWN = 500  # on one page


def topics(request: Request) -> Response:
    """Show the topics, a page of them at a time, and how fast all of them grow."""
    site, asked = site_of(request), request.query_params
    wanted, internal = asked.get("name", ""), asked.get("internal") == "1"
    names = site.recent(f"names {internal}", lambda: site.cluster.topic_names(internal=internal))
    page = shown_page(
        request, [name for name in names if wanted.lower() in name.lower()], TOPICS_SHOWN
    )
    return site.page(
        request,
        "topics.html",
        partitions=_partitions(site, page.shown),
        rates={name: site.samples.latest(OFFSETS, name) for name in page.shown},
        page=page,
        wanted=wanted,
        internal=internal,
        charts=_rates(site, WHOLE),
    )


def topic(request: Request) -> Response:
    """Show a topic: its partitions, how fast it grows, and its settings."""
    site, name = site_of(request), request.path_params["topic"]
    found = site.recent(f"topic {name}", lambda: site.cluster.topic(name))
    partitions = _partitions(site, [name])
    page = shown_page(request, partitions, PARTITIONS_SHOWN)
    charts, has_commits = _rates(site, name), site.cluster.has("commits")
    if site.is_local and has_commits:
        newest, _ = find_commits(site, None, name)
        charts.append(chart_of(newest))
    return site.page(
        request,
        "topic.html",
        name=name,
        partitions=partitions,
        page=page,
        charts=charts + _sides(page.shown),
        replicas=_replicas(site, found),
        settings=_settings(found),
        has_commits=has_commits,
    )


ROUTES = [Route("/", topics), Route("/topics/{topic}", topic)]


def _partitions(site: Site, names: Sequence[str]) -> list[PartitionInfo]:
    return site.recent(f"topics {names}", lambda: site.cluster.describe(names) if names else [])


def _rates(site: Site, name: str) -> list[Chart | None]:
    """Return charts of how fast a topic grows, or all of them; none before the second sample."""
    return [
        chart(kind, title, *site.samples.series(kind, name), unit=unit)
        for kind, title, unit in (
            (OFFSETS, "Offsets written per second", 1000),
            (BYTES, "Growth of the size per second", 1024),
        )
    ]


def _sides(partitions: Sequence[PartitionInfo]) -> list[Chart | None]:
    """Return charts of partitions side by side."""
    read = [one for one in partitions if not one.error]
    numbers = [one.topic_partition.partition for one in read]
    offsets = [float(one.offsets.offsets_count) for one in read]
    sizes = [one.size_in_bytes if one.size_in_bytes >= 0 else math.nan for one in read]
    bars = [f"Partition {number}" for number in numbers]
    return [
        chart(name, title, numbers, {title: values}, unit=unit, bars=bars, of_times=False)
        for name, title, values, unit in (
            ("sides", "Offsets by partition", offsets, 1000),
            ("sizes", "Size by partition", sizes, 1024),
        )
    ]


def _replicas(site: Site, topic: Topic) -> Mapping[int, Sequence[ReplicaInfo]]:
    """Return the replicas by partition, where records are stored more than once; of a cluster without their lag."""
    if topic.replication_factor < 2:
        return {}
    if isinstance(topic, RemoteTopic):
        every = enumerate(zip(topic.leaders, topic.replicas, topic.isr, strict=True))
        return {
            number: [
                ReplicaInfo(one, one == leader, one in isr, UNKNOWN_OFFSET, 0, None) for one in of
            ]
            for number, (leader, of, isr) in every
        }
    if not site.cluster.has("disks"):
        return {}
    found = site.recent(f"replicas {topic.name}", lambda: site.cluster.replicas(topic.name))
    return {tp.partition: of for tp, of in found.items()}


def _settings(topic: Topic) -> list[tuple[str, object, str]]:
    """Return the topic's settings as far as they are known: key, value, and whether it was given."""
    if isinstance(topic, RemoteTopic):
        return [(key, value, "") for key, value in sorted(topic.settings.items())]
    return [
        (one.key, getattr(topic.config, topic_field(one.key)), "given" if one.key in topic.given else "default")
        for one in CONFIG_OPTIONS
        if topic.config is not None
    ]  # fmt: skip
