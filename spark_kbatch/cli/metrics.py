"""What a place of topics holds, as Prometheus reads it: gauges in its text format.

    kbatch_log_end_offset{partition="0",topic="orders"} 1200.0

Times are seconds since 1970 and sizes bytes, as Prometheus wants its units. A gauge of something that is not known,
such as the lag of a group that has committed nothing, is left out.

Source: https://prometheus.io/docs/instrumenting/exposition_formats/, https://prometheus.io/docs/practices/naming/.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, TypeAlias

from spark_kbatch.errors import INSTALL_EXTRA, ConfigError

if TYPE_CHECKING:
    from spark_kbatch import Cluster
    from spark_kbatch.bucket.maintenance import BucketDescription
    from spark_kbatch.model import TopicPartition

_Labels: TypeAlias = tuple[str, ...]  # values of labels
_Rows: TypeAlias = Mapping[_Labels, Sequence[float | None]]
_Values: TypeAlias = Mapping[_Labels, float | None]
_Gauge: TypeAlias = tuple[str, str, tuple[str, ...], _Values]  # name, help, names of labels, values

_OF_PARTITIONS = {
    "start_offset": "First offset of a partition that is kept.",
    "end_offset": "Offset of the next record of a partition.",
    "size_bytes": "Bytes of a partition's batches.",
}
_OF_GROUPS = {
    "committed_offset": "Offset that a consumer group has committed.",
    "lag": "Offsets from what a consumer group has committed to the end.",
}
_OF_BUCKETS = {
    "entries": "Entries of the ledger.",
    "entries_since_checkpoint": "Entries after the newest checkpoint.",
    "last_entry_timestamp_seconds": "Time of the newest entry.",
    "unmaintained_since_timestamp_seconds": "Time of the oldest entry after the horizon.",
    "clock_ahead_seconds": "How far the clock of the last writer is ahead of the store's.",
    "small_pieces": "Small pieces of the partition that has the most.",
}
_OF_OBJECTS = {"objects": "Objects of the bucket.", "bytes": "Bytes of the bucket's objects."}


def prometheus_text(cluster: Cluster, bucket: BucketDescription | None = None) -> str:
    """Return gauges of a cluster's partitions and groups, and of a bucket.

    Args:
        cluster: which.
        bucket: as `kbatch describe` shows it; None for another place.

    Raises:
        ConfigError: the package prometheus-client is missing.
        Other errors, as `Cluster.describe` and `Cluster.groups`.
    """
    try:
        import prometheus_client  # noqa: PLC0415  few commands need it
    except ModuleNotFoundError:
        raise ConfigError(
            f"--prometheus needs the package prometheus-client: {INSTALL_EXTRA.format('metrics')}"
        ) from None
    registry = prometheus_client.CollectorRegistry()
    for name, text, labels, values in _gauges(cluster, bucket):
        gauge = prometheus_client.Gauge(f"kbatch_{name}", text, labels, registry=registry)
        for of, value in values.items():
            if value is not None:
                (gauge.labels(*of) if labels else gauge).set(value)
    return prometheus_client.generate_latest(registry).decode()


def _gauges(cluster: Cluster, bucket: BucketDescription | None) -> Iterable[_Gauge]:
    described = [one for one in cluster.describe(cluster.topic_names()) if not one.error]
    partitions: _Rows = {
        _labels(one.topic_partition): (
            one.offsets.log_start_offset,
            one.offsets.log_end_offset,
            one.size_in_bytes if one.size_in_bytes >= 0 else None,  # which no broker tells
        )
        for one in described
    }
    yield from _columns("log", _OF_PARTITIONS, ("topic", "partition"), partitions)
    if cluster.has("groups"):
        groups: _Rows = {
            (group.group_id, *_labels(tp)): (one.committed_offset, one.lag)
            for group in cluster.groups()
            for tp, one in group.offsets.items()
        }
        yield from _columns("group", _OF_GROUPS, ("group", "topic", "partition"), groups)
    if bucket is not None:
        row = (
            bucket.entries,
            bucket.entries_since_checkpoint,
            bucket.last_entry_ms / 1000,
            bucket.unmaintained_since_ms / 1000,
            bucket.clock_ahead_ms / 1000,
            bucket.small_extents,
        )
        yield from _columns("bucket", _OF_BUCKETS, (), {(): row})
        objects: _Rows = {
            ("read",): bucket.referenced,
            ("waiting",): bucket.waiting,
            ("ledger",): bucket.ledger,
        }
        yield from _columns("bucket", _OF_OBJECTS, ("state",), objects)


def _labels(topic_partition: TopicPartition) -> tuple[str, str]:
    return topic_partition.topic, str(topic_partition.partition)


def _columns(
    prefix: str,
    texts: Mapping[str, str],
    labels: tuple[str, ...],
    rows: _Rows,
) -> Iterable[_Gauge]:
    """Yield a gauge for each column of rows, in the order of `texts`."""
    for at, (name, text) in enumerate(texts.items()):
        yield f"{prefix}_{name}", text, labels, {of: row[at] for of, row in rows.items()}
