"""Pages of topics, and of one topic: its partitions, how fast it grows, its settings."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from starlette.responses import Response
from starlette.routing import Route

from spark_kbatch.clock import now_ms
from spark_kbatch.options.topic import CONFIG_OPTIONS, topic_field
from spark_kbatch.remote.topics import RemoteTopic
from spark_kbatch.web.charts import Chart, bars, line_chart
from spark_kbatch.web.commits import chart_of, find_commits
from spark_kbatch.web.history import BYTES, RECORDS, WHOLE
from spark_kbatch.web.site import number_shown, rate_shown, shown_page, site_of, size_shown

if TYPE_CHECKING:
    from starlette.requests import Request

    from spark_kbatch import Cluster
    from spark_kbatch.model import PartitionInfo
    from spark_kbatch.options.topic import Topic
    from spark_kbatch.web.site import Site

TOPICS_SHOWN = 100  # on one page
PARTITIONS_SHOWN = 500  # on one page
SPANS_MS = {"hour": 3_600_000, "day": 86_400_000, "week": 7 * 86_400_000}
TIMES = 30  # at which offsets are looked up, of a topic of not too many partitions
PARTITIONS_LOOKED_UP = 16
_TIMES_FRESH_S = 30.0


class _TopicRow(NamedTuple):
    """A topic in the list."""

    name: str
    partitions: Sequence[PartitionInfo]

    @property
    def records(self) -> int:
        """Offsets from the start to the end of its partitions, those that can be read."""
        return sum(_records(one) for one in self.partitions if not one.error)

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
    """Show the topics, a page of them at a time, and how fast all of them grow."""
    site, asked = site_of(request), request.query_params
    wanted, internal = asked.get("name", ""), asked.get("internal") == "1"
    names = site.recent(f"names {internal}", lambda: site.cluster.topic_names(internal=internal))
    page = shown_page(
        request, [name for name in names if wanted.lower() in name.lower()], TOPICS_SHOWN
    )
    rows = site.recent(f"topics {page.shown}", lambda: _rows(site.cluster, page.shown))
    rates = {row.name: site.samples.latest(RECORDS, row.name) for row in rows}
    return site.page(
        request, "topics.html", rows=rows, rates=rates, page=page, wanted=wanted, internal=internal,
        charts=_rates(site, WHOLE),
    )  # fmt: skip


def topic(request: Request) -> Response:
    """Show a topic: its partitions, how fast it grows, and its settings."""
    site, name = site_of(request), request.path_params["topic"]
    span = request.query_params.get("span", "")
    found = site.recent(f"topic {name}", lambda: site.cluster.topic(name))
    (row,) = site.recent(f"topics {[name]}", lambda: _rows(site.cluster, [name]))
    page = shown_page(request, row.partitions, PARTITIONS_SHOWN)
    charts: list[Chart | None] = [*_rates(site, name)]
    if site.is_local and not row.errors and len(row.partitions) <= PARTITIONS_LOOKED_UP:
        span = span if span in SPANS_MS else next(iter(SPANS_MS))
        charts.append(
            site.recent(f"times {name} {span}", lambda: _by_times(site.cluster, name, SPANS_MS[span]), fresh_s=_TIMES_FRESH_S)
        )  # fmt: skip
    if site.is_local and site.cluster.has("commits"):
        charts.append(chart_of(find_commits(site, None, name).commits))
    charts += _sides(page.shown)
    return site.page(
        request, "topic.html", topic=found, row=row, page=page, charts=charts, span=span, spans=list(SPANS_MS),
        settings=_settings(found), replicas=site.recent(f"replicas {name}", lambda: _replicas(site.cluster, found)),
        has_commits=site.cluster.has("commits"),
    )  # fmt: skip


ROUTES = [Route("/", topics), Route("/topics/{topic}", topic)]


def _rows(cluster: Cluster, names: Sequence[str]) -> list[_TopicRow]:
    partitions: dict[str, list[PartitionInfo]] = {name: [] for name in names}
    for one in cluster.describe(names) if names else ():
        partitions[one.topic_partition.topic].append(one)
    return [_TopicRow(name, found) for name, found in partitions.items()]


def _rates(site: Site, name: str) -> list[Chart]:
    """Return charts of how fast a topic grows, or all of them; none before the second sample."""
    found = []
    for kind, title, shown, unit in (
        (RECORDS, "Records written per second", rate_shown, 1000),
        (BYTES, "Growth of the size per second", size_shown, 1024),
    ):
        times_ms, lines = site.samples.series(kind, name)
        found.append(
            line_chart(kind, title, times_ms, {kind: lines[name]} if lines else {}, shown, unit)
        )
    return [one for one in found if one is not None]


def _sides(partitions: Sequence[PartitionInfo]) -> list[Chart | None]:
    """Return charts of partitions side by side."""
    records = {
        str(one.topic_partition.partition): _records(one) for one in partitions if not one.error
    }
    sizes = {
        str(one.topic_partition.partition): one.size_in_bytes
        for one in partitions
        if one.size_in_bytes >= 0
    }
    return [
        bars("sides", "Records by partition", "Partition", records, number_shown),
        bars("sizes", "Size by partition", "Partition", sizes, size_shown, unit=1024),
    ]  # fmt: skip


def _by_times(cluster: Cluster, name: str, span_ms: int) -> Chart | None:
    """Return a chart of how many records have times in each part of a span that ends now.

    Times of records say it at once, and exactly, where samples have only what came since the pages were started.
    """
    partitions, step_ms = cluster.partitions(name), span_ms // TIMES
    end_ms = now_ms() // 1000 * 1000 + 1000  # so that what came just now is in it
    times_ms = [end_ms - step_ms * number for number in range(TIMES, -1, -1)]
    looks = [cluster.list_offsets(dict.fromkeys(partitions, at)) for at in times_ms]
    ends = cluster.list_offsets(dict.fromkeys(partitions, "latest"))
    sums = [
        sum(found.offset for tp in partitions if (found := look[tp] or ends[tp]) is not None)
        for look in looks
    ]
    # Each is at least the one before, but for records that came between two looks.
    rates = [max(0, after - at) * 1000 / step_ms for at, after in itertools.pairwise(sums)]
    return line_chart(
        "times", "Records per second, by their times", times_ms[1:], {"records": rates}, rate_shown
    )


def _settings(topic: Topic) -> list[tuple[str, str, str]]:
    """Return the topic's settings as far as they are known: key, value, and whether it was given."""
    if isinstance(topic, RemoteTopic):
        return [(key, str(value), "") for key, value in sorted(topic.settings.items())]
    return [
        (one.key, str(getattr(topic.config, topic_field(one.key))), "given" if one.key in topic.given else "default")
        for one in CONFIG_OPTIONS
        if topic.config is not None
    ]  # fmt: skip


def _replicas(
    cluster: Cluster, topic: Topic
) -> dict[int, tuple[int | None, Sequence[int], Sequence[int]]]:
    """Return the leader, the replicas and those in sync by partition; empty where each record is stored once."""
    if topic.replication_factor < 2 or topic.partitions > PARTITIONS_SHOWN:
        return {}
    if isinstance(topic, RemoteTopic):
        return dict(enumerate(zip(topic.leaders, topic.replicas, topic.isr, strict=True)))
    if not cluster.has("disks"):
        return {}
    return {
        tp.partition: (
            next((one.node_id for one in found if one.is_leader), None),
            [one.node_id for one in found],
            [one.node_id for one in found if one.in_sync],
        )
        for tp, found in cluster.replicas([topic.name]).items()
    }


def _records(one: PartitionInfo) -> int:
    return one.offsets.high_watermark - one.offsets.log_start_offset
